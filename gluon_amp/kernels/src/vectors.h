// One, eight or sixteen floats with the same operations, so that a loop is written only once. Products
// and sums are never contracted (-ffp-contract=off), so that the results have the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(GLUON_AMP_AVX2) || defined(GLUON_AMP_AVX512)
#include <immintrin.h>
#endif

#include "kernels.h"

// A name for the instruction set that this file is compiled for
#if defined(GLUON_AMP_AVX512)
#define GLUON_AMP_NAMED(name) avx512_##name
#elif defined(GLUON_AMP_AVX2)
#define GLUON_AMP_NAMED(name) avx2_##name
#else
#define GLUON_AMP_NAMED(name) plain_##name
#endif

namespace gluon_amp {
namespace {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The float16 of a float32 that has the value of one
inline half_bits to_half(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
  if (magnitude >= 0x7f800000) return sign | 0x7c00 | (magnitude >> 13 & 0x3ff);
  if (magnitude >= 0x38800000) return sign | (magnitude - 0x38000000) >> 13;
  return sign | static_cast<half_bits>(float_of(magnitude) * 16777216.f);  // in units of 2**-24
}

inline float from_half(half_bits half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude > 0x7c00) return float_of(sign | 0x7fc00000 | magnitude << 13);
  if (magnitude == 0x7c00) return float_of(sign | 0x7f800000);
  if (magnitude < 0x400) return float_of(sign | bits_of(magnitude * 5.9604644775390625e-8f));
  return float_of(sign | ((magnitude << 13) + 0x38000000));
}

// A float32 rounded to a format; see below.
template <typename V>
V rounded(V x, Format f);

struct One {
  static constexpr int width = 1;
  float x;
  static One all(float value) { return {value}; }
  static One of_bits(uint32_t bits) { return {float_of(bits)}; }
  static One load(const float* p) { return {*p}; }
  static One load(const half_bits* p) { return {from_half(*p)}; }
  void store(float* p) const { *p = x; }
  static One load(const Bfloat* p) { return of_bits(static_cast<uint32_t>(p->bits) << 16); }
  static One load(const HalfValue* p) { return {p->value}; }
  void store(half_bits* p) const { *p = to_half(rounded().x); }
  void store(Bfloat* p) const { p->bits = bits_of(gluon_amp::rounded(*this, kBfloat16).x) >> 16; }
  void store(HalfValue* p) const { p->value = rounded().x; }
  static void store_pairs(One low, One high, Bfloat* p) {
    low.store(p);
    high.store(p + 1);
  }
  One rounded() const { return gluon_amp::rounded(*this, kFloat16); }
  // Bits
  One operator&(One o) const { return of_bits(bits_of(x) & bits_of(o.x)); }
  One operator|(One o) const { return of_bits(bits_of(x) | bits_of(o.x)); }
  One shifted_right(int n) const { return of_bits(bits_of(x) >> n); }
  // plus a half of what is cut off, so that cutting the lower bits off rounds to nearest even
  One before_cut(int bits) const {
    return of_bits(bits_of(x) + (1u << bits >> 1) - 1 + (bits_of(x) >> bits & 1));
  }
  // o, made quiet, if it is NaN, otherwise this
  One or_quiet(One o) const { return o.x == o.x ? *this : of_bits(bits_of(o.x) | 0x00400000); }
  One operator+(One o) const { return {x + o.x}; }
  One operator-(One o) const { return {x - o.x}; }
  One operator*(One o) const { return {x * o.x}; }
  One operator/(One o) const { return {x / o.x}; }
  One sqrt() const { return {std::sqrt(x)}; }
  // the larger one; `low` if one is NaN
  One at_least(One low) const { return {x > low.x ? x : low.x}; }
  One or_zero() const { return {x > 0 ? x : 0}; }
  // this if o > 0, otherwise `other`
  One where_positive(One o, One other) const { return {o.x > 0 ? x : other.x}; }
  One where_equal(One a, One b, One other) const { return {a.x == b.x ? x : other.x}; }
  // clamped to [-bound, bound]; NaN stays NaN
  One within(One bound) const { return {x > bound.x ? bound.x : x < -bound.x ? -bound.x : x}; }
};

#if defined(GLUON_AMP_AVX2) || defined(GLUON_AMP_AVX512)
#if defined(GLUON_AMP_AVX2)
using Floats = __m256;
using Ints = __m256i;
using Words = __v8su;
#else
using Floats = __m512;
using Ints = __m512i;
using Words = __v16su;
#endif

struct Many {
  static constexpr int width = sizeof(Floats) / sizeof(float);
  Floats x;
  static Many load(const HalfValue* p) { return load(&p->value); }
  void store(HalfValue* p) const { rounded().store(&p->value); }
  // low[0], high[0], low[1], ...
  static void store_pairs(Many low, Many high, Bfloat* p) {
    const Many upper = gluon_amp::rounded(high, kBfloat16), lower = gluon_amp::rounded(low, kBfloat16);
    (upper | lower.shifted_right(16)).store(reinterpret_cast<float*>(p));
  }
  Ints ints() const { return (Ints)x; }
  static Many of_ints(Ints ints) { return {(Floats)ints}; }
  Many operator&(Many o) const { return of_ints(ints() & o.ints()); }
  Many operator|(Many o) const { return of_ints(ints() | o.ints()); }
  Many shifted_right(int n) const { return of_ints((Ints)((Words)ints() >> n)); }
  Many operator+(Many o) const { return {x + o.x}; }
  Many operator-(Many o) const { return {x - o.x}; }
  Many operator*(Many o) const { return {x * o.x}; }
  Many operator/(Many o) const { return {x / o.x}; }
  Many or_zero() const { return at_least(all(0)); }
  Many where_positive(Many o, Many other) const { return select<_CMP_LT_OQ>(all(0), o, *this, other); }
  Many where_equal(Many a, Many b, Many other) const { return select<_CMP_EQ_OQ>(a, b, *this, other); }
  Many within(Many bound) const { return (all(0) - bound).at_least(at_most(bound)); }
#if defined(GLUON_AMP_AVX2)
  static Many all(float value) { return {_mm256_set1_ps(value)}; }
  static Many of_bits(uint32_t bits) { return of_ints(_mm256_set1_epi32(bits)); }
  static Many load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Many load(const half_bits* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static Many load(const Bfloat* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return of_ints(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  __m128i halves() const { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  Many rounded() const { return {_mm256_cvtph_ps(halves())}; }
  void store(float* p) const { _mm256_storeu_ps(p, x); }
  void store(half_bits* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), halves()); }
  void store(Bfloat* p) const {
    const __m256i bits = gluon_amp::rounded(*this, kBfloat16).shifted_right(16).ints();
    const __m128i low = _mm256_castsi256_si128(bits), high = _mm256_extracti128_si256(bits, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, high));
  }
  Many before_cut(int bits) const {
    const __m256i odd = (shifted_right(bits) & of_bits(1)).ints();
    const __m256i half = _mm256_set1_epi32((1u << bits >> 1) - 1);
    return of_ints(_mm256_add_epi32(_mm256_add_epi32(ints(), half), odd));
  }
  Many or_quiet(Many o) const { return where_equal(o, o, o | of_bits(0x00400000)); }
  Many sqrt() const { return {_mm256_sqrt_ps(x)}; }
  // min and max return their second operand if one is NaN.
  Many at_least(Many low) const { return {_mm256_max_ps(x, low.x)}; }
  Many at_most(Many high) const { return {_mm256_min_ps(high.x, x)}; }
  // `yes` where a and b compare so, otherwise `no`
  template <int comparison>
  static Many select(Many a, Many b, Many yes, Many no) {
    return {_mm256_blendv_ps(no.x, yes.x, _mm256_cmp_ps(a.x, b.x, comparison))};
  }
#else
  static Many all(float value) { return {_mm512_set1_ps(value)}; }
  static Many of_bits(uint32_t bits) { return of_ints(_mm512_set1_epi32(bits)); }
  static Many load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Many load(const half_bits* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Many load(const Bfloat* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return of_ints(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  __m256i halves() const { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  Many rounded() const { return {_mm512_cvtph_ps(halves())}; }
  void store(float* p) const { _mm512_storeu_ps(p, x); }
  void store(half_bits* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves()); }
  void store(Bfloat* p) const {
    const __m512i bits = gluon_amp::rounded(*this, kBfloat16).shifted_right(16).ints();
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bits));
  }
  Many before_cut(int bits) const {
    const uint32_t half = 1u << bits >> 1;
    const __mmask16 odd = _mm512_test_epi32_mask(ints(), _mm512_set1_epi32(1u << bits));
    return of_ints(_mm512_add_epi32(
        ints(), _mm512_mask_blend_epi32(odd, _mm512_set1_epi32(half - 1), _mm512_set1_epi32(half))));
  }
  // The table says: o, made quiet, for both kinds of NaN, otherwise this.
  Many or_quiet(Many o) const {
    return {_mm512_fixupimm_ps(x, o.x, _mm512_set1_epi32(0x22), 0)};
  }
  Many sqrt() const { return {_mm512_sqrt_ps(x)}; }
  Many at_least(Many low) const { return {_mm512_max_ps(x, low.x)}; }
  Many at_most(Many high) const { return {_mm512_min_ps(high.x, x)}; }
  template <int comparison>
  static Many select(Many a, Many b, Many yes, Many no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.x, b.x, comparison), no.x, yes.x)};
  }
#endif
};
#else
using Many = One;
#endif

// a < b ? yes : no, and a <= b ? yes : no; `no` if one is NaN
inline One if_less(One a, One b, One yes, One no) { return a.x < b.x ? yes : no; }
inline One if_at_most(One a, One b, One yes, One no) { return a.x <= b.x ? yes : no; }
#if defined(GLUON_AMP_AVX2) || defined(GLUON_AMP_AVX512)
inline Many if_less(Many a, Many b, Many yes, Many no) { return Many::select<_CMP_LT_OQ>(a, b, yes, no); }
inline Many if_at_most(Many a, Many b, Many yes, Many no) { return Many::select<_CMP_LE_OQ>(a, b, yes, no); }
#endif

// Rounds to nearest, ties to even. NaN becomes quiet and its payload is cut, as VCVTPS2PH and
// VCVTNEPS2BF16 do.
template <typename V>
inline V rounded(V x, Format f) {
  const int cut = 23 - f.significand_bits;
  const V kept = V::of_bits(~0u << cut), y = x.before_cut(cut);
  if (f.overflows_as_float32()) return y.or_quiet(x) & kept;
  const V unsigned_bits = V::of_bits(0x7fffffff), size = x & unsigned_bits;
  const V normal = V::of_bits(static_cast<uint32_t>(128 - f.bias) << 23);
  V result = y & kept & unsigned_bits;
  if (f.bias < 127) {
    // Subnormals have the spacing of the float32 from `unit` on, so this addition rounds.
    const V unit = V::of_bits(static_cast<uint32_t>(128 - f.bias + cut) << 23);
    result = if_less(size, normal, size + unit - unit, result);
  }
  result = if_less(V::all(f.largest), result, V::all(f.overflow), result);
  if (!f.subnormals) result = if_less(result, normal, V::all(0), result);
  return (result | (x & V::of_bits(0x80000000))).or_quiet(x) & kept;
}

// Calls step(Many or One, i) for all i from `first` to `end` - 1. The type determines how many elements a
// step processes.
template <typename Step>
inline void each(int64_t first, int64_t end, Step step) {
  int64_t i = first;
  for (; i + Many::width <= end; i += Many::width) step(Many(), i);
  for (; i < end; ++i) step(One(), i);
}

// The sum of values, of which the second half is added to the first until one is left
template <int count>
inline float sum_by_halves(float (&values)[count]) {
  for (int half = count / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) values[k] += values[k + half];
  }
  return values[0];
}

template <typename From, typename To>
inline void convert(const From* in, To* out, int64_t n) {
  each(0, n, [=](auto v, int64_t i) { v.load(in + i).store(out + i); });
}

}  // namespace

}  // namespace gluon_amp
