// Conversions of bfloat16, the upper half of a float32. The functions are static, because this file is
// compiled for several instruction sets, and the linker must not mix them.
#pragma once

#include <cstdint>
#include <cstring>

namespace gluon_amp {

using bfloat_bits = uint16_t;

static inline float widened(bfloat_bits value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Rounds to nearest even.
static inline bfloat_bits rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<bfloat_bits>((bits >> 16) | 0x40);
  return static_cast<bfloat_bits>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace gluon_amp
