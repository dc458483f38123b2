// The operator of convolutions with few channels in a group, in the blocked layout: _gluon_amp_depthwise.
//
// It has the attributes of MXNet's Convolution, and the number of the data's `channels`, by default that of
// the result's. The weight is read as the parameter is stored, and its gradient is written in that form.
#include <algorithm>
#include <cstring>
#include <vector>

#include "blocked.h"
#include "depthwise.h"
#include "kernels.h"

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

// A node's attributes, with the sizes of its data
DepthwiseShape shape_of(const NodeAttrs& attrs, const mxnet::TShape& data) {
  DepthwiseShape s;
  CHECK_EQ(data.ndim(), 5) << attrs.op->name << ": the data is not in the blocked layout";
  const Blocked blocked(data);
  s.images = blocked.images;
  s.groups = blocked.groups;
  s.lanes = blocked.lanes;
  s.in_height = blocked.height;
  s.in_width = blocked.width;
  const int64_t filters = integer_of(attrs, "num_filter", 0);
  const int64_t groups = integer_of(attrs, "num_group", 1);
  s.channels = integer_of(attrs, "channels", filters);
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

bool has_bias(const NodeAttrs& attrs) { return !flag_of(attrs, "no_bias"); }

// A weight or bias in float32
class Weight {
 public:
  explicit Weight(const NDArray& array) : plain_(plain_copy(array)) {
    if (plain_.dtype() != mshadow::kFloat16) return;
    wide_.resize(plain_.shape().Size());
    kernels().widen(plain_data<half_bits>(plain_), wide_.data(), wide_.size());
  }
  const float* data() const { return wide_.empty() ? plain_data<float>(plain_) : wide_.data(); }

 private:
  NDArray plain_;
  std::vector<float> wide_;
};

void write_gradient(const std::vector<float>& values, OpReqType req, const NDArray& output) {
  if (req == mxnet::kNullOp) return;
  const int64_t n = values.size();
  const bool adds = req == mxnet::kAddTo;
  if (adds) make_plain(output);
  if (output.dtype() == mshadow::kFloat32) {
    float* out = result_of<float>(output);
    if (adds) {
      kernels().add(values.data(), out, n);
    } else {
      std::memcpy(out, values.data(), n * sizeof(float));
    }
    return;
  }
  half_bits* out = result_of<half_bits>(output);
  if (adds) {
    std::vector<half_bits> rounded(n);
    kernels().narrow(values.data(), rounded.data(), n);
    kernels().add_half(rounded.data(), out, n);
  } else {
    kernels().narrow(values.data(), out, n);
  }
}

// inputs: data, weight, bias
void convolve(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
              const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  const DepthwiseShape shape = shape_of(attrs, inputs[0].shape());
  const NDArray data = plain_copy(inputs[0]);
  const Weight weight(inputs[1]), bias(inputs.back());  // without a bias, the weight twice
  with_elements(data.dtype(), [&](auto element) {
    using T = decltype(element);
    depthwise_forward(shape, values_of<T>(data), weight.data(), has_bias(attrs) ? bias.data() : nullptr,
                      result_of<T>(outputs[0]));
  });
}

// inputs: the gradient of the result, data, weight; outputs: the gradients of data, weight, bias
void convolve_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                   const Arrays& outputs) {
  const DepthwiseShape shape = shape_of(attrs, inputs[1].shape());
  const NDArray grad = plain_copy(inputs[0]), data = plain_copy(inputs[1]);
  const Weight weight(inputs[2]);
  const bool bias = has_bias(attrs) && req[2] != mxnet::kNullOp;
  CHECK_NE(req[0], mxnet::kAddTo);
  with_elements(data.dtype(), [&](auto element) {
    using T = decltype(element);
    if (req[1] != mxnet::kNullOp || bias) {
      std::vector<float> weight_grad(outputs[1].shape().Size()), bias_grad(filters_of(shape));
      depthwise_weight_grad(shape, values_of<T>(data), values_of<T>(grad), weight_grad.data(),
                            bias ? bias_grad.data() : nullptr);
      write_gradient(weight_grad, req[1], outputs[1]);
      if (bias) write_gradient(bias_grad, req[2], outputs[2]);
    }
    if (req[0] != mxnet::kNullOp) {
      depthwise_data_grad(shape, values_of<T>(grad), weight.data(), result_of<T>(outputs[0]));
    }
  });
}

// ------------------------------------------------------------------------------------- inference

bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  expect_inputs(attrs, has_bias(attrs) ? 3 : 2, in.size());
  if (!mxnet::shape_is_known(in[0])) return false;
  const DepthwiseShape s = shape_of(attrs, in[0]);
  const int64_t filters = filters_of(s);
  mxnet::TShape weight(4, filters), bias(1, filters);
  weight[1] = s.group_in;
  weight[2] = s.kernel_h;
  weight[3] = s.kernel_w;
  mxnet::TShape result = blocked_shape(s.images, filters, s.out_height, s.out_width, s.lanes);
  unify(attrs, {&in[1], &weight});
  if (has_bias(attrs)) unify(attrs, {&in[2], &bias});
  unify(attrs, {&out.at(0), &result});
  return true;
}

bool infer_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  expect_inputs(attrs, has_bias(attrs) ? 3 : 2, in.size());
  int& type = in[0];
  if (type == -1) type = out.at(0);
  if (type == -1) return false;
  CHECK(type == mshadow::kFloat32 || type == mshadow::kBfloat16)
      << attrs.op->name << ": data of dtype " << type;
  CHECK(out.at(0) == -1 || out[0] == type) << attrs.op->name << ": the result has another dtype";
  out[0] = type;
  for (size_t i = 1; i < in.size(); ++i) {
    if (in[i] == -1) in[i] = mshadow::kFloat32;
    CHECK(in[i] == mshadow::kFloat32 || (in[i] == mshadow::kFloat16 && type == mshadow::kFloat32))
        << attrs.op->name << ": weight of dtype " << in[i] << " for data of dtype " << type;
  }
  return true;
}

// Calls infer(inputs, outputs) of the operator with those of its gradient.
template <typename List, typename Infer>
bool infer_grad(const NodeAttrs& attrs, List& in, List& out, Infer infer) {
  expect_inputs(attrs, 3, in.size());
  expect_inputs(attrs, has_bias(attrs) ? 3 : 2, out.size());
  List read{in[1], in[2]}, result{in[0]};
  if (has_bias(attrs)) read.push_back(out[2]);
  const bool known = infer(attrs, read, result);
  in = {result[0], read[0], read[1]};
  out = read;
  return known;
}

uint32_t count_arrays(const NodeAttrs& attrs) { return has_bias(attrs) ? 3 : 2; }

}  // namespace depthwise

void register_depthwise() {
  namespace own = depthwise;  // other files have functions of the same names
  const std::string backward = "_backward_gluon_amp_depthwise";
  nnvm::Op* op = add_op("_gluon_amp_depthwise", own::convolve, own::infer_shape, own::infer_type);
  op->get_num_inputs = own::count_arrays;
  op->add_argument("data", "NDArray-or-Symbol", "in the blocked layout");
  op->add_argument("weight", "NDArray-or-Symbol", "(num_filter, channels / num_group, height, width)");
  op->add_argument("bias", "NDArray-or-Symbol", "(num_filter)");
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    const Entries& inputs = inputs_of(node);
    expect_inputs(node->attrs, own::count_arrays(node->attrs), inputs.size());
    return make_grad_node(backward.c_str(), node, {grads[0], inputs[0], inputs[1]}, node->attrs.dict);
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
  const auto shapes = [](const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
    return own::infer_grad(attrs, in, out, own::infer_shape);
  };
  const auto types = [](const NodeAttrs& attrs, Ints& in, Ints& out) {
    return own::infer_grad(attrs, in, out, own::infer_type);
  };
  nnvm::Op* grad = add_op(backward, own::convolve_grad, shapes, types);
  grad->num_inputs = 3;
  grad->get_num_outputs = own::count_arrays;
  set_attr(grad, "TIsBackward", true, kPriority);
}

}  // namespace gluon_amp
