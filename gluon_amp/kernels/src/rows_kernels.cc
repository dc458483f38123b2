// The loops of rows_kernels.h, compiled three times as kernels.cc is.
#include "vector_math.h"

namespace gluon_amp {
namespace {

// The sum of step(Many or One, i) for all i below n. The same elements are added in the same order with every
// instruction set: element i to number i % kSums of the sums, and these by halves.
template <typename Step>
inline float sum_of(int64_t n, Step step) {
  constexpr int kSums = 32, width = Many::width, count = kSums / width;
  Many parts[count];
  for (int k = 0; k < count; ++k) parts[k] = Many::all(0);
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int k = 0; k < count; ++k) parts[k] = parts[k] + step(Many(), i + k * width);
  }
  float sums[kSums];
  for (int k = 0; k < count; ++k) parts[k].store(sums + k * width);
  for (int k = 0; i < n; ++i, ++k) sums[k] += step(One(), i).x;
  return sum_by_halves(sums);
}

// The largest element; NaN is not larger than anything
inline float largest_of(const float* x, int64_t n) {
  Many all = Many::all(-INFINITY);
  int64_t i = 0;
  for (; i + Many::width <= n; i += Many::width) all = Many::load(x + i).at_least(all);
  float parts[Many::width], largest = -INFINITY;
  all.store(parts);
  for (float part : parts) largest = largest < part ? part : largest;
  for (; i < n; ++i) largest = largest < x[i] ? x[i] : largest;
  return largest;
}

struct Moments {
  float mean, scale;  // the inverse of the standard deviation

  template <typename V>
  V normalized(V x) const {
    return (x - V::all(mean)) * V::all(scale);
  }
};

template <typename In>
Moments moments_of(const In* x, int64_t n, float eps) {
  const float mean = sum_of(n, [=](auto v, int64_t i) { return v.load(x + i); }) / n;
  const float squares = sum_of(n, [=](auto v, int64_t i) {
    const auto difference = v.load(x + i) - v.all(mean);
    return difference * difference;
  });
  return {mean, 1 / std::sqrt(squares / n + eps)};
}

template <typename In, typename Out>
void layer_norm(const void* x_values, const float* gamma, const float* beta, void* out_values,
                RowsShape shape, float eps) {
  const int64_t n = shape.columns;
  const In* x = static_cast<const In*>(x_values);
  Out* out = static_cast<Out*>(out_values);
  for (int64_t row = 0; row < shape.rows; ++row, x += n, out += n) {
    const Moments m = moments_of(x, n, eps);
    each(0, n, [=](auto v, int64_t i) {
      (m.normalized(v.load(x + i)) * v.load(gamma + i) + v.load(beta + i)).store(out + i);
    });
  }
}

template <typename In, typename Out>
void layer_norm_grad(const void* grad_values, const void* x_values, const float* gamma, void* x_grad_values,
                     float* gamma_grad, float* beta_grad, RowsShape shape, float eps) {
  const int64_t n = shape.columns;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const In* x = static_cast<const In*>(x_values) + row * n;
    const Out* grad = static_cast<const Out*>(grad_values) + row * n;
    const Moments m = moments_of(x, n, eps);
    const auto weighted = [=](auto v, int64_t i) { return v.load(grad + i) * v.load(gamma + i); };
    const float mean = x_grad_values ? sum_of(n, weighted) / n : 0;
    const float slope = !x_grad_values ? 0 : sum_of(n, [=](auto v, int64_t i) {
      return weighted(v, i) * m.normalized(v.load(x + i));
    }) / n;
    In* x_grad = static_cast<In*>(x_grad_values) + row * n;
    each(0, n, [=](auto v, int64_t i) {
      const auto g = v.load(grad + i), y = m.normalized(v.load(x + i));
      (v.load(gamma_grad + i) + g * y).store(gamma_grad + i);
      (v.load(beta_grad + i) + g).store(beta_grad + i);
      if (!x_grad_values) return;
      ((g * v.load(gamma + i) - v.all(mean) - y * v.all(slope)) * v.all(m.scale)).store(x_grad + i);
    });
  }
}

void softmax(const float* x, const float*, float* out, int64_t n, float scale) {
  const float largest = largest_of(x, n);
  each(0, n, [=](auto v, int64_t i) {
    exp((v.load(x + i) - v.all(largest)) * v.all(scale)).store(out + i);
  });
  const float sum = sum_of(n, [=](auto v, int64_t i) { return v.load(out + i); });
  each(0, n, [=](auto v, int64_t i) { (v.load(out + i) / v.all(sum)).store(out + i); });
}

void softmax_grad(const float* grad, const float* result, float* out, int64_t n, float scale) {
  const float sum = sum_of(n, [=](auto v, int64_t i) { return v.load(grad + i) * v.load(result + i); });
  each(0, n, [=](auto v, int64_t i) {
    ((v.load(grad + i) - v.all(sum)) * v.load(result + i) * v.all(scale)).store(out + i);
  });
}

// An element of a row's log_softmax is (x - largest) * scale - log_sum.
struct LogSums {
  float largest, log_sum, scale;

  template <typename V>
  V of(V x) const {
    return (x - V::all(largest)) * V::all(scale) - V::all(log_sum);
  }
};

LogSums log_sums_of(const float* x, int64_t n, float scale) {
  const float largest = largest_of(x, n);
  const auto power = [=](auto v, int64_t i) { return exp((v.load(x + i) - v.all(largest)) * v.all(scale)); };
  return {largest, std::log(sum_of(n, power)), scale};
}

void log_softmax(const float* x, const float*, float* out, int64_t n, float scale) {
  const LogSums sums = log_sums_of(x, n, scale);
  each(0, n, [=](auto v, int64_t i) { sums.of(v.load(x + i)).store(out + i); });
}

void log_softmax_grad(const float* grad, const float* result, float* out, int64_t n, float scale) {
  const float sum = sum_of(n, [=](auto v, int64_t i) { return v.load(grad + i); });
  each(0, n, [=](auto v, int64_t i) {
    ((v.load(grad + i) - exp(v.load(result + i)) * v.all(sum)) * v.all(scale)).store(out + i);
  });
}

float picked_log_softmax(const float* x, int64_t picked, float* sums, int64_t n) {
  const LogSums found = log_sums_of(x, n, 1);
  sums[0] = found.largest;
  sums[1] = found.log_sum;
  return found.of(One{x[picked]}).x;
}

void picked_log_softmax_grad(float grad, const float* x, int64_t picked, const float* sums, float* x_grad,
                             int64_t n) {
  const LogSums found{sums[0], sums[1], 1};
  each(0, n, [=](auto v, int64_t i) {
    (v.all(0) - exp(found.of(v.load(x + i))) * v.all(grad)).store(x_grad + i);
  });
  x_grad[picked] += grad;
}

// The normal distribution function and its density. The error is below 1e-7: formula 7.1.26 of Abramowitz and
// Stegun, Handbook of Mathematical Functions (1964), which oneDNN uses, too.
template <typename V>
struct Normal {
  V probability, density;

  explicit Normal(V x) {
    const V zero = V::all(0), one = V::all(1), size = if_less(x, zero, zero - x, x);
    const V power = exp(x * x * V::all(-0.5f)), t = one / fused(size, V::all(0.3275911f * 0.70710678f), one);
    constexpr float coefficients[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
    V sum = V::all(1.061405429f);
    for (const float coefficient : coefficients) sum = fused(sum, t, V::all(coefficient));
    const V tail = sum * t * power * V::all(0.5f);
    probability = if_less(x, zero, tail, one - tail);
    density = power * V::all(0.39894228f);
  }
};

template <typename In, typename Out>
void gelu(const void*, const void* x_values, void* out_values, int64_t n) {
  const In* x = static_cast<const In*>(x_values);
  Out* out = static_cast<Out*>(out_values);
  each(0, n, [=](auto v, int64_t i) {
    const auto value = v.load(x + i);
    (value * Normal<decltype(v)>(value).probability).store(out + i);
  });
}

template <typename In, typename Out>
void gelu_grad(const void* grad_values, const void* x_values, void* x_grad_values, int64_t n) {
  const Out* grad = static_cast<const Out*>(grad_values);
  const In* x = static_cast<const In*>(x_values);
  In* x_grad = static_cast<In*>(x_grad_values);
  each(0, n, [=](auto v, int64_t i) {
    const auto value = v.load(x + i);
    const Normal<decltype(v)> normal(value);
    (v.load(grad + i) * fused(value, normal.density, normal.probability)).store(x_grad + i);
  });
}

template <typename In, typename Out>
constexpr LayerNormKernels kLayerNorm{layer_norm<In, Out>, layer_norm_grad<In, Out>};

const RowsKernels rows_table = {{{kLayerNorm<float, float>, kLayerNorm<float, Bfloat>},
                                 {kLayerNorm<Bfloat, float>, kLayerNorm<Bfloat, Bfloat>}},
                                {{gelu<float, float>, gelu<float, Bfloat>},
                                 {gelu<Bfloat, float>, gelu<Bfloat, Bfloat>}},
                                {{gelu_grad<float, float>, gelu_grad<float, Bfloat>},
                                 {gelu_grad<Bfloat, float>, gelu_grad<Bfloat, Bfloat>}},
                                softmax, softmax_grad, log_softmax, log_softmax_grad,
                                {picked_log_softmax, picked_log_softmax_grad}};

}  // namespace

const RowsKernels* GLUON_AMP_NAMED(rows_kernels)() { return &rows_table; }

}  // namespace gluon_amp
