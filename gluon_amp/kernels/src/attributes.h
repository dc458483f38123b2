// The attributes of a node, read from their text.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "nnvm_binary.h"

namespace gluon_amp {

// The text of an attribute; `missing` if the node does not have it.
inline std::string text_of(const NodeAttrs& attrs, const std::string& name,
                           const std::string& missing = "") {
  // Not dict.find(): the class has changed (nnvm_binary.h), and only iterating works as before.
  for (const auto& item : attrs.dict) {
    if (item.first == name) return item.second;
  }
  return missing;
}

// The whole numbers in an attribute such as "(2, 3)", "[2,]" or "7".
inline std::vector<int64_t> integers_of(const NodeAttrs& attrs, const std::string& name) {
  const std::string text = text_of(attrs, name);
  std::vector<int64_t> result;
  for (const char* next = text.c_str(); *next;) {
    char* end;
    const bool starts = ('0' <= *next && *next <= '9') || *next == '-';
    const long long number = starts ? std::strtoll(next, &end, 10) : 0;
    if (starts && end != next) {
      result.push_back(number);
      next = end;
    } else {
      ++next;
    }
  }
  return result;
}

// Two whole numbers from `least` to `most`, such as a kernel's height and width; both are `missing` if the
// node does not have the attribute.
inline std::vector<int64_t> pair_of(const NodeAttrs& attrs, const std::string& name, int64_t missing,
                                    int64_t least, int64_t most) {
  auto numbers = integers_of(attrs, name);
  if (numbers.empty()) numbers.assign(2, missing);
  CHECK_EQ(numbers.size(), 2) << attrs.op->name << ": " << name << " must be two numbers";
  for (const int64_t number : numbers) {
    CHECK(least <= number && number <= most) << attrs.op->name << ": " << name << " of " << number;
  }
  return numbers;
}

// One whole number; `missing` if the node does not have the attribute.
inline int64_t integer_of(const NodeAttrs& attrs, const std::string& name, int64_t missing) {
  const auto numbers = integers_of(attrs, name);
  return numbers.empty() ? missing : numbers[0];
}

inline double number_of(const NodeAttrs& attrs, const std::string& name, double missing) {
  const std::string text = text_of(attrs, name);
  return text.empty() ? missing : std::strtod(text.c_str(), nullptr);
}

inline bool flag_of(const NodeAttrs& attrs, const std::string& name) {
  const std::string text = text_of(attrs, name);
  return text == "True" || text == "true" || text == "1";
}

}  // namespace gluon_amp
