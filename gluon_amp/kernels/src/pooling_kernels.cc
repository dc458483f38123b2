// The loops of pooling_kernels.h, compiled three times as kernels.cc is.
#include "pooling_kernels.h"

#include <algorithm>
#include <cfloat>
#include <type_traits>

#include "kernels.h"
#include "vectors.h"

namespace gluon_amp {

#if defined(GLUON_AMP_AVX512)
#define GLUON_AMP_TABLE avx512_pooling_kernels
#elif defined(GLUON_AMP_AVX2)
#define GLUON_AMP_TABLE avx2_pooling_kernels
#else
#define GLUON_AMP_TABLE plain_pooling_kernels
#endif

namespace {

// The largest of the values seen so far and its index, in each lane
template <typename V>
struct Largest;

// Values where an index has been stored, 0 elsewhere
inline One where_index(One v, const uint8_t* indices, int32_t i) { return {*indices == i ? v.x : 0}; }
inline One where_index(One v, const int32_t* indices, int32_t i) { return {*indices == i ? v.x : 0}; }

template <>
struct Largest<One> {
  One value = One::all(-FLT_MAX);
  int32_t index = 0;

  void see(One x, int32_t i) {
    if (x.x > value.x) value = x, index = i;
  }
  template <typename Index>
  void store_index(Index* p) const {
    *p = index;
  }
};

#if defined(GLUON_AMP_AVX512)

inline __m512i indices_at(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m512i indices_at(const int32_t* p) { return _mm512_loadu_si512(p); }

template <typename Index>
inline Many where_index(Many v, const Index* indices, int32_t i) {
  const __mmask16 found = _mm512_cmpeq_epi32_mask(indices_at(indices), _mm512_set1_epi32(i));
  return {_mm512_maskz_mov_ps(found, v.x)};
}

template <>
struct Largest<Many> {
  Many value = Many::all(-FLT_MAX);
  __m512i index = _mm512_setzero_si512();

  void see(Many x, int32_t i) {
    const __mmask16 larger = _mm512_cmp_ps_mask(x.x, value.x, _CMP_GT_OQ);
    value.x = _mm512_max_ps(x.x, value.x);  // the second one if one is NaN
    index = _mm512_mask_mov_epi32(index, larger, _mm512_set1_epi32(i));
  }
  void store_index(uint8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(index));
  }
  void store_index(int32_t* p) const { _mm512_storeu_si512(p, index); }
};

#elif defined(GLUON_AMP_AVX2)

inline __m256i indices_at(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

inline __m256i indices_at(const int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

template <typename Index>
inline Many where_index(Many v, const Index* indices, int32_t i) {
  const __m256i found = _mm256_cmpeq_epi32(indices_at(indices), _mm256_set1_epi32(i));
  return {_mm256_and_ps(v.x, _mm256_castsi256_ps(found))};
}

template <>
struct Largest<Many> {
  Many value = Many::all(-FLT_MAX);
  __m256 index = _mm256_setzero_ps();  // the bits of integers

  void see(Many x, int32_t i) {
    const __m256 larger = _mm256_cmp_ps(x.x, value.x, _CMP_GT_OQ);
    value.x = _mm256_max_ps(x.x, value.x);  // the second one if one is NaN
    index = _mm256_blendv_ps(index, _mm256_castsi256_ps(_mm256_set1_epi32(i)), larger);
  }
  void store_index(uint8_t* p) const {
    int32_t values[Many::width];
    store_index(values);
    for (int i = 0; i < Many::width; ++i) p[i] = values[i];
  }
  void store_index(int32_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_castps_si256(index));
  }
};

#endif

// Calls step(Many or One, lane) for all lanes.
template <typename Step>
inline void each_lane(int64_t lanes, Step step) {
  int64_t i = 0;
  for (; i + Many::width <= lanes; i += Many::width) step(Many(), i);
  for (; i < lanes; ++i) step(One(), i);
}

// Several windows (or values) at equal distances, which differ only in their place. To compute them
// together takes fewer instructions, and they do not wait for each other.
constexpr int kTogether = 4;
using Several = std::integral_constant<int, kTogether>;
using Single = std::integral_constant<int, 1>;

// Calls body(offset of the value, index in the window) for the values of a window, in order.
template <typename Body>
inline void each_value(int64_t row, int64_t column, const PoolingShape& shape, Body body) {
  const Windows &y = shape.rows, &x = shape.columns;
  const int64_t top = row * y.stride - y.pad, left = column * x.stride - x.pad;
  for (int64_t h = y.begin[row]; h < y.end[row]; ++h) {
    const int64_t first = (h - top) * x.kernel - left;
    for (int64_t w = x.begin[column]; w < x.end[column]; ++w) {
      body((h * shape.width + w) * shape.lanes, static_cast<int32_t>(first + w));
    }
  }
}

// Calls body(number of the window, index in it) for the windows that contain a value, in order.
template <typename Body>
inline void each_window(int64_t h, int64_t w, const PoolingShape& shape, Body body) {
  const Windows &y = shape.rows, &x = shape.columns;
  for (int64_t row = y.first[h]; row < y.last[h]; ++row) {
    const int64_t first = (h - row * y.stride + y.pad) * x.kernel + w + x.pad;
    for (int64_t column = x.first[w]; column < x.last[w]; ++column) {
      body(row * x.count + column, static_cast<int32_t>(first - column * x.stride));
    }
  }
}

// Calls compute(Single or Several, first column) for the windows of a row.
template <typename Compute>
inline void each_column(const Windows& x, Compute compute) {
  const int64_t distance = (kTogether - 1) * x.stride;
  for (int64_t column = 0; column < x.count;) {
    const int64_t last = column + kTogether - 1;
    if (last < x.count && x.begin[last] - x.begin[column] == distance &&
        x.end[last] - x.end[column] == distance) {
      compute(Several(), column);
      column += kTogether;
    } else {
      compute(Single(), column++);
    }
  }
}

// Calls compute(Single or Several, first position) for the positions of a row of the data. Those that are
// computed together are a stride apart, so that each is in the next windows.
template <typename Compute>
inline void each_position(const PoolingShape& shape, Compute compute) {
  const Windows& x = shape.columns;
  const int64_t distance = (kTogether - 1) * x.stride;
  for (int64_t phase = 0; phase < std::min(x.stride, shape.width); ++phase) {
    for (int64_t w = phase; w < shape.width;) {
      const int64_t last = w + distance;
      if (last < shape.width && x.first[last] - x.first[w] == kTogether - 1 &&
          x.last[last] - x.last[w] == kTogether - 1) {
        compute(Several(), w);
        w += kTogether * x.stride;
      } else {
        compute(Single(), w);
        w += x.stride;
      }
    }
  }
}

template <typename T, typename Index>
void max(const T* data, T* out, Index* indices, int64_t row, const PoolingShape& shape) {
  const int64_t lanes = shape.lanes, step = shape.columns.stride * lanes;
  each_column(shape.columns, [&](auto several, int64_t column) {
    constexpr int n = decltype(several)::value;
    each_lane(lanes, [&](auto v, int64_t lane) {
      using V = decltype(v);
      Largest<V> largest[n];
      each_value(row, column, shape, [&](int64_t at, int32_t i) {
        for (int k = 0; k < n; ++k) largest[k].see(V::load(data + at + k * step + lane), i);
      });
      for (int k = 0; k < n; ++k) {
        const int64_t at = (column + k) * lanes + lane;
        largest[k].value.store(out + at);
        if (indices) largest[k].store_index(indices + at);
      }
    });
  });
}

template <typename T>
void avg(const T* data, T* out, int64_t row, const PoolingShape& shape) {
  const int64_t lanes = shape.lanes, step = shape.columns.stride * lanes;
  const float* divisors = shape.divisors + row * shape.columns.count;
  each_column(shape.columns, [&](auto several, int64_t column) {
    constexpr int n = decltype(several)::value;
    each_lane(lanes, [&](auto v, int64_t lane) {
      using V = decltype(v);
      V sums[n];
      for (V& sum : sums) sum = V::all(0);
      each_value(row, column, shape, [&](int64_t at, int32_t) {
        for (int k = 0; k < n; ++k) sums[k] = sums[k] + V::load(data + at + k * step + lane);
      });
      for (int k = 0; k < n; ++k) {
        (sums[k] / V::all(divisors[column + k])).store(out + (column + k) * lanes + lane);
      }
    });
  });
}

// Writes a row of the data's gradient: the sum of share(offset, window, index, lanes) of all windows that
// contain a value.
template <typename T, typename Share>
inline void gather(T* grad, int64_t row, const PoolingShape& shape, Share share) {
  const int64_t lanes = shape.lanes, stride = shape.columns.stride;
  each_position(shape, [&](auto several, int64_t w) {
    constexpr int n = decltype(several)::value;
    each_lane(lanes, [&](auto v, int64_t lane) {
      using V = decltype(v);
      V sums[n];
      for (V& sum : sums) sum = V::all(0);
      each_window(row, w, shape, [&](int64_t window, int32_t i) {
        for (int k = 0; k < n; ++k) {
          sums[k] = sums[k] + share(v, (window + k) * lanes + lane, window + k, i);
        }
      });
      for (int k = 0; k < n; ++k) sums[k].store(grad + (w + k * stride) * lanes + lane);
    });
  });
}

template <typename T, typename Index>
void max_grad(const T* out_grad, const Index* indices, T* grad, int64_t row,
              const PoolingShape& shape) {
  gather(grad, row, shape, [=](auto v, int64_t at, int64_t, int32_t i) {
    return where_index(v.load(out_grad + at), indices + at, i);
  });
}

template <typename T>
void avg_grad(const T* out_grad, T* grad, int64_t row, const PoolingShape& shape) {
  const float* factors = shape.factors;
  gather(grad, row, shape, [=](auto v, int64_t at, int64_t window, int32_t) {
    return v.load(out_grad + at) * v.all(factors[window]);
  });
}

template <typename T>
constexpr Pooling<T> pooling() {
  return {{max<T, uint8_t>, max_grad<T, uint8_t>},
          {max<T, int32_t>, max_grad<T, int32_t>},
          avg<T>,
          avg_grad<T>};
}

const PoolingKernels table = {pooling<Bfloat>(), pooling<HalfValue>()};

}  // namespace

const PoolingKernels* GLUON_AMP_TABLE() { return &table; }

}  // namespace gluon_amp
