// BatchNorm over blocked arrays, for three instruction sets. Each function is serial and processes one
// span.
#pragma once

#include "program.h"

namespace gluon_amp {

// The normalized value of x is (x - mean) * scale + shift, and the gradient of x is
// scale * g + constant + (x - mean) * slope, with g the gradient of the normalized value. Each pointer
// has one float per lane.
struct LaneConstants {
  const float *mean, *scale, *shift, *constant, *slope;
};

// Inputs of the program that have elements or one value per lane; number 0 is the data.
struct NormKernels {
  // Writes the mean of each lane, and the sum of the squared differences from it. `scratch` has room for
  // one float per lane.
  void (*moments)(const void* data, const Span&, float* mean, float* squares, float* scratch);
  // out = the result of the program, whose first value is the normalized data
  void (*forward)(const Program&, const Span&, const LaneConstants&, const Operand* inputs, void* out);
  // Writes the sums of g and of g * (x - mean) of each lane, and the targets that are sums. For a general
  // program, also writes g to the first target, which may be the memory of `grad`, and the other targets.
  void (*sums)(const Program&, const Span&, const LaneConstants&, const void* grad, const void* result,
               const Operand* inputs, const Target* targets, float* sum, float* product);
  // Then: writes the gradient of the data to the first target, and for other programs the targets that
  // are elements. The first one may be the memory of `grad`.
  void (*backward)(const Program&, const Span&, const LaneConstants&, const void* grad,
                   const void* result, const Operand* inputs, const Target* targets);
};

}  // namespace gluon_amp
