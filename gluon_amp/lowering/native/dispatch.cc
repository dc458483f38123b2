// Which of the instruction sets this processor runs.
#include "kernels.h"

#include <atomic>

namespace gluon_amp {

#if defined(__x86_64__)
#define GLUON_AMP_X86 1
#endif

namespace {

const Kernels* find(int set) {
#ifdef GLUON_AMP_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f");
  if (set == 3 || set == 0) {
    if (avx512) return avx512_kernels();
    if (set) return nullptr;
  }
  if (set == 2 || set == 0) {
    if (avx2) return avx2_kernels();
    if (set) return nullptr;
  }
#endif
  return set <= 1 ? plain_kernels() : nullptr;
}

std::atomic<const Kernels*> selected{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* chosen = selected.load(std::memory_order_relaxed);
  if (!chosen) {
    chosen = find(0);
    selected.store(chosen, std::memory_order_relaxed);
  }
  return *chosen;
}

bool select_kernels(int set) {
  const Kernels* chosen = find(set);
  if (chosen) selected.store(chosen);
  return chosen;
}

}  // namespace gluon_amp
