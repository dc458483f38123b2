// Parses the text of a program (program.h): instructions separated by semicolons, each a name, then
// the numbers of the values it reads, then constants. Hard-swish of value 0:
//
//   adds 0 3; clip 1 0 6; divs 2 6; mul 0 3
//
// Each instruction has the value and the gradient of MXNet's operator in float32: `clip`, `exp` and so
// on; `leaky` is LeakyReLU with a slope, `adds` is _plus_scalar, `maxs` is _maximum_scalar.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>

#include "attributes.h"
#include "program.h"

namespace gluon_amp {

struct Grammar {
  const char* name;
  Do what;
  int values, constants;
};

constexpr Grammar kGrammar[] = {
    {"relu", Do::relu, 1, 0},       {"clip", Do::clip, 1, 2},   {"leaky", Do::leaky, 1, 1},
    {"sigmoid", Do::sigmoid, 1, 0}, {"tanh", Do::tanh, 1, 0},   {"exp", Do::exp, 1, 0},
    {"square", Do::square, 1, 0},   {"abs", Do::abs, 1, 0},     {"add", Do::add, 2, 0},
    {"sub", Do::sub, 2, 0},         {"mul", Do::mul, 2, 0},     {"div", Do::div, 2, 0},
    {"adds", Do::adds, 1, 1},       {"muls", Do::muls, 1, 1},   {"divs", Do::divs, 1, 1},
    {"maxs", Do::maxs, 1, 1},       {"mins", Do::mins, 1, 1},   {"round", Do::round, 1, 0},
};

// The next number of an instruction
inline double next_number(std::istringstream& words, const std::string& text) {
  std::string word;
  CHECK(words >> word) << "program \"" << text << "\": a number is missing";
  char* end;
  const double number = std::strtod(word.c_str(), &end);
  CHECK(*end == '\0' && number == number) << "program \"" << text << "\": " << word
                                          << " is not a number";
  return number;
}

// The common programs. They may round value 0 first. They may also round a sum before its relu: the
// result is rounded anyway, and so is its gradient.
struct Pattern {
  Kind kind;
  bool rounds;
  int inputs, count;
  Instruction instructions[4];
};

constexpr Pattern kPatterns[] = {
    {Kind::nothing, false, 1, 0, {}},
    {Kind::nothing, true, 1, 1, {{Do::round, 0}}},
    {Kind::relu, false, 1, 1, {{Do::relu, 0}}},
    {Kind::relu, true, 1, 2, {{Do::round, 0}, {Do::relu, 1}}},
    {Kind::clip, false, 1, 1, {{Do::clip, 0}}},
    {Kind::clip, true, 1, 2, {{Do::round, 0}, {Do::clip, 1}}},
    {Kind::add, false, 2, 1, {{Do::add, 0, 1}}},
    {Kind::add, true, 2, 2, {{Do::round, 0}, {Do::add, 2, 1}}},
    {Kind::add_relu, false, 2, 2, {{Do::add, 0, 1}, {Do::relu, 2}}},
    {Kind::add_relu, false, 2, 3, {{Do::add, 0, 1}, {Do::round, 2}, {Do::relu, 3}}},
    {Kind::add_relu, true, 2, 3, {{Do::round, 0}, {Do::add, 2, 1}, {Do::relu, 3}}},
    {Kind::add_relu, true, 2, 4, {{Do::round, 0}, {Do::add, 2, 1}, {Do::round, 3}, {Do::relu, 4}}},
};

inline bool matches(const Program& program, const Pattern& pattern) {
  bool same = program.inputs == pattern.inputs && program.count == pattern.count;
  for (int k = 0; same && k < program.count; ++k) {
    const Instruction &a = program.instructions[k], &b = pattern.instructions[k];
    const bool swapped = a.what == Do::add && a.a == b.b && a.b == b.a;
    same = a.what == b.what && (swapped || (a.a == b.a && a.b == b.b));
  }
  return same;
}

inline void set_kind(Program& program) {
  for (const auto& pattern : kPatterns) {
    if (!matches(program, pattern)) continue;
    program.kind = pattern.kind;
    program.rounds = pattern.rounds;
    if (program.kind == Kind::clip) {
      program.low = program.instructions[program.count - 1].x;
      program.high = program.instructions[program.count - 1].y;
    }
  }
}

inline Program parse_program(const std::string& text, int64_t inputs) {
  CHECK(1 <= inputs && inputs <= kMaxInputs) << "a program has 1 to " << kMaxInputs << " inputs, not "
                                             << inputs;
  Program program{};
  program.inputs = static_cast<int>(inputs);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line, ';');) {
    std::istringstream words(line);
    std::string name, rest;
    if (!(words >> name)) continue;
    const Grammar* grammar = nullptr;
    for (const auto& each : kGrammar) {
      if (name == each.name) grammar = &each;
    }
    CHECK(grammar) << "program \"" << text << "\": no instruction is named " << name;
    CHECK_LT(program.count, kMaxInstructions) << "program of too many instructions";
    const int known = program.inputs + program.count;
    int values[2] = {0, 0};
    float constants[2] = {0, 0};
    for (int i = 0; i < grammar->values; ++i) {
      const double number = next_number(words, text);
      CHECK(0 <= number && number < known && number == static_cast<int>(number))
          << "program \"" << text << "\": " << number << " is not the number of an earlier value";
      values[i] = static_cast<int>(number);
    }
    for (int i = 0; i < grammar->constants; ++i) {
      constants[i] = static_cast<float>(next_number(words, text));
    }
    CHECK(!(words >> rest)) << "program \"" << text << "\": " << rest << " is not expected";
    program.instructions[program.count++] = {grammar->what, values[0], values[1], constants[0],
                                             constants[1]};
  }
  program.values = program.inputs + program.count;
  program.result = program.count ? program.values - 1 : 0;
  set_kind(program);
  return program;
}

inline Program program_of(const NodeAttrs& attrs, int64_t inputs) {
  return parse_program(text_of(attrs, "program"), inputs);
}

// What the gradient of a program reads. A sum's gradient is that of its result.
inline Needs needs_of(const Program& program) {
  switch (program.kind) {
    case Kind::nothing:
    case Kind::add:
      return Needs::nothing;
    case Kind::relu:
    case Kind::add_relu:
      return Needs::result;
    default:
      return Needs::values;
  }
}

}  // namespace gluon_amp
