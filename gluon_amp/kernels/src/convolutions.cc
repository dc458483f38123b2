// MXNet's Convolution in bfloat16, with a correct gradient if an image is narrower than the stride.
//
// For the gradient of such a convolution's weight, oneDNN 2.4 reads uninitialized columns of its own
// memory: its kernels split an image into as many parts as the stride has columns, and the last parts
// are empty. So these gradients are computed in float32. In all other cases the operator here calls
// Convolution.
#include <mxnet/c_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arrays.h"
#include "attributes.h"
#include "kernels.h"
#include "operators.h"
#include "parallel.h"

namespace gluon_amp {
namespace {

// The last number of an attribute such as "(2, 3)"; 1 if the node does not have it.
int64_t last_number(const NodeAttrs& attrs, const std::string& name) {
  const auto numbers = integers_of(attrs, name);
  return numbers.empty() ? 1 : numbers.back();
}

NDArray new_float32(const mxnet::TShape& shape) {
  const std::vector<uint32_t> sizes(shape.begin(), shape.end());
  NDArrayHandle handle;
  const int error = MXNDArrayCreate(sizes.data(), sizes.size(), mxnet::Context::kCPU, 0, 0, &handle);
  CHECK_EQ(error, 0) << MXGetLastError();
  const NDArray array = *static_cast<NDArray*>(handle);
  MXNDArrayFree(handle);
  return array;
}

NDArray in_float32(const NDArray& array) {
  const NDArray plain = plain_copy(array), wide = new_float32(array.shape());
  const Bfloat* in = plain_data<Bfloat>(plain);
  float* out = plain_data<float>(wide);
  in_parallel(plain.shape().Size(), [&](int64_t first, int64_t count) {
    kernels().from_bfloat(in + first, out + first, count);
  });
  return wide;
}

void round_to(const NDArray& wide, OpReqType req, const NDArray& output) {
  if (req == mxnet::kNullOp) return;
  const NDArray plain = plain_copy(wide);
  make_plain(output);
  const float* in = plain_data<float>(plain);
  Bfloat* out = plain_data<Bfloat>(output);
  in_parallel(plain.shape().Size(), [&](int64_t first, int64_t count) {
    if (req != mxnet::kAddTo) return kernels().to_bfloat(in + first, out + first, count);
    float sum[kBlock];
    kernels().from_bfloat(out + first, sum, count);
    kernels().add(in + first, sum, count);
    kernels().to_bfloat(sum, out + first, count);
  });
}

void convolve(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
              const Requests& req, const Arrays& outputs) {
  compute_of("Convolution")(attrs, context, inputs, req, outputs);
}

// inputs: the gradient of the result, data, weight, bias; outputs: the gradients of the last three
void convolve_grad(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
                   const Requests& req, const Arrays& outputs) {
  const Compute& compute = compute_of("_backward_Convolution");
  const mxnet::TShape& data = inputs[1].shape();
  if (data[data.ndim() - 1] >= last_number(attrs, "stride")) {
    return compute(attrs, context, inputs, req, outputs);
  }
  Arrays wide_inputs, wide_outputs;
  Requests write;
  for (const auto& input : inputs) wide_inputs.push_back(in_float32(input));
  for (size_t i = 0; i < outputs.size(); ++i) {
    wide_outputs.push_back(new_float32(outputs[i].shape()));
    write.push_back(req[i] == mxnet::kNullOp ? mxnet::kNullOp : mxnet::kWriteTo);
  }
  compute(attrs, context, wide_inputs, write, wide_outputs);
  for (size_t i = 0; i < outputs.size(); ++i) round_to(wide_outputs[i], req[i], outputs[i]);
}

bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  return shapes_of("FInferShape")[nnvm::Op::Get("Convolution")](attrs, in, out);
}

bool infer_grad_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  expect_inputs(attrs, out.size() + 1, in.size());
  mxnet::ShapeVector read(in.begin() + 1, in.end()), result{in[0]};
  const bool known = infer_shape(attrs, read, result);
  std::copy(read.begin(), read.end(), in.begin() + 1);
  in[0] = result[0];
  out = read;
  return known;
}

// Adds an operator of bfloat16 arrays that has the attributes of one of MXNet's operators.
nnvm::Op* add_like(const std::string& name, const char* stock, const Compute& compute,
                   const InferShape& infer_shape) {
  constexpr int kBfloat = mshadow::kBfloat16;
  const nnvm::Op* own = nnvm::Op::Get(stock);
  nnvm::Op* op = add_op(name, compute, infer_shape, infer_cast<kBfloat, kBfloat>);
  const auto& resources = resources_of("FResourceRequest");
  set_attr(op, "FResourceRequest", resources[own], kPriority);
  op->attr_parser = own->attr_parser;
  op->num_inputs = own->num_inputs;
  op->num_outputs = own->num_outputs;
  op->get_num_inputs = own->get_num_inputs;
  op->get_num_outputs = own->get_num_outputs;
  return op;
}

}  // namespace

void register_convolutions() {
  const std::string backward = "_backward_gluon_amp_convolution";
  nnvm::Op* op = add_like("_gluon_amp_convolution", "Convolution", convolve, infer_shape);
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    Entries inputs = grads;
    for (const auto& input : inputs_of(node)) inputs.push_back(input);
    return make_grad_node(backward.c_str(), node, inputs, node->attrs.dict);
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
  nnvm::Op* grad = add_like(backward, "_backward_Convolution", convolve_grad, infer_grad_shape);
  set_attr(grad, "TIsBackward", true, kPriority);
}

}  // namespace gluon_amp
