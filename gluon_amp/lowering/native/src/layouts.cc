// Keeps oneDNN's BatchNorm on its fast path if the layouts of its data and its gradient differ.
//
// The AMX kernels of convolutions write one layout, those of depthwise convolutions another. If
// neither the data nor the gradient of a BatchNorm is plain, MXNet passes both to oneDNN as they are,
// and oneDNN 2.4 has only a reference kernel for two different layouts: a MobileNet's step takes seven
// times as long. The operator here is inserted after a BatchNorm. It returns the same values, and in
// the backward pass the same gradient: in the plain layout if the two differ, which MXNet reorders.
#include <cstring>

#include "arrays.h"
#include "bfloat16.h"
#include "operators.h"
#include "parallel.h"

namespace gluon_amp {
namespace {

bool in_place(const NDArray& input, const NDArray& output) {
  return input.storage_handle().dptr == output.storage_handle().dptr;
}

// Writes or adds the input to the output in the plain layout; both may share their memory.
void write_plain(const NDArray& input, OpReqType req, const NDArray& output) {
  if (in_place(input, output)) return make_plain(output);
  const NDArray plain = plain_copy(input);
  make_plain(output);
  const bfloat_bits* in = plain_data<bfloat_bits>(plain);
  bfloat_bits* out = plain_data<bfloat_bits>(output);
  in_parallel(plain.shape().Size(), [&](int64_t first, int64_t count) {
    if (req != mxnet::kAddTo) {
      std::memcpy(out + first, in + first, count * sizeof(bfloat_bits));
      return;
    }
    for (int64_t i = first; i < first + count; ++i) {
      out[i] = rounded(widened(out[i]) + widened(in[i]));
    }
  });
}

// inputs: the result of the BatchNorm, and its data
void pass(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
          const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || in_place(inputs[0], outputs[0])) return;
  write_plain(inputs[0], req[0], outputs[0]);
}

// inputs: the gradient of the result, and the data of the BatchNorm
void pass_back(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
               const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  if (in_place(inputs[0], outputs[0]) && !layouts_differ(inputs[0], inputs[1])) return;
  write_plain(inputs[0], req[0], outputs[0]);
}

}  // namespace

void register_layouts() {
  constexpr int kBfloat = mshadow::kBfloat16;
  const std::string backward = "_backward_gluon_amp_norm_layout";
  nnvm::Op* op = add_elementwise<kBfloat, kBfloat>("_gluon_amp_norm_layout", 2, pass);
  op->add_argument("result", "NDArray-or-Symbol", "bfloat16");
  op->add_argument("data", "NDArray-or-Symbol", "bfloat16");
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    expect_inputs(node->attrs, 2, inputs_of(node).size());
    const auto& data = inputs_of(node)[1];
    Entries gradients = make_grad_node(backward.c_str(), node, {grads[0], data}, node->attrs.dict);
    // nnvm omits such zeros from the sum with BatchNorm's own gradient of its data.
    gradients.push_back(make_grad_node("zeros_like", node, {data}, {})[0]);
    return gradients;
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
  set_attr(add_elementwise<kBfloat, kBfloat>(backward, 2, pass_back), "TIsBackward", true, kPriority);
}

}  // namespace gluon_amp
