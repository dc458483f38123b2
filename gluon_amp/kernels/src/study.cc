// Matrix products in formats that are emulated for study: operators that round their operands and the
// gradients of their results, with a power of two for each tensor that brings it into an 8-bit format.
//
// That scale follows from the largest magnitudes of earlier steps (../../delayed_scaling.py). A training
// pass reads a tensor once more, to record its largest magnitude.
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>

#include "operators.h"
#include "rounding.h"

namespace gluon_amp {
namespace {

// ---------------------------------------------------------------------------------- scales

constexpr int kUnknown = 1 << 20;  // no exponent

// The scale of a tensor is 2**exponent.
struct Scale {
  std::atomic<int> exponent{kUnknown};
  std::atomic<float> largest{0};  // magnitude since it was taken, of all devices

  void record(float magnitude) {
    float before = largest.load();
    while (before < magnitude && !largest.compare_exchange_weak(before, magnitude)) {
    }
  }
};

std::mutex scales_mutex;
std::deque<Scale> scales;  // a deque moves no element when it grows

int add_scale() {
  const std::lock_guard<std::mutex> lock(scales_mutex);
  scales.emplace_back();
  return static_cast<int>(scales.size()) - 1;
}

// The scale with a number; null if there is none.
Scale* scale_at(int64_t number) {
  const std::lock_guard<std::mutex> lock(scales_mutex);
  const bool exists = 0 <= number && number < static_cast<int64_t>(scales.size());
  return exists ? &scales[number] : nullptr;
}

// The scale of a node; null for one without a number, which follows the tensor itself.
Scale* scale_of(const NodeAttrs& attrs) {
  const int64_t number = integer_of(attrs, "scale", -1);
  Scale* scale = scale_at(number);
  CHECK(scale || number == -1) << attrs.op->name << " expects the number of a scale, not " << number;
  return scale;
}

// The exponent of the largest power of two that keeps a magnitude in a format; exponent_for in
// ../../formats.py is the same.
int exponent_for(const Format& format, float magnitude) {
  if (!(0 < magnitude && magnitude <= std::numeric_limits<float>::max())) return 0;
  int of_magnitude, of_largest;
  const float fraction = std::frexp(magnitude, &of_magnitude);
  const float limit = std::frexp(format.largest, &of_largest);
  return std::min(of_largest - of_magnitude - (fraction > limit), 126);
}

// ----------------------------------------------------------------------------- the operators

float largest_magnitude(const NDArray& array) {
  const int64_t n = array.shape().Size();
  if (n == 0) return 0;
  const SameLayout arrays({array});
  const float* values = arrays.data[0];
  float result = 0;
#pragma omp parallel for schedule(static) reduction(max : result) if (n > 2 * kBlock)
  for (int64_t first = 0; first < n; first += kBlock) {
    result = std::max(result, kernels().largest(values + first, std::min(kBlock, n - first)));
  }
  return result;
}

// The exponent of a scaled node's scale; a training pass records the tensor's magnitude.
int exponent_of(const NodeAttrs& attrs, const Format& format, const NDArray& array, bool is_training) {
  Scale* scale = scale_of(attrs);
  const int exponent = scale ? scale->exponent.load() : kUnknown;
  if (exponent != kUnknown && !is_training) return exponent;
  const float largest = largest_magnitude(array);
  if (scale && is_training) scale->record(largest);
  return exponent == kUnknown ? exponent_for(format, largest) : exponent;
}

void round_scaled(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
                  const Requests& req, const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  const Format format = format_of(attrs);
  int exponent = 0;
  if (flag_of(attrs, "scaled")) exponent = exponent_of(attrs, format, inputs[0], context.is_train);
  elementwise(inputs, req[0], outputs[0],
              [=](const float* in, const float*, float* out, int64_t n) {
                kernels().round_scaled(in, out, n, format, exponent);
              });
}

// Returns its first input.
void first_of(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
              const Arrays& outputs) {
  elementwise({inputs[0]}, req[0], outputs[0],
              [](const float* in, const float*, float* out, int64_t n) {
                if (in != out) std::memcpy(out, in, n * sizeof(float));
              });
}

constexpr int kFloat32 = mshadow::kFloat32;

}  // namespace

void register_study() {
  const auto to_all_inputs = [](const ObjectPtr& node, const Entries& grads) {
    return Entries(inputs_of(node).size(), grads[0]);
  };

  // Its gradient is that of its result: the operand of a product has no gradient of its own.
  nnvm::Op* op = add_elementwise<kFloat32, kFloat32>("_gluon_amp_round_operand", 1, round_scaled);
  set_attr(op, "FGradient", Gradient(to_all_inputs), kPriority);

  // Returns its input, and rounds the gradient.
  add_with_gradient<kFloat32, kFloat32>("_gluon_amp_round_gradient", 1, first_of, round_scaled, only_gradients);

  // Two computations of one result, of which the first is returned and both are differentiated.
  op = add_elementwise<kFloat32, kFloat32>("_gluon_amp_first_of_two", 2, first_of);
  set_attr(op, "FGradient", Gradient(to_all_inputs), kPriority);
}

}  // namespace gluon_amp
