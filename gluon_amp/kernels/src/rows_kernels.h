// Loops over the rows of a matrix, and GELU, for three instruction sets. Each function is serial.
#pragma once

#include <cstdint>

namespace gluon_amp {

struct RowsShape {
  int64_t rows, columns;
};

// The arrays of a layer norm hold float or Bfloat: x and its gradient one type, the result and its gradient
// another. All instruction sets compute the same bits.
struct LayerNormKernels {
  void (*forward)(const void* x, const float* gamma, const float* beta, void* out, RowsShape, float eps);
  // Writes the gradient of x, which may be the memory of `grad`, unless it is null. Adds those of gamma and
  // beta.
  void (*backward)(const void* grad, const void* x, const float* gamma, void* x_grad, float* gamma_grad,
                   float* beta_grad, RowsShape, float eps);
};

// Of one row and scale times x, where scale is above 0. In a gradient, x is the gradient of the result; only
// gradients read `result`. `out` may be the memory of x.
using Softmax = void (*)(const float* x, const float* result, float* out, int64_t n, float scale);

// Of one row: an element of log_softmax, and its gradient. `sums` are what forward found: the largest element,
// and the logarithm of the sum of exponentials.
struct PickedKernels {
  float (*forward)(const float* x, int64_t picked, float* sums, int64_t n);
  void (*backward)(float grad, const float* x, int64_t picked, const float* sums, float* x_grad, int64_t n);
};

// x times the normal distribution function of x. Only the gradient reads `grad`, which is that of the result.
// `out` may be the memory of the first array that is read.
using Gelu = void (*)(const void* grad, const void* x, void* out, int64_t n);

struct RowsKernels {
  LayerNormKernels layer_norm[2][2];  // whether x, and whether the result is Bfloat
  Gelu gelu[2][2], gelu_grad[2][2];   // likewise
  Softmax softmax, softmax_grad, log_softmax, log_softmax_grad;
  PickedKernels picked_log_softmax;
};

}  // namespace gluon_amp
