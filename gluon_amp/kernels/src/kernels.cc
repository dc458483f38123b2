// The loops of kernels.h. This file is compiled three times: with -DGLUON_AMP_AVX512, with
// -DGLUON_AMP_AVX2 (and the flags that allow these instructions), and without either. Only the table
// at the end may be visible to other files: otherwise the linker could select a loop that this
// processor cannot run.
#include "vectors.h"

namespace gluon_amp {
namespace {

// Calls step(function that rounds, One or Many, i) for all elements. The processor has instructions for float16.
template <typename Step>
inline void each_rounded(int64_t n, const Format& format, Step step) {
  const auto run = [=](auto to_format) {
    each(0, n, [=](auto v, int64_t i) { step(to_format, v, i); });
  };
  if (format == kFloat16) return run([](auto x) { return x.rounded(); });
  run([f = format](auto x) { return rounded(x, f); });
}

void round(const float* in, float* out, int64_t n, const Format& format) {
  each_rounded(n, format, [=](auto to_format, auto v, int64_t i) {
    to_format(v.load(in + i)).store(out + i);
  });
}

void round_scaled(const float* in, float* out, int64_t n, const Format& format, int exponent) {
  const float up = std::ldexp(1.f, exponent), down = std::ldexp(1.f, -exponent);
  each_rounded(n, format, [=](auto to_format, auto v, int64_t i) {
    (to_format(v.load(in + i) * v.all(up)) * v.all(down)).store(out + i);
  });
}

// Magnitudes are in the order of their bits; those of NaN are above infinity's.
float largest(const float* in, int64_t n) {
  uint32_t result = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits_of(in[i]) & 0x7fffffff;
    const uint32_t number = magnitude > 0x7f800000 ? 0 : magnitude;
    result = result < number ? number : result;
  }
  return float_of(result);
}

void round_relu(const float* in, float* out, int64_t n, const Format& format) {
  each_rounded(n, format, [=](auto to_format, auto v, int64_t i) {
    to_format(v.load(in + i)).or_zero().store(out + i);
  });
}

void round_relu_grad(const float* grad, const float* result, float* out, int64_t n,
                     const Format& format) {
  each_rounded(n, format, [=](auto to_format, auto v, int64_t i) {
    const auto g = v.load(grad + i);
    // oneDNN multiplies by the slope of 0 or 1: inf and NaN become NaN, and -1 becomes -0.
    to_format(g.where_positive(v.load(result + i), g * v.all(0))).store(out + i);
  });
}

void interleave(const float* low, const float* high, Bfloat* out, int64_t n) {
  each(0, n, [=](auto v, int64_t i) {
    v.store_pairs(v.load(low + i), v.load(high + i), out + 2 * i);
  });
}

template <typename T>
void add(const float* in, T* out, int64_t n) {
  each(0, n, [=](auto v, int64_t i) { (v.load(out + i) + v.load(in + i)).store(out + i); });
}

// A value is not finite if all its exponent bits are set. Adding the lowest of them then carries into
// the sign bit.
bool finite(const float* in, int64_t n) {
  uint32_t carried = 0;
  for (int64_t i = 0; i < n; ++i) carried |= (bits_of(in[i]) & 0x7f800000) + 0x00800000;
  return carried < 0x80000000;
}

bool finite_half(const half_bits* in, int64_t n) {
  uint16_t carried = 0;
  for (int64_t i = 0; i < n; ++i) carried |= (in[i] & 0x7c00) + 0x0400;
  return carried < 0x8000;
}

// The value that an update starts from: the master, or the weight if it is not the rounded master
// because the user has written to it.
template <typename V>
inline V current(V, const float* master, const half_bits* weight) {
  const V w = V::load(master);
  if (!weight) return w;
  const V seen = V::load(weight);
  return w.where_equal(w.rounded(), seen, seen);
}

// Both updates have the order of operations of MXNet's kernels (src/operator/optimizer_op-inl.h, and
// contrib/adamw-inl.h for decoupled weight decay), so the results have the same bits.
template <typename G>
void sgd(const G* grad, float* momentum, float*, float* master, half_bits* weight, int64_t n,
         const UpdateConstants& c) {
  each(0, n, [=, &c](auto v, int64_t i) {
    const auto w = current(v, master + i, weight ? weight + i : nullptr);
    const auto g = v.load(grad + i);
    const auto step = c.clip >= 0 ? v.all(c.lr) * (v.all(c.rescale) * g).within(v.all(c.clip))
                                  : v.all(c.lr * c.rescale) * g;
    decltype(v) updated;
    if (momentum) {
      const auto m = v.all(c.beta1) * v.load(momentum + i) - v.all(c.lr * c.wd) * w - step;
      m.store(momentum + i);
      updated = w + m;
    } else {
      updated = v.all(1.f - c.lr * c.wd) * w - step;
    }
    updated.store(master + i);
    if (weight) updated.store(weight + i);
  });
}

template <typename G>
void adam(const G* grad, float* mean, float* variance, float* master, half_bits* weight, int64_t n,
          const UpdateConstants& c) {
  each(0, n, [=, &c](auto v, int64_t i) {
    const auto w = current(v, master + i, weight ? weight + i : nullptr);
    auto g = v.load(grad + i) * v.all(c.rescale) + w * v.all(c.wd);
    if (c.clip >= 0) g = g.within(v.all(c.clip));
    const auto m = v.all(c.beta1) * v.load(mean + i) + v.all(1.f - c.beta1) * g;
    const auto s = v.all(c.beta2) * v.load(variance + i) + v.all(1.f - c.beta2) * g * g;
    m.store(mean + i);
    s.store(variance + i);
    auto step = v.all(c.lr) * m / (s.sqrt() + v.all(c.epsilon));
    if (c.decay != 0) step = step + v.all(c.decay) * w;
    const auto updated = w - step;
    updated.store(master + i);
    if (weight) updated.store(weight + i);
  });
}

void sync_half(const half_bits* weight, float*, float*, float* master, half_bits*, int64_t n,
               const UpdateConstants&) {
  each(0, n, [=](auto v, int64_t i) { current(v, master + i, weight + i).store(master + i); });
}

void sum_half(half_bits* const* arrays, size_t count, int64_t first, int64_t end, float factor) {
  each(first, end, [=](auto v, int64_t i) {
    const auto term = [=](size_t k) {
      const auto x = v.load(arrays[k] + i);
      return factor == 1 ? x : (v.all(factor) * x).rounded() + v.all(0);  // 0 is without a sign
    };
    auto total = term(0);
    for (size_t k = 1; k < count; ++k) total = (total + term(k)).rounded();
    for (size_t k = 0; k < count; ++k) total.store(arrays[k] + i);
  });
}

const Kernels table = {
    round,
    round_scaled,
    largest,
    round_relu,
    round_relu_grad,
    convert<float, half_bits>,
    convert<half_bits, float>,
    add<float>,
    add<half_bits>,
    add<Bfloat>,
    finite,
    finite_half,
    sgd<float>,
    sgd<half_bits>,
    adam<float>,
    adam<half_bits>,
    sync_half,
    sum_half,
    convert<float, Bfloat>,
    convert<Bfloat, float>,
    interleave,
    GLUON_AMP_NAMED(moves_kernels)(),
    GLUON_AMP_NAMED(depthwise_kernels)(),
    GLUON_AMP_NAMED(pooling_kernels)(),
    GLUON_AMP_NAMED(norm_kernels)(),
    GLUON_AMP_NAMED(pointwise_kernels)(),
    GLUON_AMP_NAMED(rows_kernels)(),
    GLUON_AMP_NAMED(recurrent_kernels)(),
    GLUON_AMP_NAMED(few_rows_kernels)(),
};

}  // namespace

const Kernels* GLUON_AMP_NAMED(kernels)() { return &table; }

}  // namespace gluon_amp
