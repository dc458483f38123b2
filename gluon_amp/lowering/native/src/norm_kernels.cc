// The loops of norm_kernels.h, compiled once for each instruction set.
#include "norm_kernels.h"

#include "evaluation.h"

namespace gluon_amp {

#if defined(GLUON_AMP_AVX512)
#define GLUON_AMP_TABLE avx512_norm_kernels
#elif defined(GLUON_AMP_AVX2)
#define GLUON_AMP_TABLE avx2_norm_kernels
#else
#define GLUON_AMP_TABLE plain_norm_kernels
#endif

namespace {

// The mean of the first positions is close enough to that of all, so that the sums of the differences
// from it lose no precision: they are a sixteenth of all, and so the square of its error is at most 15
// times the variance.
template <typename E, bool kRepeats>
void moments_of(const E* x, const Span& span, float* mean, float* squares, float* scratch) {
  const int64_t positions = span.size / span.lanes, sample = (positions + 15) / 16;
  const Span first{sample * span.lanes, span.lanes, span.channels};
  LaneSums<kRepeats> sums(mean, span.lanes), differences(scratch, span.lanes), products;
  sum_pairs(first, sums, differences,
            [=](auto v, int64_t i, int64_t, auto& s) { s.a = s.a + v.load(x + i); });
  sums.finish();
  for (int64_t lane = 0; lane < span.lanes; ++lane) mean[lane] /= sample;

  const LaneTable<kRepeats> near(mean, span.lanes);
  differences.start(scratch, span.lanes);
  products.start(squares, span.lanes);
  sum_pairs(span, differences, products, [=, &near](auto v, int64_t i, int64_t j, auto& s) {
    const auto difference = v.load(x + i) - near.at(v, j);
    s.a = s.a + difference;
    s.b = fused(difference, difference, s.b);
  });
  differences.finish();
  products.finish();
  for (int64_t lane = 0; lane < span.lanes; ++lane) {
    const float shift = scratch[lane] / positions;
    mean[lane] += shift;
    squares[lane] -= shift * scratch[lane];
    if (squares[lane] < 0) squares[lane] = 0;
  }
}

template <typename E>
void moments(const void* data, const Span& span, float* mean, float* squares, float* scratch) {
  const E* x = static_cast<const E*>(data);
  if (repeats(span.lanes)) return moments_of<E, true>(x, span, mean, squares, scratch);
  moments_of<E, false>(x, span, mean, squares, scratch);
}

// The normalized data
template <typename E, bool kRepeats>
class Normalized {
 public:
  Normalized(const void* data, const Span& span, const LaneConstants& c)
      : x_(static_cast<const E*>(data)),
        mean_(c.mean, span.lanes),
        scale_(c.scale, span.lanes),
        shift_(c.shift, span.lanes) {}

  template <typename V>
  V centered(V v, int64_t i, int64_t j) const {
    return v.load(x_ + i) - mean_.at(v, j);
  }
  template <typename V>
  V of_centered(V centered, int64_t j) const {
    return fused(centered, scale_.at(centered, j), shift_.at(centered, j));
  }
  template <typename V>
  V at(V v, int64_t i, int64_t j) const {
    return of_centered(centered(v, i, j), j);
  }
  template <typename V>
  V scaled(V x, int64_t j) const {
    return x * scale_.at(x, j);
  }

 private:
  const E* x_;
  const LaneTable<kRepeats> mean_, scale_, shift_;
};

// Computes the values of the program for a piece of a span.
template <typename E>
const float* evaluate(Evaluation<E>& evaluation, const Normalized<E, false>& normalized, int64_t i,
                      int64_t j, int64_t size) {
  float* first = evaluation.first();
  int64_t k = 0;
  for (; k + Many::width <= size; k += Many::width) {
    normalized.at(Many(), i + k, j + k).store(first + k);
  }
  for (; k < size; ++k) normalized.at(One(), i + k, j + k).store(first + k);
  evaluation.load(1, i, j, size);
  return evaluation.run(size);
}

template <typename E, bool kRepeats>
bool forward_in_registers(const Program& program, const Span& span, const LaneConstants& constants,
                          const Operand* inputs, E* out) {
  return with_value<E>(program, inputs, [&](auto step) {
    const Normalized<E, kRepeats> normalized(inputs[0].data, span, constants);
    each<kRepeats>(span, [=, &normalized](auto v, int64_t i, int64_t j) {
      step.value(normalized.at(v, i, j), i).store(out + i);
    });
  });
}

template <typename E>
void forward(const Program& program, const Span& span, const LaneConstants& constants,
             const Operand* inputs, void* out) {
  E* y = static_cast<E*>(out);
  const bool common = repeats(span.lanes)
                          ? forward_in_registers<E, true>(program, span, constants, inputs, y)
                          : forward_in_registers<E, false>(program, span, constants, inputs, y);
  if (!common) {
    const Normalized<E, false> normalized(inputs[0].data, span, constants);
    Evaluation<E> evaluation(program, span, inputs);
    each_piece(span, [&](int64_t i, int64_t j, int64_t size) {
      convert(evaluate(evaluation, normalized, i, j, size), y + i, size);
    });
  }
  clear_padding(y, span);
}

template <typename E, bool kRepeats>
bool sums_in_registers(const Program& program, const Span& span, const LaneConstants& constants,
                       const void* grad, const void* result, const Operand* inputs, float* sum,
                       float* product) {
  return with_grad<E>(program, result, [&](auto step) {
    const E* g = static_cast<const E*>(grad);
    const Normalized<E, kRepeats> normalized(inputs[0].data, span, constants);
    LaneSums<kRepeats> sums(sum, span.lanes), products(product, span.lanes);
    sum_pairs(span, sums, products, [=, &normalized](auto v, int64_t i, int64_t j, auto& s) {
      const auto centered = normalized.centered(v, i, j);
      const auto gradient = step.grad(v.load(g + i), normalized.of_centered(centered, j), i);
      s.a = s.a + gradient;
      s.b = fused(gradient, centered, s.b);
    });
    sums.finish();
    products.finish();
  });
}

template <typename E>
void sums(const Program& program, const Span& span, const LaneConstants& constants, const void* grad,
          const void* result, const Operand* inputs, const Target* targets, float* sum,
          float* product) {
  const bool common =
      repeats(span.lanes)
          ? sums_in_registers<E, true>(program, span, constants, grad, result, inputs, sum, product)
          : sums_in_registers<E, false>(program, span, constants, grad, result, inputs, sum, product);
  if (common) {
    // In these programs, all inputs have the gradient of the normalized data.
    for (int v = 1; v < program.inputs; ++v) {
      for (int64_t k = 0; targets[v].sums && k < span.lanes; ++k) targets[v].sums[k] = sum[k];
    }
    return;
  }
  const E* g = static_cast<const E*>(grad);
  const Normalized<E, false> normalized(inputs[0].data, span, constants);
  Evaluation<E> evaluation(program, span, inputs);
  GradientSums<E> others(program.inputs, span, targets);
  LaneSums<false> sums(sum, span.lanes), products(product, span.lanes);
  each_piece(span, [&](int64_t i, int64_t j, int64_t size) {
    evaluate(evaluation, normalized, i, j, size);
    convert(g + i, evaluation.grad(), size);
    evaluation.run_back(size);
    const float* gradient = evaluation.grad_of(0);
    const auto add = [&](auto v, int64_t k) {
      const auto d = v.load(gradient + k);
      (v.load(sums.at(j + k)) + d).store(sums.at(j + k));
      fused(d, normalized.centered(v, i + k, j + k), v.load(products.at(j + k)))
          .store(products.at(j + k));
    };
    int64_t k = 0;
    for (; k + Many::width <= size; k += Many::width) add(Many(), k);
    for (; k < size; ++k) add(One(), k);
    others.add(evaluation, j, size);
  });
  sums.finish();
  products.finish();
  others.finish();
}

// The gradient of the data, from that of the normalized data
template <typename E, bool kRepeats>
class DataGradient {
 public:
  DataGradient(const Normalized<E, kRepeats>& normalized, const Span& span, const LaneConstants& c)
      : normalized_(normalized), constant_(c.constant, span.lanes), slope_(c.slope, span.lanes) {}

  template <typename V>
  V at(V gradient, V centered, int64_t j) const {
    const V straight = normalized_.scaled(gradient, j) - constant_.at(gradient, j);
    return straight - centered * slope_.at(gradient, j);
  }

 private:
  const Normalized<E, kRepeats>& normalized_;
  const LaneTable<kRepeats> constant_, slope_;
};

template <bool flag>
struct Flag {
  static constexpr bool value = flag;
};

template <typename E, bool kRepeats>
bool backward_in_registers(const Program& program, const Span& span, const LaneConstants& constants,
                           const void* grad, const void* result, const Operand* inputs,
                           const Target* targets) {
  return with_grad<E>(program, result, [&](auto step) {
    const E* g = static_cast<const E*>(grad);
    E* first = static_cast<E*>(targets[0].data);
    E* second = program.inputs > 1 ? static_cast<E*>(targets[1].data) : nullptr;
    const Normalized<E, kRepeats> normalized(inputs[0].data, span, constants);
    const DataGradient<E, kRepeats> of_data(normalized, span, constants);
    const auto run = [&](auto has_first, auto has_second) {
      each<kRepeats>(span, [=, &normalized, &of_data](auto v, int64_t i, int64_t j) {
        const auto centered = normalized.centered(v, i, j);
        const auto gradient = step.grad(v.load(g + i), normalized.of_centered(centered, j), i);
        if (has_second.value) gradient.store(second + i);
        if (has_first.value) of_data.at(gradient, centered, j).store(first + i);
      });
    };
    if (first && second) run(Flag<true>(), Flag<true>());
    if (first && !second) run(Flag<true>(), Flag<false>());
    if (!first && second) run(Flag<false>(), Flag<true>());
  });
}

template <typename E>
void backward(const Program& program, const Span& span, const LaneConstants& constants,
              const void* grad, const void* result, const Operand* inputs, const Target* targets) {
  const bool common =
      repeats(span.lanes)
          ? backward_in_registers<E, true>(program, span, constants, grad, result, inputs, targets)
          : backward_in_registers<E, false>(program, span, constants, grad, result, inputs, targets);
  if (!common) {
    const E* g = static_cast<const E*>(grad);
    E* first = static_cast<E*>(targets[0].data);
    const Normalized<E, false> normalized(inputs[0].data, span, constants);
    const DataGradient<E, false> of_data(normalized, span, constants);
    Evaluation<E> evaluation(program, span, inputs);
    each_piece(span, [&](int64_t i, int64_t j, int64_t size) {
      evaluate(evaluation, normalized, i, j, size);
      convert(g + i, evaluation.grad(), size);
      evaluation.run_back(size);
      evaluation.write(targets, 1, i, size);
      if (!first) return;
      const float* gradient = evaluation.grad_of(0);
      const auto write = [&](auto v, int64_t k) {
        const auto centered = normalized.centered(v, i + k, j + k);
        of_data.at(v.load(gradient + k), centered, j + k).store(first + i + k);
      };
      int64_t k = 0;
      for (; k + Many::width <= size; k += Many::width) write(Many(), k);
      for (; k < size; ++k) write(One(), k);
    });
  }
  for (int v = 0; v < program.inputs; ++v) {
    if (targets[v].data) clear_padding(static_cast<E*>(targets[v].data), span);
  }
}

const NormKernels table[] = {
    {moments<Bfloat>, forward<Bfloat>, sums<Bfloat>, backward<Bfloat>},
    {moments<HalfValue>, forward<HalfValue>, sums<HalfValue>, backward<HalfValue>}};

}  // namespace

const NormKernels* GLUON_AMP_TABLE() { return table; }

}  // namespace gluon_amp
