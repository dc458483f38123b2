// Two-dimensional deconvolutions of images in the blocked layout.
//
// A deconvolution computes the gradient of a convolution's data, from its own data in place of the gradient
// of the result. Both have the same weight. So the primitives are those of this convolution. MXNet's
// operator calls oneDNN's deconvolution, whose gradients fail.
#include <algorithm>
#include <utility>
#include <vector>

#include "blocked_convolution.h"
#include "products.h"
#include "values.h"
#include "vectors.h"

namespace gluon_amp {
namespace blocked_deconvolution {

using blocked_convolution::Convolution;

// The convolution whose data has the shape of the deconvolution's result
Convolution opposite(const NodeAttrs& attrs, const mxnet::TShape& data) {
  Convolution c = blocked_convolution::parse(attrs);
  blocked_convolution::read_images(attrs, data, &c);
  const int64_t lanes = !c.plain_data ? c.data_lanes : c.nhwc ? c.channels : c.lanes;
  blocked_convolution::expect_lanes(attrs, lanes, c.channels);
  c.data_lanes = c.lanes;
  c.lanes = lanes;
  std::swap(c.channels, c.filters);
  c.plain_result = c.plain_data;
  c.plain_data = c.bias = false;
  c.out_height = c.height;
  c.out_width = c.width;
  const Sizes adj = pair_of(attrs, "adj", 0, 0, INT32_MAX);
  const auto size = [&](int64_t in, int i) {
    CHECK_LT(adj[i], c.stride[i]) << attrs.op->name << ": adj must be less than the stride";
    const int64_t result =
        c.stride[i] * (in - 1) + c.dilate[i] * (c.kernel[i] - 1) + 1 - 2 * c.pad[i] + adj[i];
    CHECK(0 < result && result <= INT32_MAX) << attrs.op->name << ": the result has no or too many pixels";
    return result;
  };
  c.height = size(c.out_height, 0);
  c.width = size(c.out_width, 1);
  return c;
}

float value_of(const Bfloat* p) { return One::load(p).x; }
float value_of(const HalfValue* p) { return p->value; }
float value_of(const float* p) { return *p; }
void set_value(Bfloat* p, float value) { One{value}.store(p); }
void set_value(HalfValue* p, float value) { p->value = value; }
void set_value(float* p, float value) { *p = value; }

// Adds the bias to images before they are rounded. By kernels for bfloat16 it is a second rounding.
void add_bias(Element computed, const float* bias, int64_t channels, void* images, const Blocked& shape) {
  with_elements(computed, [&](auto element) {
    auto* values = static_cast<decltype(element)*>(images);
#pragma omp parallel for schedule(static)
    for (int64_t plane = 0; plane < shape.images * shape.groups; ++plane) {
      const int64_t first = plane % shape.groups * shape.lanes;
      const int64_t count = std::min(shape.lanes, channels - first);
      for (int64_t i = 0; i < shape.positions(); ++i) {
        auto* at = values + plane * shape.plane() + i * shape.lanes;
        for (int64_t k = 0; k < count; ++k) set_value(at + k, value_of(at + k) + bias[first + k]);
      }
    }
  });
}

// The sums of the gradient of the result, one for each channel
std::vector<float> bias_grad(Element element, const NDArray& grad, int64_t channels) {
  const Blocked shape(grad.shape());
  std::vector<float> sums(shape.groups * shape.lanes);
  with_elements(element, [&](auto value) {
    const auto* values = values_of<decltype(value)>(grad);
#pragma omp parallel for schedule(static)
    for (int64_t group = 0; group < shape.groups; ++group) {
      float* sum = &sums[group * shape.lanes];
      for (int64_t image = 0; image < shape.images; ++image) {
        const auto* plane = values + (image * shape.groups + group) * shape.plane();
        for (int64_t i = 0; i < shape.plane(); ++i) sum[i % shape.lanes] += value_of(plane + i);
      }
    }
  });
  sums.resize(channels);
  return sums;
}

// inputs: data, weight, bias
void deconvolve(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  const Convolution c = opposite(attrs, inputs[0].shape());
  const NDArray data = plain_copy(inputs[0]);
  const Precision p(attrs, data);
  const Bias bias(p, inputs);
  const auto finish = [&](void* images, const Blocked& shape) {
    if (bias.data()) add_bias(p.computed(), bias.data(), c.channels, images, shape);
  };
  blocked_convolution::write_data_grad(c, p, data, {inputs[1], kept_of(attrs)}, req[0], outputs[0], finish);
}

// inputs: the gradient of the result, data, weight; outputs: the gradients of data, weight and bias
void deconvolve_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                     const Arrays& outputs) {
  if (inputs[1].shape().Size() == 0) return write_zero_gradients(req, outputs);
  const Convolution c = opposite(attrs, inputs[1].shape());
  const NDArray data = plain_copy(inputs[1]);
  const Precision p(attrs, data);
  const bool bias = outputs.size() == 3 && req[2] != mxnet::kNullOp;
  if (bias) {
    const auto sums = bias_grad(p.element, inputs[0], c.channels);
    parameter_gradient(outputs[2], req[2], p.rounds_to_half()).write(sums);
  }
  blocked_convolution::weight_grad(c, p, data, inputs[0], req, outputs);
  blocked_convolution::write_result(c, p, dnnl_forward_training, inputs[0], {inputs[2], Kept::kForOneUse}, nullptr,
                                    req[0], outputs[0]);
}

// The shapes of weight and bias, and of the result if the data's is known
bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  if (!mxnet::shape_is_known(in[0])) return false;
  const Convolution c = opposite(attrs, in[0]);
  const auto result = blocked_shape(c.images, c.channels, c.height, c.width, c.data_lanes);
  return blocked_convolution::unify_parameters(attrs, c, c.channels, result, in, out);
}

}  // namespace blocked_deconvolution

void register_blocked_deconvolution() {
  add_product("_gluon_amp_blocked_deconvolution", blocked_deconvolution::deconvolve,
              blocked_deconvolution::infer_shape, blocked_deconvolution::deconvolve_grad);
}

}  // namespace gluon_amp
