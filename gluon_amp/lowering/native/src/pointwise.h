// Parses the text of a program (program.h): instructions separated by semicolons, each a name, then
// the numbers of the values it reads, then constants. Hard-swish of value 0:
//
//   adds 0 3; clip 1 0 6; divs 2 6; mul 0 3
//
// Each instruction has the value and the gradient of MXNet's operator in float32: `clip`, `sqrt` and
// so on; `leaky` is LeakyReLU with a slope, `adds` is _plus_scalar, `rsubs` is _rminus_scalar (constant
// minus value), `maxs` is _maximum_scalar.
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
    {"sqrt", Do::sqrt, 1, 0},       {"square", Do::square, 1, 0}, {"abs", Do::abs, 1, 0},
    {"negative", Do::negative, 1, 0}, {"add", Do::add, 2, 0},   {"sub", Do::sub, 2, 0},
    {"mul", Do::mul, 2, 0},         {"div", Do::div, 2, 0},     {"adds", Do::adds, 1, 1},
    {"subs", Do::subs, 1, 1},       {"rsubs", Do::rsubs, 1, 1}, {"muls", Do::muls, 1, 1},
    {"divs", Do::divs, 1, 1},       {"maxs", Do::maxs, 1, 1},   {"mins", Do::mins, 1, 1},
    {"round", Do::round, 1, 0},
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

inline Kind kind_of(const Program& program) {
  const Instruction *first = program.instructions, *second = first + 1;
  const bool one = program.inputs == 1, two = program.inputs == 2;
  if (one && program.count == 0) return Kind::nothing;
  if (one && program.count == 1 && first->what == Do::relu) return Kind::relu;
  if (one && program.count == 1 && first->what == Do::clip) return Kind::clip;
  if (!two || first->what != Do::add || first->a + first->b != 1) return Kind::general;
  if (program.count == 1) return Kind::add;
  const bool relu = program.count == 2 && second->what == Do::relu && second->a == 2;
  return relu ? Kind::add_relu : Kind::general;
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
  program.kind = kind_of(program);
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
