// A program of a few elementwise instructions, as the kernels read it. pointwise.h parses its text.
//
// Values are numbered: first the inputs, then the result of each instruction. The last value is the
// result; that of a program without instructions is value 0.
#pragma once

#include <cstdint>

namespace gluon_amp {

constexpr int kMaxInputs = 8, kMaxInstructions = 64, kMaxValues = kMaxInputs + kMaxInstructions;

enum class Do {
  relu, clip, leaky, sigmoid, tanh, exp, square, abs,  // of one value
  add, sub, mul, div,                                  // of two values
  adds, muls, divs, maxs, mins,                        // of a value and a constant
  round,  // rounds to the element type; its gradient is rounded as well
};

struct Instruction {
  Do what;
  int a, b;    // numbers of values
  float x, y;  // constants
};

// The commonest programs, which are computed in registers
enum class Kind { general, nothing, relu, clip, add, add_relu };

struct Program {
  int inputs, count, values, result;  // values = inputs + count
  Instruction instructions[kMaxInstructions];
  Kind kind;
  bool rounds;      // a program of this kind reads value 0 rounded
  float low, high;  // bounds of Kind::clip
};

// The gradient reads the values of all inputs, or only the result of the program, or neither.
enum class Needs { values, result, nothing };

// Some positions of one group of one image
struct Span {
  int64_t size;      // elements: positions * lanes
  int64_t lanes;
  int64_t channels;  // the other lanes are padding
};

// An input of a program: elements of the span, or one element per lane. Null if it is not read.
struct Operand {
  const void* data;
  bool per_lane;
};

// Where the gradient of an input is written: elements of the span, or float32 sums, one per lane.
// Both are null if the gradient is not wanted.
struct Target {
  void* data;
  float* sums;
};

// Programs over blocked arrays (pointwise_kernels.cc), for three instruction sets. Each function is serial and
// processes one span.
struct PointwiseKernels {
  void (*forward)(const Program&, const Span&, const Operand* inputs, void* out);
  // `result` and `inputs` are read as needs_of says (pointwise.h). The gradient of the first input may
  // be the memory of `grad`.
  void (*backward)(const Program&, const Span&, const void* grad, const void* result,
                   const Operand* inputs, const Target* targets);
};

}  // namespace gluon_amp
