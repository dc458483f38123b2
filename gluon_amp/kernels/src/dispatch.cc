// Selects an instruction set that this processor supports.
#include "kernels.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gluon_amp {
namespace {

#if defined(__x86_64__)

bool bit(unsigned bits, int number) { return bits >> number & 1; }

// The instruction sets that the processor has and whose registers the operating system saves
// (Intel's manual, volume 1, "Detection of AVX2" and "Detection of AVX-512 Foundation").
// __builtin_cpu_supports would be shorter, but GCC 10 and clang 13 do not know its "f16c".
struct Processor {
  bool avx2 = false, avx512 = false;

  Processor() {
    unsigned a, b, c, d;
    if (__get_cpuid_max(0, nullptr) < 7) return;
    __cpuid(1, a, b, c, d);
    const bool xgetbv = bit(c, 27), avx = bit(c, 28), f16c = bit(c, 29), fma = bit(c, 12);
    if (!xgetbv) return;
    unsigned saved, high;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    __cpuid_count(7, 0, a, b, c, d);
    avx2 = avx && f16c && fma && bit(b, 5) && (saved & 0x06) == 0x06;  // XMM and YMM
    avx512 = avx2 && bit(b, 16) && (saved & 0xe6) == 0xe6;      // and ZMM and masks
  }
};

#endif

const Kernels* find(int set) {
#if defined(__x86_64__)
  const Processor processor;
  if ((set == 3 || set == 0) && processor.avx512) return avx512_kernels();
  if ((set == 2 || set == 0) && processor.avx2) return avx2_kernels();
#endif
  return set <= 1 ? plain_kernels() : nullptr;
}

std::atomic<const Kernels*> selected{find(0)};

}  // namespace

const Kernels& kernels() { return *selected.load(std::memory_order_relaxed); }

bool select_kernels(int set) {
  const Kernels* chosen = find(set);
  if (chosen) selected.store(chosen);
  return chosen;
}

}  // namespace gluon_amp
