// Registers operators with nnvm, with functions that infer shapes, dtypes and storage types. They raise
// the errors in an operator's arrays, so that the call itself fails.
#pragma once

#include <string>
#include <type_traits>
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

// Arrays of one shape
inline bool infer_one_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  std::vector<mxnet::TShape*> shapes;
  for (auto* some : {&in, &out}) {
    for (auto& shape : *some) shapes.push_back(&shape);
  }
  return unify(attrs, shapes);
}

// A node of a graph that was read from a file may have any number of inputs, despite its operator's.
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

// How many arrays an operator reads or writes: a number, or a function of a node's attributes
class Arity {
 public:
  Arity(int number) : count_([number](const NodeAttrs&) -> uint32_t { return number; }) {}
  template <typename Function, typename = typename std::enable_if<!std::is_integral<Function>::value>::type>
  Arity(Function count) : count_(count) {}
  const Count& count() const { return count_; }

 private:
  Count count_;
};

// Adds an operator of dense arrays, without functions that infer shapes and dtypes.
inline nnvm::Op* add_bare(const std::string& name, const Arity& inputs, const Arity& outputs,
                          const Compute& compute) {
  nnvm::Op* op = &register_or_get(dmlc::Registry<nnvm::Op>::Get(), name);
  op->get_num_inputs = inputs.count();
  op->get_num_outputs = outputs.count();
  set_attr(op, "FInferStorageType", InferStorage(infer_storage), kPriority);
  set_attr(op, "FComputeEx<cpu>", compute, kPriority);
  // Without it, MXNet converts the inputs to the plain layout before each call.
  set_attr(op, "TIsMKLDNN", true, kPriority);
  return op;
}

// Adds an operator. The functions that infer are only called with the number of inputs that it has.
template <typename Shapes, typename Types>
nnvm::Op* add_op(const std::string& name, const Arity& inputs, const Arity& outputs, const Compute& compute,
                 Shapes shapes, Types types) {
  nnvm::Op* op = add_bare(name, inputs, outputs, compute);
  const Count count = inputs.count();
  const auto infer_shape = [=](const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
    expect_inputs(attrs, count(attrs), in.size());
    return shapes(attrs, in, out);
  };
  const auto infer_type = [=](const NodeAttrs& attrs, Ints& in, Ints& out) {
    expect_inputs(attrs, count(attrs), in.size());
    return types(attrs, in, out);
  };
  set_attr(op, "FInferShape", InferShape(infer_shape), kPriority);
  set_attr(op, "FInferType", InferType(infer_type), kPriority);
  return op;
}

// Hides the outputs behind the first ones.
inline void set_visible(nnvm::Op* op, const Arity& outputs) {
  set_attr(op, "FNumVisibleOutputs", outputs.count(), kPriority);
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

inline Entries only_these(const ObjectPtr&, const Entries& gradients) { return gradients; }

// Adds the gradient of an operator. It reads what read(node, gradients of its results) returns, `inputs`
// arrays, and writes the gradients of all inputs, or others that complete(node, gradients) makes these.
// MXNet infers its shapes and dtypes from those of `op`, and calls its own functions only for a graph that
// has it without `op`.
template <typename Read, typename Complete = decltype(&only_these)>
nnvm::Op* add_gradient(nnvm::Op* op, const Arity& inputs, const Compute& compute, Read read,
                       Complete complete = only_these) {
  const Count count = op->get_num_inputs;
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    expect_inputs(node->attrs, count(node->attrs), inputs_of(node).size());
    const auto name = "_backward" + node->op()->name;
    return complete(node, make_grad_node(name.c_str(), node, read(node, grads), node->attrs.dict));
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
  nnvm::Op* grad = add_bare("_backward" + op->name, inputs, count, compute);
  set_attr(grad, "FInferShape", InferShape(refuse_alone<mxnet::ShapeVector>), kPriority);
  set_attr(grad, "FInferType", InferType(refuse_alone<Ints>), kPriority);
  set_attr(grad, "TIsBackward", true, kPriority);
  return grad;
}

// What a gradient reads: the gradients of the results; the first one and the result; the first one and the
// first inputs; all of them and all inputs
inline Entries only_gradients(const ObjectPtr&, const Entries& grads) { return grads; }
inline Entries and_result(const ObjectPtr& node, const Entries& grads) { return {grads[0], {node, 0, 0}}; }
template <int count>
Entries and_inputs(const ObjectPtr& node, const Entries& grads) {
  Entries entries{grads[0]};
  entries.insert(entries.end(), inputs_of(node).begin(), inputs_of(node).begin() + count);
  return entries;
}
inline Entries and_all_inputs(const ObjectPtr& node, const Entries& grads) {
  Entries entries = grads;
  entries.insert(entries.end(), inputs_of(node).begin(), inputs_of(node).end());
  return entries;
}

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
nnvm::Op* add_elementwise(const std::string& name, int inputs, const Compute& compute) {
  nnvm::Op* op = add_op(name, inputs, 1, compute, infer_one_shape, infer_cast<from, to>);
  if (from == to) may_work_in_place(op);
  return op;
}

// Adds such an operator of one input, and its gradient, which reads `inputs` arrays.
template <int from, int to, typename Read>
void add_with_gradient(const std::string& name, int inputs, const Compute& compute, const Compute& compute_grad,
                       Read read) {
  nnvm::Op* grad = add_gradient(add_elementwise<from, to>(name, 1, compute), inputs, compute_grad, read);
  if (from == to) may_work_in_place(grad);
}

}  // namespace gluon_amp
