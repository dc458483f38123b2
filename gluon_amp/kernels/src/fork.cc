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
#include "parallel.h"
#include "shapes.h"
#include "sums.h"

namespace gluon_amp {
namespace {

using InputOutput = std::vector<std::pair<int, int>>;

// The attributes that hold the number of a node's arrays
const char kReaders[] = "num_outputs", kAddends[] = "num_args";

bool infer_one_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
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

void sum_all(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
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
  add_arrays(outputs[0].dtype(), values, result_of<char>(outputs[0]), outputs[0].shape().Size());
}

// Adds an operator whose number of inputs is the attribute `count`.
nnvm::Op* add_variadic(const std::string& name, const Compute& compute, const char* count) {
  const auto infer = [=](const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
    expect_inputs(attrs, count_of(attrs, count), in.size());
    return infer_one_shape(attrs, in, out);
  };
  nnvm::Op* op = add_op(name, compute, infer, infer_one_dtype);
  op->num_inputs = nnvm::kVarg;
  op->get_num_inputs = [=](const NodeAttrs& attrs) { return count_of(attrs, count); };
  return op;
}

nnvm::Op* add_sum(const std::string& name, const char* count) {
  nnvm::Op* op = add_variadic(name, sum_all, count);
  const auto in_place = [=](const NodeAttrs& attrs) {
    InputOutput pairs;
    for (uint32_t i = 0; i < count_of(attrs, count); ++i) pairs.emplace_back(i, 0);
    return pairs;
  };
  set_attr(op, "FInplaceOption", InplaceOption(in_place), kPriority);
  return op;
}

void add_fork(const std::string& name, const std::string& backward) {
  nnvm::Op* op = add_variadic(name, fork, kReaders);
  op->get_num_outputs = [](const NodeAttrs& attrs) { return count_of(attrs, kReaders); };
  const auto in_place = [](const NodeAttrs& attrs) {
    InputOutput pairs;
    for (uint32_t i = 0; i < count_of(attrs, kReaders); ++i) pairs.emplace_back(i, i);
    return pairs;
  };
  const auto identical = [](const NodeAttrs& attrs) {
    return std::vector<bool>(count_of(attrs, kReaders), true);
  };
  set_attr(op, "FInplaceOption", InplaceOption(in_place), kPriority);
  set_attr(op, "FInplaceIdentity", InplaceIdentity(identical), kPriority);
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    const Entries& inputs = inputs_of(node);
    expect_inputs(node->attrs, grads.size(), inputs.size());
    Entries gradients = make_grad_node(backward.c_str(), node, grads, node->attrs.dict);
    for (size_t i = 1; i < inputs.size(); ++i) {
      gradients.push_back(make_grad_node("zeros_like", node, {inputs[i]}, {})[0]);
    }
    return gradients;
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
}

}  // namespace

void register_fork() {
  const std::string backward = "_backward_gluon_amp_fork";
  add_fork("_gluon_amp_fork", backward);
  set_attr(add_sum(backward, kReaders), "TIsBackward", true, kPriority);
  nnvm::Op* op = add_sum("_gluon_amp_sum", kAddends);
  const auto gradient = [](const ObjectPtr& node, const Entries& grads) {
    return Entries(inputs_of(node).size(), grads[0]);
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
}

}  // namespace gluon_amp
