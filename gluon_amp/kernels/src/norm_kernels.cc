// The loops of norm_kernels.h, compiled three times as kernels.cc is.
#include "evaluation.h"

namespace gluon_amp {
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

  const LaneTable<kRepeats> table(mean, span.lanes);
  const auto near = table.values();
  differences.start(scratch, span.lanes);
  products.start(squares, span.lanes);
  sum_pairs(span, differences, products, [=](auto v, int64_t i, int64_t j, auto& s) {
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
  with_repeats(span.lanes, [=, &span](auto repeats) {
    moments_of<E, repeats.value>(x, span, mean, squares, scratch);
  });
}

template <bool kRepeats>
struct NormTables {
  const LaneTable<kRepeats> mean, scale, shift;

  NormTables(const Span& span, const LaneConstants& c)
      : mean(c.mean, span.lanes), scale(c.scale, span.lanes), shift(c.shift, span.lanes) {}
};

// The normalized data
template <typename E, bool kRepeats>
struct Normalized {
  const E* x;
  LaneValues<kRepeats> mean, scale, shift;

  Normalized(const void* data, const NormTables<kRepeats>& tables)
      : x(static_cast<const E*>(data)),
        mean(tables.mean.values()),
        scale(tables.scale.values()),
        shift(tables.shift.values()) {}

  template <typename V>
  V centered(V v, int64_t i, int64_t j) const {
    return v.load(x + i) - mean.at(v, j);
  }
  template <typename V>
  V of_centered(V centered, int64_t j) const {
    return fused(centered, scale.at(centered, j), shift.at(centered, j));
  }
  template <typename V>
  V at(V v, int64_t i, int64_t j) const {
    return of_centered(centered(v, i, j), j);
  }
};

// Computes the values of the program for a piece of a span.
template <typename E>
const float* evaluate(Evaluation<E>& evaluation, const Normalized<E, false>& normalized, int64_t i,
                      int64_t j, int64_t size) {
  float* first = evaluation.first();
  each(0, size, [=](auto v, int64_t k) { normalized.at(v, i + k, j + k).store(first + k); });
  evaluation.load(1, i, j, size);
  return evaluation.run(size);
}

template <typename E>
void forward(const Program& program, const Span& span, const LaneConstants& constants,
             const Operand* inputs, void* out) {
  E* const y = static_cast<E*>(out);
  const bool common = with_repeats(span.lanes, [&](auto repeats) {
    return with_value<E>(program, inputs, [&](auto step) {
      constexpr bool kRepeats = decltype(repeats)::value;
      const NormTables<kRepeats> tables(span, constants);
      const Normalized<E, kRepeats> normalized(inputs[0].data, tables);
      each<kRepeats>(span, [=](auto v, int64_t i, int64_t j) {
        step.value(normalized.at(v, i, j), i).store(y + i);
      });
    });
  });
  if (!common) {
    const NormTables<false> tables(span, constants);
    const Normalized<E, false> normalized(inputs[0].data, tables);
    Evaluation<E> evaluation(program, span, inputs);
    each_piece(span, [&](int64_t i, int64_t j, int64_t size) {
      convert(evaluate(evaluation, normalized, i, j, size), y + i, size);
    });
  }
  clear_padding(y, span);
}

// The sums of a general program; the gradients of its inputs replace that of its result.
template <typename E>
void general_sums(const Program& program, const Span& span, const LaneConstants& constants, const E* g,
                  const Operand* inputs, const Target* targets, float* sum, float* product) {
  const NormTables<false> tables(span, constants);
  const Normalized<E, false> normalized(inputs[0].data, tables);
  Evaluation<E> evaluation(program, span, inputs);
  GradientSums<E> others(program.inputs, span, targets);
  LaneSums<false> sums(sum, span.lanes), products(product, span.lanes);
  each_piece(span, [&](int64_t i, int64_t j, int64_t size) {
    evaluate(evaluation, normalized, i, j, size);
    convert(g + i, evaluation.grad(), size);
    evaluation.run_back(size);
    const float* gradient = evaluation.grad_of(0);
    float *const sums_here = sums.at(j), *const products_here = products.at(j);
    each(0, size, [=](auto v, int64_t k) {
      const auto d = v.load(gradient + k), centered = normalized.centered(v, i + k, j + k);
      (v.load(sums_here + k) + d).store(sums_here + k);
      fused(d, centered, v.load(products_here + k)).store(products_here + k);
    });
    others.add(evaluation, j, size);
    evaluation.write(targets, i, size);
  });
  sums.finish();
  products.finish();
  others.finish();
}

template <typename E>
void sums(const Program& program, const Span& span, const LaneConstants& constants, const void* grad,
          const void* result, const Operand* inputs, const Target* targets, float* sum,
          float* product) {
  const E* const g = static_cast<const E*>(grad);
  const bool common = with_repeats(span.lanes, [&](auto repeats) {
    return with_grad<E>(program, result, [&](auto step) {
      constexpr bool kRepeats = decltype(repeats)::value;
      const NormTables<kRepeats> tables(span, constants);
      const Normalized<E, kRepeats> normalized(inputs[0].data, tables);
      LaneSums<kRepeats> sums(sum, span.lanes), products(product, span.lanes);
      sum_pairs(span, sums, products, [=](auto v, int64_t i, int64_t j, auto& s) {
        const auto centered = normalized.centered(v, i, j);
        const auto gradient = step.grad(v.load(g + i), normalized.of_centered(centered, j), i);
        s.a = s.a + gradient;
        s.b = fused(gradient, centered, s.b);
      });
      sums.finish();
      products.finish();
    });
  });
  if (!common) {
    return general_sums<E>(program, span, constants, g, inputs, targets, sum, product);
  }
  // In these programs, all inputs have the gradient of the normalized data.
  for (int v = 1; v < program.inputs; ++v) {
    for (int64_t k = 0; targets[v].sums && k < span.lanes; ++k) targets[v].sums[k] = sum[k];
  }
}

// Writes the gradients of the data to `first`, and that of the normalized data to `second`.
template <typename E, bool kRepeats, typename Step>
void write_gradients(const Span& span, const LaneConstants& constants, const void* grad,
                     const void* data, Step step, E* first, E* second) {
  const E* g = static_cast<const E*>(grad);
  const NormTables<kRepeats> tables(span, constants);
  const Normalized<E, kRepeats> normalized(data, tables);
  const LaneTable<kRepeats> constant_table(constants.constant, span.lanes);
  const LaneTable<kRepeats> slope_table(constants.slope, span.lanes);
  const auto constant = constant_table.values(), slope = slope_table.values();
  const auto run = [=, &span](auto has_first, auto has_second) {
    each<kRepeats>(span, [=](auto v, int64_t i, int64_t j) {
      const auto centered = normalized.centered(v, i, j);
      const auto gradient = step.grad(v.load(g + i), normalized.of_centered(centered, j), i);
      if (has_second.value) gradient.store(second + i);
      if (!has_first.value) return;
      const auto rest = fused(centered, slope.at(v, j), constant.at(v, j));
      fused(gradient, normalized.scale.at(v, j), rest).store(first + i);
    });
  };
  if (first && second) run(std::true_type(), std::true_type());
  if (first && !second) run(std::true_type(), std::false_type());
  if (!first && second) run(std::false_type(), std::true_type());
}

template <typename E>
void backward(const Program& program, const Span& span, const LaneConstants& constants,
              const void* grad, const void* result, const Operand* inputs, const Target* targets) {
  E* const none = nullptr;
  E* const first = static_cast<E*>(targets[0].data);
  E* const second = program.inputs > 1 ? static_cast<E*>(targets[1].data) : none;
  with_repeats(span.lanes, [&](auto repeats) {
    constexpr bool kRepeats = decltype(repeats)::value;
    const bool common = with_grad<E>(program, result, [&](auto step) {
      write_gradients<E, kRepeats>(span, constants, grad, inputs[0].data, step, first, second);
    });
    // Otherwise, `sums` has written the gradient of the normalized data, and all others.
    if (!common) write_gradients<E, kRepeats>(span, constants, first, inputs[0].data, Nothing(), first, none);
  });
  for (int v = 0; v < program.inputs; ++v) {
    if (targets[v].data) clear_padding(static_cast<E*>(targets[v].data), span);
  }
}

const NormKernels norm_table[] = {
    {moments<Bfloat>, forward<Bfloat>, sums<Bfloat>, backward<Bfloat>},
    {moments<HalfValue>, forward<HalfValue>, sums<HalfValue>, backward<HalfValue>},
    {moments<float>, forward<float>, sums<float>, backward<float>}};

}  // namespace

const NormKernels* GLUON_AMP_NAMED(norm_kernels)() { return norm_table; }

}  // namespace gluon_amp
