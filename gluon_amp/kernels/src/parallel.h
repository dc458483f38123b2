// Splits a range among OpenMP's threads, OMP_NUM_THREADS of them, as MXNet's own operators do.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gluon_amp {

constexpr int64_t kBlock = 1 << 14;  // elements: 64 KiB of float32, so that a piece fits into L2

// Calls body(first, count) for pieces of [0, n) of at most kBlock elements. No result depends on the
// boundaries. An exception in the body would end the process, so everything that can fail is done
// before.
template <typename Body>
void in_parallel(int64_t n, Body body) {
  // Waking threads takes longer than a few microseconds of work.
#pragma omp parallel for schedule(static) if (n > 2 * kBlock)
  for (int64_t first = 0; first < n; first += kBlock) body(first, std::min(kBlock, n - first));
}

}  // namespace gluon_amp
