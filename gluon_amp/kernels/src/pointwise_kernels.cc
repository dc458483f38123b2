// The loops of PointwiseKernels in program.h, compiled three times as kernels.cc is.
#include "evaluation.h"

namespace gluon_amp {
namespace {

template <typename E>
void forward(const Program& program, const Span& span, const Operand* inputs, void* out) {
  const E* x = static_cast<const E*>(inputs[0].data);
  E* y = static_cast<E*>(out);
  const bool common = !inputs[0].per_lane && with_value<E>(program, inputs, [&](auto step) {
    each<true>(span, [=](auto v, int64_t i, int64_t) { step.value(v.load(x + i), i).store(y + i); });
  });
  if (!common) {
    Evaluation<E> evaluation(program, span, inputs);
    each_piece(span, [&](int64_t i, int64_t j, int64_t size) {
      evaluation.load(0, i, j, size);
      convert(evaluation.run(size), y + i, size);
    });
  }
  clear_padding(y, span);
}

// Writes or sums a gradient that is grad(Many or One, i).
template <typename E, typename Grad>
void write(const Span& span, const Target& target, Grad grad) {
  if (target.sums) {
    LaneSums<false> sums(target.sums, span.lanes);
    float* const table = sums.at(0);
    each<false>(span, [=](auto v, int64_t i, int64_t j) {
      (v.load(table + j) + grad(v, i)).store(table + j);
    });
    sums.finish();
  } else if (target.data) {
    E* out = static_cast<E*>(target.data);
    each<true>(span, [=](auto v, int64_t i, int64_t) { grad(v, i).store(out + i); });
    clear_padding(out, span);
  }
}

template <typename E>
void backward(const Program& program, const Span& span, const void* grad, const void* result,
              const Operand* inputs, const Target* targets) {
  const E* g = static_cast<const E*>(grad);
  const bool common = with_grad<E>(program, result, [&](auto step) {
    // Steps whose gradient does not depend on the value have none, but the loop below loads one.
    const E* x = inputs[0].data ? static_cast<const E*>(inputs[0].data) : g;
    // The first gradient comes last, since it may overwrite `grad`.
    for (int v = program.inputs - 1; v >= 0; --v) {
      write<E>(span, targets[v], [=](auto v, int64_t i) {
        return step.grad(v.load(g + i), v.load(x + i), i);
      });
    }
  });
  if (common) return;
  Evaluation<E> evaluation(program, span, inputs);
  GradientSums<E> sums(program.inputs, span, targets);
  each_piece(span, [&](int64_t i, int64_t j, int64_t size) {
    evaluation.load(0, i, j, size);
    evaluation.run(size);
    convert(g + i, evaluation.grad(), size);
    evaluation.run_back(size);
    sums.add(evaluation, j, size);
    evaluation.write(targets, i, size);
  });
  sums.finish();
  for (int v = 0; v < program.inputs; ++v) {
    if (targets[v].data) clear_padding(static_cast<E*>(targets[v].data), span);
  }
}

const PointwiseKernels pointwise_table[] = {{forward<Bfloat>, backward<Bfloat>},
                                            {forward<HalfValue>, backward<HalfValue>},
                                            {forward<float>, backward<float>}};

}  // namespace

const PointwiseKernels* GLUON_AMP_NAMED(pointwise_kernels)() { return pointwise_table; }

}  // namespace gluon_amp
