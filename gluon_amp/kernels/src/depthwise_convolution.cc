// The operator of convolutions with few channels in a group, in the blocked layout: _gluon_amp_depthwise.
//
// It has the attributes of MXNet's Convolution, and the number of the data's `channels`, by default that of
// the result's. With `plain_data` it reads plain images, and writes `lanes` side by side, or all channels if
// that is 0. The weight is read as the parameter is stored, and its gradient is written in that form.
#include <algorithm>
#include <vector>

#include "blocked.h"
#include "depthwise.h"
#include "products.h"

namespace gluon_amp {
namespace depthwise {

// Larger numbers could overflow in products.
constexpr int64_t kLargest = 1 << 20;
// Positions under a kernel moved along one row. They are copied at once.
constexpr int64_t kMostPositions = 1 << 22;

void read_pair(const NodeAttrs& attrs, const char* name, int64_t least, int64_t missing, int64_t* first,
               int64_t* second) {
  std::vector<int64_t> numbers = integers_of(attrs, name);
  if (numbers.empty() && missing >= least) numbers = {missing, missing};
  CHECK_EQ(numbers.size(), 2) << attrs.op->name << ": " << name << " must be two numbers";
  for (int64_t number : numbers) {
    CHECK(least <= number && number <= kLargest) << attrs.op->name << ": " << name << " of " << number;
  }
  *first = numbers[0];
  *second = numbers[1];
}

int64_t size_of_result(const NodeAttrs& attrs, int64_t in, int64_t kernel, int64_t stride, int64_t pad,
                       int64_t dilate) {
  const int64_t left = in + 2 * pad - dilate * (kernel - 1) - 1;
  CHECK_GE(left, 0) << attrs.op->name << ": the kernel is larger than the padded image";
  return left / stride + 1;
}

// The shape of plain images in the blocked layout
Blocked blocked_images(const NodeAttrs& attrs, const mxnet::TShape& images) {
  const int64_t lanes = integer_of(attrs, "lanes", 16);
  CHECK(lanes >= 0 && images[1] > 0) << attrs.op->name << ": no lanes or channels";
  return Blocked(blocked_shape(images[0], images[1], images[2], images[3], lanes ? lanes : images[1]));
}

// A node's attributes, with the sizes of its data
DepthwiseShape shape_of(const NodeAttrs& attrs, const mxnet::TShape& data) {
  DepthwiseShape s;
  const bool plain = flag_of(attrs, "plain_data");
  CHECK_EQ(data.ndim(), plain ? 4 : 5) << attrs.op->name << ": the data has another layout";
  const Blocked blocked = plain ? blocked_images(attrs, data) : Blocked(data);
  s.images = blocked.images;
  s.groups = blocked.groups;
  s.lanes = blocked.lanes;
  s.in_height = blocked.height;
  s.in_width = blocked.width;
  const int64_t filters = integer_of(attrs, "num_filter", 0);
  const int64_t groups = integer_of(attrs, "num_group", 1);
  s.channels = plain ? data[1] : integer_of(attrs, "channels", filters);
  CHECK(groups > 0 && filters > 0 && filters % groups == 0 && s.channels % groups == 0)
      << attrs.op->name << ": num_group must divide channels and num_filter";
  s.group_in = s.channels / groups;
  s.group_out = filters / groups;
  CHECK(s.channels > 0 && s.lanes > 0 && (s.channels + s.lanes - 1) / s.lanes == s.groups)
      << attrs.op->name << ": the data does not have " << s.channels << " channels";
  CHECK(s.in_height > 0 && s.in_width > 0) << attrs.op->name << ": the images are empty";
  read_pair(attrs, "kernel", 1, 0, &s.kernel_h, &s.kernel_w);
  read_pair(attrs, "stride", 1, 1, &s.stride_h, &s.stride_w);
  read_pair(attrs, "pad", 0, 0, &s.pad_h, &s.pad_w);
  read_pair(attrs, "dilate", 1, 1, &s.dilate_h, &s.dilate_w);
  s.out_height = size_of_result(attrs, s.in_height, s.kernel_h, s.stride_h, s.pad_h, s.dilate_h);
  s.out_width = size_of_result(attrs, s.in_width, s.kernel_w, s.stride_w, s.pad_w, s.dilate_w);
  const int64_t rows = s.dilate_h * (s.kernel_h - 1) + 1;
  CHECK_LE(rows, kMostPositions / (s.in_width + 2 * s.pad_w) / std::max(s.group_in, s.group_out))
      << attrs.op->name << ": the kernel is too large";
  return s;
}

int64_t filters_of(const DepthwiseShape& s) { return s.channels / s.group_in * s.group_out; }

// Reads the data in the blocked layout; the caller must keep the array.
const void* read_data(const NodeAttrs& attrs, const NDArray& data) {
  if (!flag_of(attrs, "plain_data")) return values_of<void>(data);
  return moved(Purpose::kImages, true, data, data.shape()[1], blocked_images(attrs, data.shape()));
}

// inputs: data, weight, bias
void convolve(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
              const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  const DepthwiseShape shape = shape_of(attrs, inputs[0].shape());
  const NDArray data = plain_copy(inputs[0]);
  const WideParameter weight(inputs[1]), bias(inputs.back());  // without a bias, the weight twice
  with_elements(data.dtype(), [&](auto element) {
    using T = decltype(element);
    const T* values = static_cast<const T*>(read_data(attrs, data));
    depthwise_forward(shape, values, weight.data(), product_inputs(attrs) == 3 ? bias.data() : nullptr,
                      result_of<T>(outputs[0]));
  });
}

// inputs: the gradient of the result, data, weight; outputs: the gradients of data, weight, bias
void convolve_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                   const Arrays& outputs) {
  const DepthwiseShape shape = shape_of(attrs, inputs[1].shape());
  const NDArray grad = plain_copy(inputs[0]), data = plain_copy(inputs[1]);
  const WideParameter weight(inputs[2]);
  const bool bias = outputs.size() == 3 && req[2] != mxnet::kNullOp;
  const bool emulated = data.dtype() == mshadow::kFloat32;
  with_elements(data.dtype(), [&](auto element) {
    using T = decltype(element);
    if (req[1] != mxnet::kNullOp || bias) {
      std::vector<float> weight_grad(outputs[1].shape().Size()), bias_grad(filters_of(shape));
      const T* values = static_cast<const T*>(read_data(attrs, data));
      depthwise_weight_grad(shape, values, values_of<T>(grad), weight_grad.data(),
                            bias ? bias_grad.data() : nullptr);
      write_gradient(weight_grad, req[1], emulated, outputs[1]);
      if (bias) write_gradient(bias_grad, req[2], emulated, outputs[2]);
    }
    if (req[0] == mxnet::kNullOp) return;
    Result target(outputs[0], req[0]);
    const bool plain = flag_of(attrs, "plain_data");
    const Blocked images = plain ? blocked_images(attrs, outputs[0].shape()) : Blocked(outputs[0].shape());
    void* blocked = plain ? scratch(Purpose::kImages, images.size() * sizeof(T)) : target.data();
    depthwise_data_grad(shape, values_of<T>(grad), weight.data(), static_cast<T*>(blocked));
    if (plain) to_plain(blocked, target.data(), shape.channels, images, sizeof(T));
    target.add();
  });
}

// ------------------------------------------------------------------------------------- inference

bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  expect_inputs(attrs, product_inputs(attrs), in.size());
  if (!mxnet::shape_is_known(in[0])) return false;
  const DepthwiseShape s = shape_of(attrs, in[0]);
  const int64_t filters = filters_of(s);
  mxnet::TShape weight(4, filters), bias(1, filters);
  weight[1] = s.group_in;
  weight[2] = s.kernel_h;
  weight[3] = s.kernel_w;
  mxnet::TShape result = blocked_shape(s.images, filters, s.out_height, s.out_width, s.lanes);
  unify(attrs, {&in[1], &weight});
  if (in.size() == 3) unify(attrs, {&in[2], &bias});
  unify(attrs, {&out.at(0), &result});
  return true;
}

}  // namespace depthwise

void register_depthwise() {
  add_product("_gluon_amp_depthwise", depthwise::convolve, depthwise::infer_shape,
              depthwise::convolve_grad);
}

}  // namespace gluon_amp
