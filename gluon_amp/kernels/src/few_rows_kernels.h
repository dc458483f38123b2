// Products of few rows with the rows of a weight as it is stored, for three instruction sets.
#pragma once

#include <cstdint>

#include "formats.h"

namespace gluon_amp {

// out[r * stride + n] = bias[n] + the sum of data[r * columns + k] * weight[n * columns + k], for the rows n of
// the weight from `first` to `last` - 1. `bias` may be null. oneDNN 2.4 rearranges the whole weight for such a
// product, and reads it as wide as it computes.
struct FewRowsProduct {
  const float* data;
  const void* weight;  // of Bfloat, half_bits or float
  const float* bias;
  int64_t rows, columns, first, last, stride;
  float* out;
};

// By the Element of the weight. Each function is serial.
struct FewRowsKernels {
  void (*multiply[3])(const FewRowsProduct&);
};

}  // namespace gluon_amp
