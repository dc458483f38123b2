// Sums of arrays of one dtype.
#pragma once

#include <vector>

#include "blocked.h"
#include "kernels.h"
#include "moves_kernels.h"
#include "parallel.h"

namespace gluon_amp {

inline Sum<Bfloat> sum_of(Bfloat) { return kernels().moves->sum_bfloat; }
inline Sum<HalfValue> sum_of(HalfValue) { return kernels().moves->sum_half; }

// Writes the sum of arrays of n values, added in float32 and rounded once. `out` may be one of them.
inline void add_arrays(int dtype, const std::vector<const void*>& arrays, void* out, int64_t n) {
  with_elements(dtype, [&](auto element) {
    using T = decltype(element);
    std::vector<const T*> in;
    for (const void* array : arrays) in.push_back(static_cast<const T*>(array));
    const Sum<T> sum = sum_of(element);
    in_parallel(n, [&](int64_t first, int64_t count) {
      sum(in.data(), in.size(), static_cast<T*>(out), first, first + count);
    });
  });
}

}  // namespace gluon_amp
