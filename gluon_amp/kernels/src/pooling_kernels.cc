// The loops of pooling_kernels.h, compiled three times as kernels.cc is.
#include <algorithm>
#include <cfloat>
#include <type_traits>

#include "vectors.h"

namespace gluon_amp {
namespace {

// Indices are the bits of a One or a Many.
inline One indices_at(One, const uint8_t* p) { return One::of_bits(*p); }
inline One indices_at(One, const int32_t* p) { return One::of_bits(*p); }
template <typename Index>
inline void store_indices(One x, Index* p) { *p = bits_of(x.x); }
// v where an index is i, 0 elsewhere
inline One where_index(One v, One indices, int32_t i) {
  return {bits_of(indices.x) == static_cast<uint32_t>(i) ? v.x : 0};
}

#if defined(GLUON_AMP_AVX2) || defined(GLUON_AMP_AVX512)
inline Many indices_at(Many, const int32_t* p) { return Many::load(reinterpret_cast<const float*>(p)); }
inline void store_indices(Many x, int32_t* p) { x.store(reinterpret_cast<float*>(p)); }
#endif
#if defined(GLUON_AMP_AVX512)
inline Many indices_at(Many, const uint8_t* p) {
  return Many::of_ints(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store_indices(Many x, uint8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.ints()));
}
inline Many where_index(Many v, Many indices, int32_t i) {
  return {_mm512_maskz_mov_ps(_mm512_cmpeq_epi32_mask(indices.ints(), _mm512_set1_epi32(i)), v.x)};
}
#elif defined(GLUON_AMP_AVX2)
inline Many indices_at(Many, const uint8_t* p) {
  return Many::of_ints(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void store_indices(Many x, uint8_t* p) {
  const Words values = (Words)x.ints();
  for (int i = 0; i < Many::width; ++i) p[i] = static_cast<uint8_t>(values[i]);
}
inline Many where_index(Many v, Many indices, int32_t i) {
  return v & Many::of_ints(_mm256_cmpeq_epi32(indices.ints(), _mm256_set1_epi32(i)));
}
#endif

// The largest of the values seen so far and its index, in each lane
template <typename V>
struct Largest {
  V value = V::all(-FLT_MAX), index = V::of_bits(0);

  void see(V x, int32_t i) {
    index = if_less(value, x, V::of_bits(i), index);
    value = x.at_least(value);
  }
};

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
    each(0, lanes, [&](auto v, int64_t lane) {
      using V = decltype(v);
      Largest<V> largest[n];
      each_value(row, column, shape, [&](int64_t at, int32_t i) {
        for (int k = 0; k < n; ++k) largest[k].see(V::load(data + at + k * step + lane), i);
      });
      for (int k = 0; k < n; ++k) {
        const int64_t at = (column + k) * lanes + lane;
        largest[k].value.store(out + at);
        if (indices) store_indices(largest[k].index, indices + at);
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
    each(0, lanes, [&](auto v, int64_t lane) {
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
    each(0, lanes, [&](auto v, int64_t lane) {
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
    return where_index(v.load(out_grad + at), indices_at(v, indices + at), i);
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

const PoolingKernels pooling_table = {pooling<Bfloat>(), pooling<HalfValue>(), pooling<float>()};

}  // namespace

const PoolingKernels* GLUON_AMP_NAMED(pooling_kernels)() { return &pooling_table; }

}  // namespace gluon_amp
