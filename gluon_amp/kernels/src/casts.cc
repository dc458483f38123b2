// MXNet's amp_cast from float32 to bfloat16, with support for adding its gradient (kAddTo).
//
// amp_cast computes its gradient with oneDNN and ignores kAddTo, so a sum over several passes stays 0.
// In all other cases the operator here calls amp_cast.
#include "operators.h"
#include "values.h"

namespace gluon_amp {
namespace {

void to_bfloat16(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
                 const Requests& req, const Arrays& outputs) {
  compute_of("amp_cast")(attrs, context, inputs, req, outputs);
}

// input: the gradient of the result
void to_bfloat16_grad(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
                      const Requests& req, const Arrays& outputs) {
  const bool widening = inputs[0].dtype() == mshadow::kBfloat16 &&
                        outputs[0].dtype() == mshadow::kFloat32;
  if (req[0] != mxnet::kAddTo || !widening) {
    return compute_of("_backward_amp_cast")(attrs, context, inputs, req, outputs);
  }
  convert_array(inputs[0], req[0], outputs[0]);
}

bool is_float(int type) {
  return type == mshadow::kFloat32 || type == mshadow::kFloat16 || type == mshadow::kBfloat16;
}

// As in amp_cast, integers are not cast.
bool infer_cast_type(const NodeAttrs&, Ints& in, Ints& out) {
  if (in[0] == -1) return false;
  out[0] = is_float(in[0]) ? static_cast<int>(mshadow::kBfloat16) : in[0];
  return true;
}

}  // namespace

void register_casts() {
  nnvm::Op* op = add_op("_gluon_amp_bfloat16", 1, 1, to_bfloat16, infer_one_shape, infer_cast_type);
  add_gradient(op, 1, to_bfloat16_grad, only_gradients);
}

}  // namespace gluon_amp
