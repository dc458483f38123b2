// Registers operators with nnvm, with functions that infer shapes, dtypes and storage types. They raise
// the errors in an operator's arrays, so that the call itself fails.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nnvm_binary.h"

namespace gluon_amp {

using mxnet::DispatchMode;
using mxnet::NDArray;
using mxnet::OpContext;
using mxnet::OpReqType;

// Sets the sizes of all these shapes that are known for any of them. Returns whether all are known.
inline bool unify(const NodeAttrs& attrs, const std::vector<mxnet::TShape*>& shapes) {
  mxnet::TShape common;
  for (const auto* shape : shapes) {
    if (!mxnet::ndim_is_known(*shape)) continue;
    if (!mxnet::ndim_is_known(common)) common = *shape;
    CHECK_EQ(common.ndim(), shape->ndim()) << attrs.op->name << ": shapes differ";
    for (int i = 0; i < common.ndim(); ++i) {
      if (!mxnet::dim_size_is_known(*shape, i)) continue;
      if (!mxnet::dim_size_is_known(common, i)) common[i] = (*shape)[i];
      CHECK_EQ(common[i], (*shape)[i]) << attrs.op->name << ": shapes differ";
    }
  }
  for (auto* shape : shapes) *shape = common;
  return mxnet::shape_is_known(common);
}

// A node of a graph that was read from a file may have any number of inputs, despite num_inputs.
inline void expect_inputs(const NodeAttrs& attrs, size_t expected, size_t count) {
  CHECK_EQ(count, expected) << attrs.op->name << " expects " << expected << " arrays";
}

inline bool infer_storage(const NodeAttrs& attrs, NotReadable&, DispatchMode& mode, Ints& in,
                          Ints& out) {
  for (int& type : in) {
    CHECK(type == mxnet::kDefaultStorage || type == mxnet::kUndefinedStorage)
        << attrs.op->name << " expects dense arrays";
    type = mxnet::kDefaultStorage;
  }
  for (int& type : out) type = mxnet::kDefaultStorage;
  mode = DispatchMode::kFComputeEx;
  return true;
}

// FComputeEx<cpu> of one of MXNet's own operators
inline const Compute& compute_of(const char* op) {
  static const auto& all = computes_of("FComputeEx<cpu>");
  return all[nnvm::Op::Get(op)];
}

// Adds an operator of dense arrays with one output.
inline nnvm::Op* add_op(const std::string& name, const Compute& compute, const InferShape& shapes,
                        const InferType& types) {
  nnvm::Op* op = &register_or_get(dmlc::Registry<nnvm::Op>::Get(), name);
  op->num_outputs = 1;
  set_attr(op, "FInferShape", shapes, kPriority);
  set_attr(op, "FInferType", types, kPriority);
  set_attr(op, "FInferStorageType", InferStorage(infer_storage), kPriority);
  set_attr(op, "FComputeEx<cpu>", compute, kPriority);
  // Without it, MXNet converts the inputs to the plain layout before each call.
  set_attr(op, "TIsMKLDNN", true, kPriority);
  return op;
}

// Names the outputs, of which the first are visible, as MXNet's operator of the same values does.
inline void set_outputs(nnvm::Op* op, const Names& names, const Count& visible) {
  set_attr(op, "FListOutputNames", names, kPriority);
  set_attr(op, "FNumVisibleOutputs", visible, kPriority);
}

// Lets MXNet write the first output to the memory of the first input.
inline void may_work_in_place(nnvm::Op* op) {
  const auto first = [](const NodeAttrs&) { return std::vector<std::pair<int, int>>{{0, 0}}; };
  set_attr(op, "FInplaceOption", InplaceOption(first), kPriority);
}

template <typename List>
bool refuse_alone(const NodeAttrs& attrs, List&, List&) {
  LOG(FATAL) << attrs.op->name << " computes a gradient, and is no operator by itself";
  return false;
}

// Adds the operator of a gradient, of one input unless the caller changes that. MXNet infers its shapes and
// dtypes from those of `forward`, and calls its own functions only for a graph that has it without `forward`.
inline nnvm::Op* add_backward(const nnvm::Op* forward, const Compute& compute) {
  nnvm::Op* op = add_op("_backward" + forward->name, compute, refuse_alone<mxnet::ShapeVector>,
                        refuse_alone<Ints>);
  op->num_inputs = 1;
  set_attr(op, "TIsBackward", true, kPriority);
  return op;
}

// The gradients of a node's inputs, by the operator of add_backward, which reads `inputs`
inline Entries gradients_of(const ObjectPtr& node, const Entries& inputs) {
  return make_grad_node(("_backward" + node->op()->name).c_str(), node, inputs, node->attrs.dict);
}

// Adds the gradient of an operator. read(node, gradients of its results) returns what the gradient reads.
template <typename Read>
nnvm::Op* add_gradient(nnvm::Op* op, const Compute& compute, Read read) {
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    return gradients_of(node, read(node, grads));
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
  return add_backward(op, compute);
}

// What a gradient reads that needs only those of the results
inline Entries only_gradients(const ObjectPtr&, const Entries& grads) { return grads; }

template <int from, int to>
bool infer_cast(const NodeAttrs& attrs, Ints& in, Ints& out) {
  const auto expect = [&](int& type, int expected) {
    CHECK(type == -1 || type == expected)
        << attrs.name << " (" << attrs.op->name << "): dtype " << type << ", not " << expected;
    type = expected;
  };
  for (int& type : in) expect(type, from);
  for (int& type : out) expect(type, to);
  return true;
}

// Adds an operator whose inputs and output have the same shape; the inputs have the same dtype.
template <int from, int to>
nnvm::Op* add_elementwise(const std::string& name, uint32_t inputs, const Compute& compute) {
  const auto infer_shape = [=](const NodeAttrs& attrs, mxnet::ShapeVector& in,
                               mxnet::ShapeVector& out) {
    expect_inputs(attrs, inputs, in.size());
    std::vector<mxnet::TShape*> shapes{&out.at(0)};
    for (auto& shape : in) shapes.push_back(&shape);
    return unify(attrs, shapes);
  };
  nnvm::Op* op = add_op(name, compute, infer_shape, infer_cast<from, to>);
  op->num_inputs = inputs;
  if (from == to) may_work_in_place(op);
  return op;
}

// Adds such an operator of one input, and its gradient.
template <int from, int to, typename Read = decltype(&only_gradients)>
nnvm::Op* add_with_gradient(const std::string& name, const Compute& compute, const Compute& compute_grad,
                            Read read = only_gradients) {
  nnvm::Op* op = add_elementwise<from, to>(name, 1, compute);
  nnvm::Op* grad = add_gradient(op, compute_grad, read);
  if (from == to) may_work_in_place(grad);
  return grad;
}

}  // namespace gluon_amp
