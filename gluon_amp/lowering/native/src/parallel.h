// Splits a range over OpenMP's threads: OMP_NUM_THREADS of them, as MXNet's own operators do.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gluon_amp {

constexpr int64_t kBlock = 1 << 14;  // elements: 64 KiB of float32, so that a piece stays in L2

// Calls body(first, count) for pieces of [0, n) of at most kBlock elements. No result depends on where
// the cuts are. The body must not throw, or the process ends: whatever can fail comes before.
template <typename Body>
void in_parallel(int64_t n, Body body) {
  // A few microseconds of work are not worth waking threads.
#pragma omp parallel for schedule(static) if (n > 2 * kBlock)
  for (int64_t first = 0; first < n; first += kBlock) body(first, std::min(kBlock, n - first));
}

}  // namespace gluon_amp
