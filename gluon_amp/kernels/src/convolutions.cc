// MXNet's Convolution in bfloat16, with a correct gradient if an image is narrower than the stride.
//
// For the gradient of such a convolution's weight, oneDNN 2.4 reads uninitialized columns of its own
// memory: its kernels split an image into as many parts as the stride has columns, and the last parts
// are empty. So these gradients are computed in float32. In all other cases the operator here calls
// Convolution.
#include <mxnet/c_api.h>

#include <string>
#include <vector>

#include "attributes.h"
#include "operators.h"
#include "values.h"

namespace gluon_amp {
namespace {

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
  const NDArray wide = new_float32(array.shape());
  convert_array(array, mxnet::kWriteTo, wide);
  return wide;
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
  const auto strides = integers_of(attrs, "stride");
  if (data[data.ndim() - 1] >= (strides.empty() ? 1 : strides.back())) {
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
  for (size_t i = 0; i < outputs.size(); ++i) {
    const NDArray wide = plain_copy(wide_outputs[i]);
    Result(outputs[i], req[i], kNoRounding).write_all(values_of<float>(wide));
  }
}

bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  return shapes_of("FInferShape")[nnvm::Op::Get("Convolution")](attrs, in, out);
}

// Gives an operator the attributes, arrays and resources of one of MXNet's.
void make_like(nnvm::Op* op, const char* stock) {
  const nnvm::Op* own = nnvm::Op::Get(stock);
  const auto& resources = resources_of("FResourceRequest");
  set_attr(op, "FResourceRequest", resources[own], kPriority);
  op->attr_parser = own->attr_parser;
  op->num_inputs = own->num_inputs;
  op->num_outputs = own->num_outputs;
  op->get_num_inputs = own->get_num_inputs;
  op->get_num_outputs = own->get_num_outputs;
}

}  // namespace

void register_convolutions() {
  constexpr int kBfloat = mshadow::kBfloat16;
  const Count inputs = nnvm::Op::Get("Convolution")->get_num_inputs;
  nnvm::Op* op = add_op("_gluon_amp_convolution", inputs, 1, convolve, infer_shape, infer_cast<kBfloat, kBfloat>);
  make_like(op, "Convolution");
  make_like(add_gradient(op, 1, convolve_grad, and_all_inputs), "_backward_Convolution");
}

}  // namespace gluon_amp
