// What all operators that round share: their loop over arrays in any layout, and their format.
#pragma once

#include <limits>

#include "arrays.h"
#include "attributes.h"
#include "parallel.h"
#include "values.h"

namespace gluon_amp {

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
  const Result sum(output, req);
  in_parallel(n, [&](int64_t first, int64_t count) {
    float result[kBlock];
    run(first, count, result);
    sum.write(result, first, count);
  });
}

// The format that a node rounds to, float16 if it has no attributes
inline Format format_of(const NodeAttrs& attrs) {
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

}  // namespace gluon_amp
