// How a value of low precision is stored, and formats.
#pragma once

#include <cstdint>
#include <limits>

namespace gluon_amp {

struct Bfloat {
  uint16_t bits;
};

// The emulation's float16: stored as float32; storing rounds.
struct HalfValue {
  float value;
};

// What the values of an array are: bfloat16, float16 in the emulation, or float32. Arrays of the last two
// have the dtype float32.
enum class Element { kBfloat, kHalf, kSingle };

// What differs with the type of these values
template <template <typename> class Differing>
struct ByElement {
  Differing<Bfloat> bfloat;
  Differing<HalfValue> half;
  Differing<float> single;

  const Differing<Bfloat>& of(Bfloat) const { return bfloat; }
  const Differing<HalfValue>& of(HalfValue) const { return half; }
  const Differing<float>& of(float) const { return single; }
};

// A binary floating-point format by its parameters, as gluon_amp/base/formats.py has them. Its exponents are
// among those of float32, and its significands are shorter.
struct Format {
  int significand_bits;  // 1 to 22, without the leading 1
  int bias;              // 1 to 127: the exponents of normal numbers begin at 1 - bias
  float largest;         // of the finite magnitudes
  float overflow;        // what larger magnitudes become: infinity, NaN or `largest`
  bool subnormals;       // without them, rounded magnitudes below 2**(1 - bias) become 0

  // Whether the carry of a rounded float32 is all that makes numbers infinite.
  constexpr bool overflows_as_float32() const {
    return bias == 127 && subnormals && overflow == std::numeric_limits<float>::infinity();
  }
  constexpr bool operator==(const Format& o) const {
    return significand_bits == o.significand_bits && bias == o.bias && largest == o.largest &&
           overflow == o.overflow && subnormals == o.subnormals;
  }
};

// The formats that arrays are stored in
constexpr Format kFloat16{10, 15, 65504.f, std::numeric_limits<float>::infinity(), true};
constexpr Format kBfloat16{7, 127, 3.38953138925153547590e38f, std::numeric_limits<float>::infinity(),
                           true};

}  // namespace gluon_amp
