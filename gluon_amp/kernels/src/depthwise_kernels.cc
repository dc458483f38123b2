// The loops of depthwise_kernels.h, compiled three times as kernels.cc is.
#include "vector_math.h"

namespace gluon_amp {
namespace {

constexpr int kWidth = Many::width;
static_assert(kWidth <= LaneOffsets::kMost, "a slice is one vector");

// Value i of the result is value index[i].
struct Permutation {
#if defined(GLUON_AMP_AVX512)
  __m512i index;
  explicit Permutation(const int* i) : index(_mm512_loadu_si512(i)) {}
  Many apply(Many values) const { return {_mm512_permutexvar_ps(index, values.x)}; }
#elif defined(GLUON_AMP_AVX2)
  __m256i index;
  explicit Permutation(const int* i)
      : index(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(i))) {}
  Many apply(Many values) const { return {_mm256_permutevar8x32_ps(values.x, index)}; }
#else
  explicit Permutation(const int*) {}
  Many apply(Many value) const { return value; }
#endif
};

template <typename T>
inline Many load_lanes(const T* in, int lanes) {
  if (lanes == kWidth) return Many::load(in);
  T part[kWidth] = {};
  for (int i = 0; i < lanes; ++i) part[i] = in[i];
  return Many::load(part);
}

template <typename T>
__attribute__((noinline)) void store_part(Many value, T* out, int lanes) {
  T all[kWidth];
  value.store(all);
  for (int i = 0; i < lanes; ++i) out[i] = all[i];
}

// Writes n values that are `step` values apart. The loops are unrolled, so that the values stay in
// registers.
template <int n, typename T>
inline void store_lanes(const Many* values, T* out, int64_t step, int lanes) {
  if (lanes == kWidth) {
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) values[i].store(out + i * step);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) store_part(values[i], out + i * step, lanes);
  }
}

template <typename T>
void load(const T* in, int64_t step, int64_t count, Slice slice, float* out) {
  if (slice.channels == kWidth) {
    for (int64_t i = 0; i < count; ++i) Many::load(in + i * step).store(out + i * kWidth);
    return;
  }
  float real[kWidth];
  for (int i = 0; i < kWidth; ++i) real[i] = i < slice.channels;
  const Many mask = Many::load(real), zero = Many::all(0);
  for (int64_t i = 0; i < count; ++i) {
    load_lanes(in + i * step, slice.lanes).where_positive(mask, zero).store(out + i * kWidth);
  }
}

template <typename T>
void mix(const T* in, int64_t step, int64_t count, const LaneOffsets& from, Slice slice, float* out) {
  if (from.window >= 0) {
    int index[kWidth];
    float real[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      real[i] = i < slice.channels;
      index[i] = i < slice.channels ? static_cast<int>(from.offsets[i] - from.window) : 0;
    }
    const Many mask = Many::load(real), zero = Many::all(0);
    const Permutation order(index);
    for (int64_t i = 0; i < count; ++i) {
      const Many values = order.apply(Many::load(in + from.window + i * step));
      values.where_positive(mask, zero).store(out + i * kWidth);
    }
    return;
  }
  T values[kWidth] = {};
  for (int64_t i = 0; i < count; ++i) {
    for (int lane = 0; lane < slice.channels; ++lane) values[lane] = in[from.offsets[lane] + i * step];
    Many::load(values).store(out + i * kWidth);
  }
}

template <typename T>
void pack(const float* weights, const LaneOffsets& first, const int64_t* taps, int64_t count, Slice slice,
          float* out) {
  for (int64_t t = 0; t < count; ++t, out += kWidth) {
    for (int i = 0; i < kWidth; ++i) {
      out[i] = i < slice.channels ? weights[first.offsets[i] + taps[t]] : 0;
    }
    T rounded[kWidth];
    Many::load(out).store(rounded);
    Many::load(rounded).store(out);
  }
}

// ------------------------------------------------------------------------------------- convolution

// How many sums are in registers. A load of a tap's weights serves all of them.
constexpr int kMostResults = 14;

template <int n, typename T>
void gather_some(const GatheredRow& row, const float* source, Slice slice, T* out, int64_t step) {
  Many sums[n];
  for (int i = 0; i < n; ++i) sums[i] = Many::load(row.bias);
  for (int64_t t = 0; t < row.taps; ++t) {
    const Many weight = Many::load(row.weights + t * kWidth);
    const float* at = source + row.offsets[t];
    for (int i = 0; i < n; ++i) sums[i] = fused(weight, Many::load(at + i * row.stride), sums[i]);
  }
  store_lanes<n>(sums, out, step, slice.lanes);
}

template <typename T>
using GatherSome = void (*)(const GatheredRow&, const float*, Slice, T*, int64_t);

template <typename T>
void gather(const GatheredRow& row, Slice slice, T* out, int64_t step) {
  static const GatherSome<T> some[kMostResults] = {
      gather_some<1, T>,  gather_some<2, T>,  gather_some<3, T>,  gather_some<4, T>,
      gather_some<5, T>,  gather_some<6, T>,  gather_some<7, T>,  gather_some<8, T>,
      gather_some<9, T>,  gather_some<10, T>, gather_some<11, T>, gather_some<12, T>,
      gather_some<13, T>, gather_some<14, T>,
  };
  // Pieces of about the same size
  const int64_t pieces = (row.count + kMostResults - 1) / kMostResults;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t first = row.count * piece / pieces, last = row.count * (piece + 1) / pieces;
    some[last - first - 1](row, row.source + first * row.stride, slice, out + first * step, step);
  }
}

// --------------------------------------------------------------------------- gradient of the weights

constexpr int kMostTaps = 12;

template <int n>
void correlate_some(const Positions& p, const float* data, const float* grad, const int64_t* offsets,
                    float* totals) {
  Many sums[n];
  const float* taps[n];
  for (int t = 0; t < n; ++t) sums[t] = Many::all(0);
  for (int64_t row = 0; row < p.rows; ++row, data += p.row_stride, grad += p.grad_stride) {
    for (int t = 0; t < n; ++t) taps[t] = data + offsets[t];
    int64_t at = 0;
    for (int64_t column = 0; column < p.columns; ++column, at += p.column_stride) {
      const Many g = Many::load(grad + column * kWidth);
      for (int t = 0; t < n; ++t) sums[t] = fused(g, Many::load(taps[t] + at), sums[t]);
    }
  }
  for (int t = 0; t < n; ++t) {
    float* total = totals + t * kWidth;
    (Many::load(total) + sums[t]).store(total);
  }
}

using CorrelateSome = void (*)(const Positions&, const float*, const float*, const int64_t*, float*);

void correlate(const Positions& p, const float* data, const float* grad, const int64_t* offsets,
               int64_t taps, float* sums) {
  static const CorrelateSome some[kMostTaps] = {
      correlate_some<1>, correlate_some<2>, correlate_some<3>,  correlate_some<4>,
      correlate_some<5>, correlate_some<6>, correlate_some<7>,  correlate_some<8>,
      correlate_some<9>, correlate_some<10>, correlate_some<11>, correlate_some<12>,
  };
  const int64_t pieces = (taps + kMostTaps - 1) / kMostTaps;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t first = taps * piece / pieces, last = taps * (piece + 1) / pieces;
    some[last - first - 1](p, data, grad, offsets + first, sums + first * kWidth);
  }
}

void add_up(const float* grad, int64_t count, float* sum) {
  Many total = Many::all(0);
  for (int64_t i = 0; i < count; ++i) total = total + Many::load(grad + i * kWidth);
  (Many::load(sum) + total).store(sum);
}

const DepthwiseKernels depthwise_table = {
    kWidth,
    {{load<Bfloat>, mix<Bfloat>, pack<Bfloat>, gather<Bfloat>},
     {load<HalfValue>, mix<HalfValue>, pack<HalfValue>, gather<HalfValue>},
     {load<float>, mix<float>, pack<float>, gather<float>}},
    correlate,
    add_up,
};

}  // namespace

const DepthwiseKernels* GLUON_AMP_NAMED(depthwise_kernels)() { return &depthwise_table; }

}  // namespace gluon_amp
