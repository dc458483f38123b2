// MXNet's amp_cast from float32 to bfloat16, with support for adding its gradient (kAddTo).
//
// amp_cast computes its gradient with oneDNN and ignores kAddTo, so a sum over several passes stays 0.
// In all other cases the operator here calls amp_cast.
#include <string>

#include "operators.h"
#include "rounding.h"

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
  convert_array<Bfloat, float>(inputs[0], req[0], outputs[0], kernels().from_bfloat, kernels().add);
}

bool is_float(int type) {
  return type == mshadow::kFloat32 || type == mshadow::kFloat16 || type == mshadow::kBfloat16;
}

// As in amp_cast, integers are not cast.
bool infer_cast_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  expect_inputs(attrs, 1, in.size());
  if (in[0] == -1) return false;
  out[0] = is_float(in[0]) ? static_cast<int>(mshadow::kBfloat16) : in[0];
  return true;
}

bool infer_cast_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  expect_inputs(attrs, 1, in.size());
  return unify(attrs, {&in[0], &out.at(0)});
}

}  // namespace

void register_casts() {
  nnvm::Op* op = add_op("_gluon_amp_bfloat16", to_bfloat16, infer_cast_shape, infer_cast_type);
  op->num_inputs = 1;
  add_gradient(op, to_bfloat16_grad, only_gradients);
}

}  // namespace gluon_amp
