// Operators that round to a format in place and in oneDNN's own layouts.
//
// Operators of MXNet's extension interface (lib_api.h) get plain copies of blocked tensors, allocate a
// buffer for each result and keep inputs and results for the gradient. That would take a third of a
// ResNet-50 step, so these operators are registered with nnvm itself, by the headers in MXNet's wheel.
#include "rounding.h"

#include "kernels.h"
#include "operators.h"
#include "values.h"

namespace gluon_amp {
namespace {

// ------------------------------------------------------------------------------------- the work

// Rounds by one of the kernels.
template <decltype(&Kernels::round) kernel>
void round(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
           const Arrays& outputs) {
  elementwise(inputs, req[0], outputs[0],
              [f = format_of(attrs)](const float* in, const float*, float* out, int64_t n) {
                (kernels().*kernel)(in, out, n, f);
              });
}

// With the attribute `rounded`, the values are those of the format already, and gradients alone are rounded.
void round_unrounded(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
                     const Requests& req, const Arrays& outputs) {
  if (req[0] == mxnet::kWriteInplace && flag_of(attrs, "rounded")) return;
  round<&Kernels::round>(attrs, context, inputs, req, outputs);
}

// inputs: the gradient of the result, and the result
void round_relu_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs,
                     const Requests& req, const Arrays& outputs) {
  elementwise(inputs, req[0], outputs[0],
              [f = format_of(attrs)](const float* grad, const float* result, float* out, int64_t n) {
                kernels().round_relu_grad(grad, result, out, n, f);
              });
}

// To the dtype of the result
void convert_dtype(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
                   const Arrays& outputs) {
  convert_array(inputs[0], req[0], outputs[0]);
}

}  // namespace

void register_rounding() {
  constexpr int kFloat = mshadow::kFloat32, kHalf = mshadow::kFloat16, kShort = mshadow::kBfloat16;
  add_with_gradient<kFloat, kFloat>("_gluon_amp_round", 1, round_unrounded, round<&Kernels::round>,
                                    only_gradients);
  add_with_gradient<kFloat, kFloat>("_gluon_amp_round_relu", 2, round<&Kernels::round_relu>, round_relu_grad,
                                    and_result);
  add_with_gradient<kHalf, kFloat>("_gluon_amp_widen", 1, convert_dtype, convert_dtype, only_gradients);
  add_with_gradient<kFloat, kHalf>("_gluon_amp_narrow", 1, convert_dtype, convert_dtype, only_gradients);
  add_with_gradient<kShort, kFloat>("_gluon_amp_widen_bfloat", 1, convert_dtype, convert_dtype, only_gradients);
  add_with_gradient<kFloat, kShort>("_gluon_amp_narrow_bfloat", 1, convert_dtype, convert_dtype, only_gradients);
}

}  // namespace gluon_amp
