// A tensor with several readers as several tensors in the same memory, so that this library adds their
// gradients.
//
// nnvm inserts an ElementWiseSum for the gradients of a tensor with several readers. In bfloat16 MXNet adds
// them one by one, with conversions. The operator fork has as many inputs, all of them the tensor, as it
// has outputs, one for each reader. Its gradient for the first input is the sum. Those for the others are
// zeros, which nnvm omits from the tensor's sum.
#include <cstring>
#include <string>
#include <vector>

#include "blocked.h"
#include "shapes.h"

namespace gluon_amp {
namespace {

uint32_t readers_of(const NodeAttrs& attrs) { return count_of(attrs, "num_outputs"); }

bool infer_one_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  expect_inputs(attrs, readers_of(attrs), in.size());
  std::vector<mxnet::TShape*> shapes;
  for (auto& shape : in) shapes.push_back(&shape);
  for (auto& shape : out) shapes.push_back(&shape);
  return unify(attrs, shapes);
}

void fork(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
          const Arrays& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (req[i] == mxnet::kNullOp) continue;
    CHECK_NE(req[i], mxnet::kAddTo);
    const NDArray plain = plain_copy(inputs[i]);
    const char* in = values_of<char>(plain);
    char* out = result_of<char>(outputs[i]);
    if (in == out) continue;
    const int64_t bytes = plain.shape().Size() * mshadow::mshadow_sizeof(plain.dtype());
    in_parallel(bytes, [&](int64_t first, int64_t count) {
      std::memcpy(out + first, in + first, count);
    });
  }
}

void sum_all(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
         const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  Arrays plain;
  for (const auto& input : inputs) plain.push_back(plain_copy(input));
  if (req[0] == mxnet::kAddTo) {
    make_plain(outputs[0]);
    plain.push_back(outputs[0]);
  }
  std::vector<const void*> values;
  for (const auto& array : plain) values.push_back(values_of<char>(array));
  add_arrays(element_of(attrs, outputs[0]), values, result_of<char>(outputs[0]), outputs[0].shape().Size());
}

}  // namespace

void register_fork() {
  nnvm::Op* op = add_op("_gluon_amp_fork", fork, infer_one_shape, infer_one_dtype);
  op->num_inputs = nnvm::kVarg;
  op->get_num_inputs = op->get_num_outputs = readers_of;
  // Each output shares the memory of one input, and the sum that of any of its inputs.
  const auto own = [](const NodeAttrs& attrs) {
    std::vector<std::pair<int, int>> pairs;
    for (uint32_t i = 0; i < readers_of(attrs); ++i) pairs.emplace_back(i, i);
    return pairs;
  };
  const auto any = [](const NodeAttrs& attrs) {
    std::vector<std::pair<int, int>> pairs;
    for (uint32_t i = 0; i < readers_of(attrs); ++i) pairs.emplace_back(i, 0);
    return pairs;
  };
  const auto identical = [](const NodeAttrs& attrs) {
    return std::vector<bool>(readers_of(attrs), true);
  };
  set_attr(op, "FInplaceOption", InplaceOption(own), kPriority);
  set_attr(op, "FInplaceIdentity", InplaceIdentity(identical), kPriority);
  const auto gradient = [](const ObjectPtr& node, const Entries& grads) {
    const Entries& inputs = inputs_of(node);
    expect_inputs(node->attrs, grads.size(), inputs.size());
    Entries gradients = gradients_of(node, grads);
    for (size_t i = 1; i < inputs.size(); ++i) {
      gradients.push_back(make_grad_node("zeros_like", node, {inputs[i]}, {})[0]);
    }
    return gradients;
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
  nnvm::Op* grad = add_backward(op, sum_all);
  grad->get_num_inputs = readers_of;
  set_attr(grad, "FInplaceOption", InplaceOption(any), kPriority);
}

}  // namespace gluon_amp
