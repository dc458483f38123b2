// How a value of low precision is stored: as bfloat16, or as a float32 that holds a float16 value.
#pragma once

#include <cstdint>

namespace gluon_amp {

struct Bfloat {
  uint16_t bits;
};

// The emulation's float16: stored as float32; storing rounds.
struct HalfValue {
  float value;
};

}  // namespace gluon_amp
