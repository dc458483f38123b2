// Functions of One and Many: exp and tanh. All keep NaN unless the comment says otherwise.
#pragma once

#include <cmath>

#include "vectors.h"

namespace gluon_amp {
namespace {

// a * b + c, with one rounding where the processor has such an instruction
inline One fused(One a, One b, One c) {
#if defined(GLUON_AMP_AVX2) || defined(GLUON_AMP_AVX512)
  return {__builtin_fmaf(a.x, b.x, c.x)};
#else
  return a * b + c;
#endif
}

inline One exp(One x) { return {std::exp(x.x)}; }
inline One tanh(One x) { return {std::tanh(x.x)}; }

#if defined(GLUON_AMP_AVX2)

inline Many fused(Many a, Many b, Many c) { return {_mm256_fmadd_ps(a.x, b.x, c.x)}; }
inline Many nearest(Many x) {
  return {_mm256_round_ps(x.x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x * 2**n for whole n from -200 to 200, in two steps, since 2**n may not be a normal float32
inline Many scaled(Many x, Many n) {
  const auto power = [](__m256i k) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, _mm256_set1_epi32(127)), 23));
  };
  const __m256i whole = _mm256_cvtps_epi32(n.x), half = _mm256_srai_epi32(whole, 1);
  return x * Many{power(half)} * Many{power(_mm256_sub_epi32(whole, half))};
}

#elif defined(GLUON_AMP_AVX512)

inline Many fused(Many a, Many b, Many c) { return {_mm512_fmadd_ps(a.x, b.x, c.x)}; }
inline Many nearest(Many x) {
  return {_mm512_roundscale_ps(x.x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Many scaled(Many x, Many n) { return {_mm512_scalef_ps(x.x, n.x)}; }

#endif

#if defined(GLUON_AMP_AVX2) || defined(GLUON_AMP_AVX512)

// coefficients[0] * x**(n - 1) + ... + coefficients[n - 1]
template <int n>
inline Many polynomial(Many x, const float (&coefficients)[n]) {
  Many sum = Many::all(coefficients[0]);
  for (int i = 1; i < n; ++i) sum = fused(sum, x, Many::all(coefficients[i]));
  return sum;
}

// exp(x) = 2**n * exp(r) with |r| <= log(2) / 2. The polynomials are those of the Cephes library; the
// error is less than two units in the last place.
inline Many exp(Many x) {
  const Many low = x.all(-110), high = x.all(100);  // exp is 0 below and infinity above
  x = if_less(x, low, low, if_less(high, x, high, x));
  const Many n = nearest(x * x.all(1.44269504f));
  const Many r = fused(n, x.all(2.12194440e-4f), fused(n, x.all(-0.693359375f), x));
  constexpr float coefficients[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                    4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  return scaled(fused(polynomial(r, coefficients), r * r, r) + x.all(1), n);
}

inline Many tanh(Many x) {
  const Many zero = x.all(0), one = x.all(1), size = if_less(x, zero, zero - x, x);
  const Many power = exp(size * x.all(-2)), large = (one - power) / (one + power);
  // Near 0 this difference loses precision.
  constexpr float coefficients[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                                    1.33314422036e-1f, -3.33332819422e-1f};
  const Many square = x * x, small = fused(polynomial(square, coefficients), square * x, x);
  return if_less(size, x.all(0.625f), small, if_less(x, zero, zero - large, large));
}

#endif

template <typename V>
inline V sigmoid(V x) {
  return V::all(1) / (V::all(1) + exp(x * V::all(-1)));
}

}  // namespace

}  // namespace gluon_amp
