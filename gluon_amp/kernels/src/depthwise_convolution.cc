// The operator of convolutions with few channels in a group, in the blocked layout: _gluon_amp_depthwise.
//
// It has the attributes of _gluon_amp_blocked_convolution. Its result has the lanes of its data.
#include <algorithm>
#include <vector>

#include "blocked_convolution.h"
#include "depthwise.h"
#include "products.h"
#include "values.h"

namespace gluon_amp {
namespace depthwise {

// Positions under a kernel moved along one row. They are copied at once.
constexpr int64_t kMostPositions = 1 << 22;

Convolution convolution_of(const NodeAttrs& attrs, const mxnet::TShape& data) {
  Convolution c = blocked_convolution::parse(attrs);
  blocked_convolution::set_data(attrs, data, &c);
  c = blocked_convolution::blocked(c);
  CHECK_EQ(c.data_lanes, c.lanes) << attrs.op->name << ": data and result have different lanes";
  const int64_t rows = c.dilate[0] * (c.kernel[0] - 1) + 1, most = std::max(c.channels, c.filters) / c.groups;
  CHECK_LE(rows, kMostPositions / (c.width + 2 * c.pad[1]) / most) << attrs.op->name
                                                                    << ": the kernel is too large";
  return c;
}

const void* read_data(const Convolution& c, const NDArray& data) {
  return moved(Purpose::kImages, values_of<char>(data), c.stored_data(), c.computed_data(), c.channels,
               size_of_value(data));
}

// inputs: data, weight, bias
void convolve(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
              const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  const Convolution c = convolution_of(attrs, inputs[0].shape());
  const NDArray data = plain_copy(inputs[0]);
  const WideParameter weight(inputs[1]), bias(inputs.back());  // without a bias, the weight twice
  forward(c, element_of(attrs, data), read_data(c, data), weight.data(), c.bias ? bias.data() : nullptr,
          result_of<char>(outputs[0]));
}

// inputs: the gradient of the result, data, weight; outputs: the gradients of data, weight, bias
void convolve_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                   const Arrays& outputs) {
  const Convolution c = convolution_of(attrs, inputs[1].shape());
  const NDArray grad = plain_copy(inputs[0]), data = plain_copy(inputs[1]);
  const WideParameter weight(inputs[2]);
  const bool bias = c.bias && req[2] != mxnet::kNullOp;
  const Precision p(element_of(attrs, data));
  const int bytes = size_of_value(data);
  const char* grads = values_of<char>(grad);
  if (req[1] != mxnet::kNullOp || bias) {
    std::vector<float> of_weight(outputs[1].shape().Size()), of_bias(c.filters);
    weight_grad(c, p.element, read_data(c, data), grads, of_weight.data(), bias ? of_bias.data() : nullptr);
    parameter_gradient(outputs[1], req[1], p.rounds_to_half()).write(of_weight);
    if (bias) parameter_gradient(outputs[2], req[2], p.rounds_to_half()).write(of_bias);
  }
  if (req[0] == mxnet::kNullOp) return;
  Result target = result_for(p, outputs[0], req[0]);
  const Blocked computed = c.computed_data(), stored = c.stored_data();
  const bool moves = computed.lanes != stored.lanes;
  void* result = moves ? scratch(Purpose::kImages, computed.size() * bytes) : target.data();
  data_grad(c, p.element, grads, weight.data(), result);
  if (moves) change_lanes(result, computed, target.data(), stored, c.channels, bytes);
  target.finish(false);
}

bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  if (!blocked_convolution::infer_shape(attrs, in, out)) return false;
  convolution_of(attrs, in[0]);
  return true;
}

}  // namespace depthwise

void register_depthwise() {
  add_product("_gluon_amp_depthwise", depthwise::convolve, depthwise::infer_shape,
              depthwise::convolve_grad);
}

}  // namespace gluon_amp
