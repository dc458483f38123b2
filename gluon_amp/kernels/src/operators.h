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
  if (from == to) {
    const auto first = [](const NodeAttrs&) { return std::vector<std::pair<int, int>>{{0, 0}}; };
    set_attr(op, "FInplaceOption", InplaceOption(first), kPriority);
  }
  return op;
}

template <int from, int to>
void add_forward(const std::string& name, const Compute& compute, const std::string& backward,
                 bool grad_reads_result = false) {
  nnvm::Op* op = add_elementwise<from, to>(name, 1, compute);
  op->add_argument("data", "NDArray-or-Symbol", "dense");
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    Entries inputs = grads;
    if (grad_reads_result) inputs.emplace_back(node, 0, 0);
    return make_grad_node(backward.c_str(), node, inputs, node->attrs.dict);
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
}

template <int from, int to>
void add_backward(const std::string& name, uint32_t inputs, const Compute& compute) {
  set_attr(add_elementwise<from, to>(name, inputs, compute), "TIsBackward", true, kPriority);
}

}  // namespace gluon_amp
