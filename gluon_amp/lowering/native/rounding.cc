// Float16 rounding as MXNet operators that work in place and in oneDNN's own layouts.
//
// lib_api.h's operators get plain copies of blocked tensors, give each result a buffer of its own and
// keep inputs and results for the gradient. That is a third of a ResNet-50 step, so these are
// registered with nnvm itself, by the headers in MXNet's wheel.
#include <string>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "nnvm_binary.h"
#include "parallel.h"

namespace gluon_amp {
namespace {

using mxnet::DispatchMode;
using mxnet::NDArray;
using mxnet::OpContext;
using mxnet::OpReqType;

// ------------------------------------------------------------------------------------- the work

// Runs a kernel over float32 arrays of one shape: loop(first input, second or null, result, count).
// The result may be the memory of the first input.
template <typename Loop>
void elementwise(const Arrays& inputs, OpReqType req, const NDArray& output, Loop loop) {
  const int64_t n = output.shape().Size();
  if (req == mxnet::kNullOp || n == 0) return;
  SameOrder ordered(inputs);
  const auto run = [&](int64_t first, int64_t count, float* result) {
    const float* second = inputs.size() > 1 ? ordered.data[1] + first : nullptr;
    loop(ordered.data[0] + first, second, result, count);
  };
  if (req != mxnet::kAddTo) {
    float* result = ordered.result(output);
    in_parallel(n, [&](int64_t first, int64_t count) { run(first, count, result + first); });
    return;
  }
  ordered.to_plain();
  make_plain(output);
  float* sum = plain_data<float>(output);
  in_parallel(n, [&](int64_t first, int64_t count) {
    std::vector<float> result(count);
    run(first, count, result.data());
    kernels().add(result.data(), sum + first, count);
  });
}

void round(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
           const Arrays& outputs) {
  elementwise(inputs, req[0], outputs[0],
              [](const float* in, const float*, float* out, int64_t n) {
                kernels().round(in, out, n);
              });
}

void round_relu(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
                const Arrays& outputs) {
  elementwise(inputs, req[0], outputs[0],
              [](const float* in, const float*, float* out, int64_t n) {
                kernels().round_relu(in, out, n);
              });
}

// inputs: the gradient of the result, and the result
void round_relu_grad(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
                     const Arrays& outputs) {
  elementwise(inputs, req[0], outputs[0],
              [](const float* grad, const float* result, float* out, int64_t n) {
                kernels().round_relu_grad(grad, result, out, n);
              });
}

void narrow(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
            const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  const NDArray plain = plain_copy(inputs[0]);
  const float* in = plain_data<float>(plain);
  half_bits* out = plain_data<half_bits>(outputs[0]);
  in_parallel(plain.shape().Size(), [&](int64_t first, int64_t count) {
    if (req[0] != mxnet::kAddTo) return kernels().narrow(in + first, out + first, count);
    std::vector<half_bits> rounded(count);
    kernels().narrow(in + first, rounded.data(), count);
    kernels().add_half(rounded.data(), out + first, count);
  });
}

void widen(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
           const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  const half_bits* in = plain_data<half_bits>(inputs[0]);
  make_plain(outputs[0]);
  float* out = plain_data<float>(outputs[0]);
  in_parallel(outputs[0].shape().Size(), [&](int64_t first, int64_t count) {
    if (req[0] != mxnet::kAddTo) return kernels().widen(in + first, out + first, count);
    std::vector<float> wide(count);
    kernels().widen(in + first, wide.data(), count);
    kernels().add(wide.data(), out + first, count);
  });
}

// ------------------------------------------------------------------------------ what nnvm asks

// All inputs and outputs have one shape; known sizes spread to where they are unknown.
bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  std::vector<mxnet::TShape*> shapes;
  for (auto& shape : in) shapes.push_back(&shape);
  for (auto& shape : out) shapes.push_back(&shape);
  mxnet::TShape common;
  for (const auto* shape : shapes) {
    if (!mxnet::ndim_is_known(*shape)) continue;
    if (!mxnet::ndim_is_known(common)) common = *shape;
    CHECK_EQ(common.ndim(), shape->ndim()) << attrs.name << ": shapes differ";
    for (int i = 0; i < common.ndim(); ++i) {
      if (!mxnet::dim_size_is_known(*shape, i)) continue;
      if (!mxnet::dim_size_is_known(common, i)) common[i] = (*shape)[i];
      CHECK_EQ(common[i], (*shape)[i]) << attrs.name << ": shapes differ";
    }
  }
  for (auto* shape : shapes) *shape = common;
  return mxnet::shape_is_known(common);
}

constexpr int kFloat = mshadow::kFloat32, kHalf = mshadow::kFloat16;

template <int from, int to>
bool infer_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  const auto expect = [&](int& type, int expected) {
    CHECK(type == -1 || type == expected)
        << attrs.name << " (" << attrs.op->name << "): dtype " << type << ", not " << expected;
    type = expected;
  };
  for (int& type : in) expect(type, from);
  for (int& type : out) expect(type, to);
  return true;
}

bool infer_storage(const NodeAttrs& attrs, NotReadable&, DispatchMode& mode, Ints& in, Ints& out) {
  for (int& type : in) {
    CHECK(type == mxnet::kDefaultStorage || type == mxnet::kUndefinedStorage)
        << attrs.op->name << " takes dense arrays";
    type = mxnet::kDefaultStorage;
  }
  for (int& type : out) type = mxnet::kDefaultStorage;
  mode = DispatchMode::kFComputeEx;
  return true;
}

template <int from, int to>
nnvm::Op* add_op(const std::string& name, int inputs, const Compute& compute) {
  nnvm::Op* op = &register_or_get(dmlc::Registry<nnvm::Op>::Get(), name);
  op->num_inputs = inputs;
  op->num_outputs = 1;
  set_attr(op, "FInferShape", InferShape(infer_shape), kPriority);
  set_attr(op, "FInferType", InferType(infer_type<from, to>), kPriority);
  set_attr(op, "FInferStorageType", InferStorage(infer_storage), kPriority);
  set_attr(op, "FComputeEx<cpu>", compute, kPriority);
  // else MXNet reorders the inputs before it calls
  set_attr(op, "TIsMKLDNN", true, kPriority);
  if (from == to) {
    const auto first = [](const NodeAttrs&) { return std::vector<std::pair<int, int>>{{0, 0}}; };
    set_attr(op, "FInplaceOption", InplaceOption(first), kPriority);
  }
  return op;
}

template <int from, int to>
void add_forward(const std::string& name, const Compute& compute, const std::string& backward,
                 bool grad_reads_result = false) {
  nnvm::Op* op = add_op<from, to>(name, 1, compute);
  op->add_argument("data", "NDArray-or-Symbol", "dense");
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    Entries inputs = grads;
    if (grad_reads_result) inputs.emplace_back(node, 0, 0);
    return make_grad_node(backward.c_str(), node, inputs, node->attrs.dict);
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
}

template <int from, int to>
void add_backward(const std::string& name, int inputs, const Compute& compute) {
  set_attr(add_op<from, to>(name, inputs, compute), "TIsBackward", true, kPriority);
}

}  // namespace

void register_rounding() {
  const std::string round_grad = "_backward_gluon_amp_round";
  add_forward<kFloat, kFloat>("_gluon_amp_round", round, round_grad);
  add_backward<kFloat, kFloat>(round_grad, 1, round);

  const std::string relu_grad = "_backward_gluon_amp_round_relu";
  add_forward<kFloat, kFloat>("_gluon_amp_round_relu", round_relu, relu_grad, true);
  add_backward<kFloat, kFloat>(relu_grad, 2, round_relu_grad);

  const std::string widen_grad = "_backward_gluon_amp_widen";
  add_forward<kHalf, kFloat>("_gluon_amp_widen", widen, widen_grad);
  add_backward<kFloat, kHalf>(widen_grad, 1, narrow);

  const std::string narrow_grad = "_backward_gluon_amp_narrow";
  add_forward<kFloat, kHalf>("_gluon_amp_narrow", narrow, narrow_grad);
  add_backward<kHalf, kFloat>(narrow_grad, 1, widen);
}

}  // namespace gluon_amp
