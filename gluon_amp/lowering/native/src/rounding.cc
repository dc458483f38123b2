// Operators that round to a format in place and in oneDNN's own layouts.
//
// Operators of MXNet's extension interface (lib_api.h) get plain copies of blocked tensors, allocate a
// buffer for each result and keep inputs and results for the gradient. That would take a third of a
// ResNet-50 step, so these operators are registered with nnvm itself, by the headers in MXNet's wheel.
#include <limits>
#include <string>

#include "arrays.h"
#include "attributes.h"
#include "kernels.h"
#include "operators.h"
#include "parallel.h"

namespace gluon_amp {
namespace {

// ------------------------------------------------------------------------------------- the work

// Runs a kernel over float32 arrays of the same shape: loop(first input, second input or null, result,
// count). The result may be the memory of the first input.
template <typename Loop>
void elementwise(const Arrays& inputs, OpReqType req, const NDArray& output, Loop loop) {
  const int64_t n = output.shape().Size();
  if (req == mxnet::kNullOp || n == 0) return;
  SameLayout arrays(inputs);
  const auto run = [&](int64_t first, int64_t count, float* result) {
    const float* second = inputs.size() > 1 ? arrays.data[1] + first : nullptr;
    loop(arrays.data[0] + first, second, result, count);
  };
  if (req != mxnet::kAddTo) {
    float* result = arrays.result(output);
    in_parallel(n, [&](int64_t first, int64_t count) { run(first, count, result + first); });
    return;
  }
  arrays.to_plain();
  make_plain(output);
  float* sum = plain_data<float>(output);
  in_parallel(n, [&](int64_t first, int64_t count) {
    float result[kBlock];
    run(first, count, result);
    kernels().add(result, sum + first, count);
  });
}

// The format that a node rounds to, float16 if it has no attributes
Format format_of(const NodeAttrs& attrs) {
  if (text_of(attrs, "significand_bits").empty()) return kFloat16;
  Format f;
  f.significand_bits = static_cast<int>(integer_of(attrs, "significand_bits", 0));
  f.bias = static_cast<int>(integer_of(attrs, "bias", 0));
  f.largest = static_cast<float>(number_of(attrs, "largest", 0));
  f.overflow = static_cast<float>(number_of(attrs, "overflow", 0));
  f.subnormals = flag_of(attrs, "subnormals");
  CHECK(1 <= f.significand_bits && f.significand_bits <= 22 && 1 <= f.bias && f.bias <= 127)
      << attrs.op->name << " expects significands of 1 to 22 bits, and a bias from 1 to 127";
  CHECK(0 < f.largest && f.largest <= std::numeric_limits<float>::max() && !(f.overflow < f.largest))
      << attrs.op->name << " expects a largest finite number, and not less where it overflows";
  return f;
}

void round(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
           const Arrays& outputs) {
  elementwise(inputs, req[0], outputs[0],
              [f = format_of(attrs)](const float* in, const float*, float* out, int64_t n) {
                kernels().round(in, out, n, f);
              });
}

void round_relu(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                const Arrays& outputs) {
  elementwise(inputs, req[0], outputs[0],
              [f = format_of(attrs)](const float* in, const float*, float* out, int64_t n) {
                kernels().round_relu(in, out, n, f);
              });
}

// inputs: the gradient of the result, and the result
void round_relu_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs,
                     const Requests& req, const Arrays& outputs) {
  elementwise(inputs, req[0], outputs[0],
              [f = format_of(attrs)](const float* grad, const float* result, float* out, int64_t n) {
                kernels().round_relu_grad(grad, result, out, n, f);
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
    half_bits rounded[kBlock];
    kernels().narrow(in + first, rounded, count);
    kernels().add_half(rounded, out + first, count);
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
    float wide[kBlock];
    kernels().widen(in + first, wide, count);
    kernels().add(wide, out + first, count);
  });
}

}  // namespace

constexpr int kFloat = mshadow::kFloat32, kHalf = mshadow::kFloat16;

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
