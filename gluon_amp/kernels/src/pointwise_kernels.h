// Programs over blocked arrays, for three instruction sets. Each function is serial and processes one
// span.
#pragma once

#include "program.h"

namespace gluon_amp {

struct PointwiseKernels {
  void (*forward)(const Program&, const Span&, const Operand* inputs, void* out);
  // `result` and `inputs` are read as needs_of says (pointwise.h). The gradient of the first input may
  // be the memory of `grad`.
  void (*backward)(const Program&, const Span&, const void* grad, const void* result,
                   const Operand* inputs, const Target* targets);
};

}  // namespace gluon_amp
