// One, eight or sixteen floats with the same operations, so that a loop is written only once. Products
// and sums are never contracted (-ffp-contract=off), so that the results have the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(GLUON_AMP_AVX2) || defined(GLUON_AMP_AVX512)
#include <immintrin.h>
#endif

#include "bfloat16.h"
#include "elements.h"

namespace {

using gluon_amp::Bfloat;
using gluon_amp::half_bits;
using gluon_amp::HalfValue;

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

// Rounds to IEEE 754 binary16, to nearest even, as VCVTPS2PH does, including the payloads of NaNs.
inline half_bits to_half(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // from 65520 on
  if (magnitude < 0x38800000) {
    // Below 2**-14, float16 values have the spacing of float32 in [0.5, 1), so this addition rounds.
    return sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
  }
  const uint32_t even = magnitude >> 13 & 1;
  return sign | ((magnitude - 0x38000000 + 0xfff + even) >> 13);
}

inline float from_half(half_bits half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude > 0x7c00) return float_of(sign | 0x7fc00000 | magnitude << 13);
  if (magnitude == 0x7c00) return float_of(sign | 0x7f800000);
  if (magnitude < 0x400) return float_of(sign | bits_of(magnitude * 5.9604644775390625e-8f));
  return float_of(sign | ((magnitude << 13) + 0x38000000));
}

struct One {
  static constexpr int width = 1;
  float x;
  static One all(float value) { return {value}; }
  static One load(const float* p) { return {*p}; }
  static One load(const half_bits* p) { return {from_half(*p)}; }
  void store(float* p) const { *p = x; }
  static One load(const Bfloat* p) { return {gluon_amp::widened(p->bits)}; }
  static One load(const HalfValue* p) { return {p->value}; }
  void store(half_bits* p) const { *p = to_half(x); }
  void store(Bfloat* p) const { p->bits = gluon_amp::rounded(x); }
  void store(HalfValue* p) const { p->value = rounded().x; }
  static void store_pairs(One low, One high, Bfloat* p) {
    low.store(p);
    high.store(p + 1);
  }
  One rounded() const { return {from_half(to_half(x))}; }
  One operator+(One o) const { return {x + o.x}; }
  One operator-(One o) const { return {x - o.x}; }
  One operator*(One o) const { return {x * o.x}; }
  One operator/(One o) const { return {x / o.x}; }
  One sqrt() const { return {std::sqrt(x)}; }
  One or_zero() const { return {x > 0 ? x : 0}; }
  // this if o > 0, otherwise `other`
  One where_positive(One o, One other) const { return {o.x > 0 ? x : other.x}; }
  One where_equal(One a, One b, One other) const { return {a.x == b.x ? x : other.x}; }
  // clamped to [-bound, bound]; NaN stays NaN
  One within(One bound) const { return {x > bound.x ? bound.x : x < -bound.x ? -bound.x : x}; }
};

#if defined(GLUON_AMP_AVX2)
struct Many {
  static constexpr int width = 8;
  __m256 x;
  static Many all(float value) { return {_mm256_set1_ps(value)}; }
  static Many load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Many load(const half_bits* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static Many load(const Bfloat* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  static Many load(const HalfValue* p) { return load(&p->value); }
  __m128i halves() const { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  void store(float* p) const { _mm256_storeu_ps(p, x); }
  void store(half_bits* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), halves()); }
  void store(Bfloat* p) const {  // bfloat16 runs only with AVX512
    float values[width];
    store(values);
    for (int i = 0; i < width; ++i) p[i].bits = gluon_amp::rounded(values[i]);
  }
  static void store_pairs(Many low, Many high, Bfloat* p) {
    float values[2][width];
    low.store(values[0]);
    high.store(values[1]);
    for (int i = 0; i < 2 * width; ++i) p[i].bits = gluon_amp::rounded(values[i % 2][i / 2]);
  }
  void store(HalfValue* p) const { rounded().store(&p->value); }
  Many rounded() const { return {_mm256_cvtph_ps(halves())}; }
  Many operator+(Many o) const { return {_mm256_add_ps(x, o.x)}; }
  Many operator-(Many o) const { return {_mm256_sub_ps(x, o.x)}; }
  Many operator*(Many o) const { return {_mm256_mul_ps(x, o.x)}; }
  Many operator/(Many o) const { return {_mm256_div_ps(x, o.x)}; }
  Many sqrt() const { return {_mm256_sqrt_ps(x)}; }
  Many or_zero() const { return {_mm256_max_ps(x, _mm256_setzero_ps())}; }
  Many where_positive(Many o, Many other) const {
    return {_mm256_blendv_ps(other.x, x, _mm256_cmp_ps(o.x, _mm256_setzero_ps(), _CMP_GT_OQ))};
  }
  Many where_equal(Many a, Many b, Many other) const {
    return {_mm256_blendv_ps(other.x, x, _mm256_cmp_ps(a.x, b.x, _CMP_EQ_OQ))};
  }
  Many within(Many bound) const {
    // min and max return their second operand if one is NaN
    const __m256 low = _mm256_sub_ps(_mm256_setzero_ps(), bound.x);
    return {_mm256_max_ps(low, _mm256_min_ps(bound.x, x))};
  }
};
#elif defined(GLUON_AMP_AVX512)
struct Many {
  static constexpr int width = 16;
  __m512 x;
  static Many all(float value) { return {_mm512_set1_ps(value)}; }
  static Many load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Many load(const half_bits* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Many load(const Bfloat* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  static Many load(const HalfValue* p) { return load(&p->value); }
  __m256i halves() const { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  void store(float* p) const { _mm512_storeu_ps(p, x); }
  void store(half_bits* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves()); }
  // The bits of a float32 after it is rounded to bfloat16 as `gluon_amp::rounded` does, in the upper half.
  // NaN keeps its upper bits and becomes quiet.
  __m512i bfloat_bits() const {
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __m512i half =
        _mm512_mask_blend_epi32(odd, _mm512_set1_epi32(0x7fff), _mm512_set1_epi32(0x8000));
    const __m512 sum = _mm512_castsi512_ps(_mm512_add_epi32(bits, half));
    // The table says: x, made quiet, for both kinds of NaN, otherwise the sum.
    return _mm512_castps_si512(_mm512_fixupimm_ps(sum, x, _mm512_set1_epi32(0x22), 0));
  }
  void store(Bfloat* p) const {
    const __m256i result = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bfloat_bits(), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), result);
  }
  // low[0], high[0], low[1], ...
  static void store_pairs(Many low, Many high, Bfloat* p) {
    const __m512i upper = _mm512_and_si512(high.bfloat_bits(), _mm512_set1_epi32(0xffff0000));
    _mm512_storeu_si512(p, _mm512_or_si512(upper, _mm512_srli_epi32(low.bfloat_bits(), 16)));
  }
  void store(HalfValue* p) const { rounded().store(&p->value); }
  Many rounded() const { return {_mm512_cvtph_ps(halves())}; }
  Many operator+(Many o) const { return {_mm512_add_ps(x, o.x)}; }
  Many operator-(Many o) const { return {_mm512_sub_ps(x, o.x)}; }
  Many operator*(Many o) const { return {_mm512_mul_ps(x, o.x)}; }
  Many operator/(Many o) const { return {_mm512_div_ps(x, o.x)}; }
  Many sqrt() const { return {_mm512_sqrt_ps(x)}; }
  Many or_zero() const { return {_mm512_max_ps(x, _mm512_setzero_ps())}; }
  Many where_positive(Many o, Many other) const {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(o.x, _mm512_setzero_ps(), _CMP_GT_OQ),
                                 other.x, x)};
  }
  Many where_equal(Many a, Many b, Many other) const {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.x, b.x, _CMP_EQ_OQ), other.x, x)};
  }
  Many within(Many bound) const {
    // min and max return their second operand if one is NaN
    const __m512 low = _mm512_sub_ps(_mm512_setzero_ps(), bound.x);
    return {_mm512_max_ps(low, _mm512_min_ps(bound.x, x))};
  }
};
#else
using Many = One;
#endif

}  // namespace
