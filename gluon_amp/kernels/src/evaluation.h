// Evaluates programs (program.h): the commonest ones in registers, all others in chunks of float32
// in the L1 cache, one loop per instruction.
#pragma once

#include "spans.h"
#include "vector_math.h"

namespace gluon_amp {
namespace {

// ------------------------------------------------------------------------ programs in registers

// The functions of a step: `value` of the first input x at element i, and `grad`, the gradient of all
// inputs, where g is the gradient of the result.
struct Nothing {
  template <typename V>
  V value(V x, int64_t) const { return x; }
  template <typename V>
  V grad(V g, V, int64_t) const { return g; }
};

// oneDNN multiplies the gradient by a slope of 0 or 1: inf becomes NaN, which an overflow check sees.
struct Relu {
  template <typename V>
  V value(V x, int64_t) const { return x.or_zero(); }
  template <typename V>
  V grad(V g, V x, int64_t) const { return g.where_positive(x, g * V::all(0)); }
};

struct Clip {
  float low, high;
  template <typename V>
  V value(V x, int64_t) const {
    const V a = V::all(low), b = V::all(high);
    return if_less(b, x, b, if_less(x, a, a, x));
  }
  template <typename V>
  V grad(V g, V x, int64_t) const {
    return if_less(V::all(high), x, V::all(0), if_less(x, V::all(low), V::all(0), g));
  }
};

template <typename E>
struct Add {
  const E* other;
  template <typename V>
  V value(V x, int64_t i) const { return x + V::load(other + i); }
};

template <typename E>
struct AddRelu {
  const E* other;
  template <typename V>
  V value(V x, int64_t i) const { return (x + V::load(other + i)).or_zero(); }
};

// The gradient of a relu, or of the relu of a sum, from the result
template <typename E>
struct FromResult {
  const E* result;
  template <typename V>
  V grad(V g, V, int64_t i) const { return Relu().grad(g, V::load(result + i), i); }
};

// A step of a value that is rounded first
template <typename Step>
struct Rounded {
  Step step;
  template <typename V>
  V value(V x, int64_t i) const { return step.value(x.rounded(), i); }
  template <typename V>
  V grad(V g, V x, int64_t i) const { return step.grad(g, x.rounded(), i); }
};

// Calls body(step), with a rounded step if the program rounds. Returns false if there is none: rounding to
// bfloat16 takes long, and these programs belong to the emulation of float16.
template <typename Step, typename Body>
inline bool with_step(HalfValue, const Program& program, Step step, Body body) {
  if (program.rounds) {
    body(Rounded<Step>{step});
  } else {
    body(step);
  }
  return true;
}

template <typename E, typename Step, typename Body>
inline bool with_step(E, const Program& program, Step step, Body body) {
  if (!program.rounds) body(step);
  return !program.rounds;
}

// Calls body(step) for one of the common programs; returns false for others.
template <typename E, typename Body>
inline bool with_value(const Program& program, const Operand* inputs, Body body) {
  const E* other = static_cast<const E*>(inputs[1].data);
  switch (program.kind) {
    case Kind::nothing: return body(Nothing()), true;
    case Kind::relu: return body(Relu()), true;
    case Kind::clip: return with_step(E(), program, Clip{program.low, program.high}, body);
    case Kind::add: return !inputs[1].per_lane && with_step(E(), program, Add<E>{other}, body);
    case Kind::add_relu: return !inputs[1].per_lane && with_step(E(), program, AddRelu<E>{other}, body);
    default: return false;
  }
}

template <typename E, typename Body>
inline bool with_grad(const Program& program, const void* result, Body body) {
  if (result) return body(FromResult<E>{static_cast<const E*>(result)}), true;
  switch (program.kind) {
    case Kind::nothing:
    case Kind::add: return body(Nothing()), true;
    case Kind::relu: return with_step(E(), program, Relu(), body);
    case Kind::clip: return with_step(E(), program, Clip{program.low, program.high}, body);
    default: return false;
  }
}

// -------------------------------------------------------------------------------- all programs

template <typename E>
inline Many rounded_to(Many x) {
  E rounded[Many::width];
  x.store(rounded);
  return Many::load(rounded);
}

// The values of a program, and the gradients of the result with respect to them, of a piece of a span.
// Loops run over whole Manys: what they compute beyond the end of the piece is not used.
template <typename E>
class Evaluation {
 public:
  Evaluation(const Program& program, const Span& span, const Operand* inputs)
      : program_(program), inputs_(inputs) {
    for (int v = 0; v < program.values; ++v) value_[v] = values_[v];
    if (span.lanes > kChunk) return;
    for (int v = 0; v < program.inputs; ++v) {  // repeat what all pieces read
      if (!inputs[v].per_lane || !inputs[v].data) continue;
      const E* lanes = static_cast<const E*>(inputs[v].data);
      const int64_t period = period_of(span.lanes);
      for (int64_t j = 0; j < period; j += span.lanes) convert(lanes, values_[v] + j, span.lanes);
      repeated_[v] = true;
    }
  }
  Evaluation(const Evaluation&) = delete;

  float* first() { return values_[0]; }

  // Loads the inputs from number `from` on, of the piece from element i of the span and j of the
  // period on.
  void load(int from, int64_t i, int64_t j, int64_t size) {
    for (int v = from; v < program_.inputs; ++v) {
      if (repeated_[v]) continue;
      const E* data = static_cast<const E*>(inputs_[v].data);
      convert(data + (inputs_[v].per_lane ? j : i), values_[v], size);
    }
  }

  // Computes the values and returns the result.
  const float* run(int64_t size) {
    for (int k = 0; k < program_.count; ++k) {
      const Instruction& step = program_.instructions[k];
      compute(step, value_[step.a], value_[step.b], values_[program_.inputs + k], size);
    }
    return value_[program_.result];
  }

  // After run(): returns room for the gradient of the result.
  float* grad() { return grads_[program_.result]; }

  // Computes the gradients of all inputs from grad().
  void run_back(int64_t size) {
    for (int v = 0; v < program_.values; ++v) seen_[v] = v == program_.result;
    for (int k = program_.count - 1; k >= 0; --k) {
      if (seen_[program_.inputs + k]) differentiate(k, size);
    }
    for (int v = 0; v < program_.inputs; ++v) {
      if (!seen_[v]) add_to(v, size, [](int64_t) { return Many::all(0); });
    }
  }

  const float* grad_of(int input) const { return grads_[input]; }

  // Writes the gradients of the inputs of which elements are wanted.
  void write(const Target* targets, int64_t i, int64_t size) const {
    for (int v = 0; v < program_.inputs; ++v) {
      if (targets[v].data) convert(grads_[v], static_cast<E*>(targets[v].data) + i, size);
    }
  }

 private:
  template <typename Term>
  void add_to(int v, int64_t size, Term term) {
    float* sum = grads_[v];
    if (seen_[v]) {
      for (int64_t i = 0; i < size; i += Many::width) (Many::load(sum + i) + term(i)).store(sum + i);
    } else {
      for (int64_t i = 0; i < size; i += Many::width) term(i).store(sum + i);
    }
    seen_[v] = true;
  }

  static void compute(const Instruction& step, const float* a, const float* b, float* out,
                      int64_t size) {
    const Many x = Many::all(step.x), zero = Many::all(0);
    const auto loop = [=](auto f) {
      for (int64_t i = 0; i < size; i += Many::width) {
        f(Many::load(a + i), Many::load(b + i)).store(out + i);
      }
    };
    const Clip clip{step.x, step.y};
    switch (step.what) {
      case Do::relu: return loop([](Many u, Many) { return u.or_zero(); });
      case Do::clip: return loop([=](Many u, Many) { return clip.value(u, 0); });
      case Do::leaky: return loop([=](Many u, Many) { return u.where_positive(u, u * x); });
      case Do::sigmoid: return loop([](Many u, Many) { return sigmoid(u); });
      case Do::tanh: return loop([](Many u, Many) { return tanh(u); });
      case Do::exp: return loop([](Many u, Many) { return exp(u); });
      case Do::square: return loop([](Many u, Many) { return u * u; });
      case Do::abs: return loop([=](Many u, Many) { return if_less(u, zero, zero - u, u); });
      case Do::add: return loop([](Many u, Many v) { return u + v; });
      case Do::sub: return loop([](Many u, Many v) { return u - v; });
      case Do::mul: return loop([](Many u, Many v) { return u * v; });
      case Do::div: return loop([](Many u, Many v) { return u / v; });
      case Do::adds: return loop([=](Many u, Many) { return u + x; });
      case Do::muls: return loop([=](Many u, Many) { return u * x; });
      case Do::divs: return loop([=](Many u, Many) { return u / x; });
      case Do::maxs: return loop([=](Many u, Many) { return if_less(u, x, x, u); });
      case Do::mins: return loop([=](Many u, Many) { return if_less(x, u, x, u); });
      case Do::round: return loop([](Many u, Many) { return rounded_to<E>(u); });
    }
  }

  // Adds the gradients of the values that an instruction reads.
  void differentiate(int k, int64_t size) {
    const Instruction& step = program_.instructions[k];
    const int out = program_.inputs + k;
    const float *grad = grads_[out], *result = values_[out], *a = value_[step.a], *b = value_[step.b];
    const Many x = Many::all(step.x), zero = Many::all(0), one = Many::all(1);
    // f(gradient of the result, first value, result)
    const auto first = [&](auto f) {
      add_to(step.a, size, [=](int64_t i) {
        return f(Many::load(grad + i), Many::load(a + i), Many::load(result + i));
      });
    };
    // f(gradient of the result, first value, second value)
    const auto each_of = [&](auto f_a, auto f_b) {
      const auto term = [=](auto f) {
        return [=](int64_t i) {
          return f(Many::load(grad + i), Many::load(a + i), Many::load(b + i));
        };
      };
      add_to(step.a, size, term(f_a));
      add_to(step.b, size, term(f_b));
    };
    const auto same = [](Many g, Many, Many) { return g; };
    const auto negative = [=](Many g, Many, Many) { return g * (zero - one); };
    const Clip clip{step.x, step.y};
    switch (step.what) {
      case Do::relu: return first([](Many g, Many u, Many) { return Relu().grad(g, u, 0); });
      case Do::clip: return first([=](Many g, Many u, Many) { return clip.grad(g, u, 0); });
      case Do::leaky: return first([=](Many g, Many u, Many) { return g.where_positive(u, g * x); });
      case Do::sigmoid: return first([=](Many g, Many, Many y) { return g * (y * (one - y)); });
      case Do::tanh: return first([=](Many g, Many, Many y) { return g * (one - y * y); });
      case Do::exp: return first([](Many g, Many, Many y) { return g * y; });
      case Do::square: return first([](Many g, Many u, Many) { return g * (u * u.all(2)); });
      case Do::abs:
        return first([=](Many g, Many u, Many) {
          return g * if_less(u, zero, zero - one, if_less(zero, u, one, zero));
        });
      case Do::add: return each_of(same, same);
      case Do::sub: return each_of(same, negative);
      case Do::mul:
        return each_of([](Many g, Many, Many v) { return g * v; },
                       [](Many g, Many u, Many) { return g * u; });
      case Do::div:
        return each_of([](Many g, Many, Many v) { return g / v; },
                       [=](Many g, Many u, Many v) { return g * ((zero - u) / (v * v)); });
      case Do::adds: return first(same);
      case Do::muls: return first([=](Many g, Many, Many) { return g * x; });
      case Do::divs: return first([=](Many g, Many, Many) { return g / x; });
      case Do::maxs:
        return first([=](Many g, Many u, Many) { return g * if_at_most(x, u, one, zero); });
      case Do::mins:
        return first([=](Many g, Many u, Many) { return g * if_at_most(u, x, one, zero); });
      case Do::round: return first([](Many g, Many, Many) { return rounded_to<E>(g); });
    }
  }

  const Program& program_;
  const Operand* inputs_;
  bool repeated_[kMaxInputs] = {}, seen_[kMaxValues];
  const float* value_[kMaxValues];
  alignas(64) float values_[kMaxValues][kChunk];
  alignas(64) float grads_[kMaxValues][kChunk];
};

// Sums of the gradients of a program's inputs, one per lane
template <typename E>
class GradientSums {
 public:
  GradientSums(int inputs, const Span& span, const Target* targets)
      : inputs_(inputs), targets_(targets) {
    for (int v = 0; v < inputs; ++v) {
      if (targets[v].sums) sums_[v].start(targets[v].sums, span.lanes);
    }
  }

  void add(const Evaluation<E>& evaluation, int64_t j, int64_t size) {
    for (int v = 0; v < inputs_; ++v) {
      if (!targets_[v].sums) continue;
      const float* grad = evaluation.grad_of(v);
      float* sum = sums_[v].at(j);
      for (int64_t k = 0; k < size; ++k) sum[k] += grad[k];
    }
  }

  void finish() {
    for (int v = 0; v < inputs_; ++v) {
      if (targets_[v].sums) sums_[v].finish();
    }
  }

 private:
  const int inputs_;
  const Target* targets_;
  LaneSums<false> sums_[kMaxInputs];
};

}  // namespace

}  // namespace gluon_amp
