// Loops over the rows of a matrix, for three instruction sets. Each function is serial.
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

// The result may be the memory of the first array.
struct SoftmaxKernels {
  void (*forward)(const float* x, float* out, RowsShape);
  void (*backward)(const float* grad, const float* result, float* out, RowsShape);
};

struct RowsKernels {
  LayerNormKernels layer_norm[2][2];  // whether x, and whether the result is Bfloat
  SoftmaxKernels softmax, log_softmax;
};

}  // namespace gluon_amp
