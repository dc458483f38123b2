// Loops over the elements of a span, with one float32 per lane beside them.
//
// A period is a whole number of positions. Tables hold one float for each element of a period, so that
// a loop over contiguous elements is vectorized for any number of lanes. If the lanes divide the
// floats of a Many, a single Many holds the table (`kRepeats`).
#pragma once

#include <type_traits>

#include "program.h"
#include "vectors.h"

namespace gluon_amp {
namespace {

constexpr int64_t kChunk = 256;  // floats of a table or a piece of a span: 1 KiB, so that many fit in L1

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Calls body(std::true_type) if a Many holds the table of these lanes, otherwise body(std::false_type).
template <typename Body>
inline auto with_repeats(int64_t lanes, Body body) {
  return Many::width % lanes == 0 ? body(std::true_type()) : body(std::false_type());
}

// A period of at most kChunk elements, or one position. If possible, it consists of whole Manys.
inline int64_t period_of(int64_t lanes) {
  if (lanes > kChunk) return lanes;
  for (int64_t count = kChunk / lanes; count > 0; --count) {
    if (count * lanes % Many::width == 0) return count * lanes;
  }
  return kChunk / lanes * lanes;
}

// Calls body(i, j, size) for pieces of at most kChunk elements, from element i of the span and j of
// the period on.
template <typename Body>
inline void each_piece(const Span& span, Body body) {
  const int64_t period = period_of(span.lanes);
  for (int64_t start = 0; start < span.size; start += period) {
    const int64_t size = least(period, span.size - start);
    for (int64_t j = 0; j < size; j += kChunk) body(start + j, j, least(kChunk, size - j));
  }
}

// Calls step(Many or One, i, j) for all elements i of the span, whose place in the period is j.
template <bool kRepeats, typename Step>
inline void each(const Span& span, Step step) {
  if (kRepeats) {
    int64_t i = 0;
    for (; i + Many::width <= span.size; i += Many::width) step(Many(), i, 0);
    for (; i < span.size; ++i) step(One(), i, i % Many::width);
  } else {
    each_piece(span, [=](int64_t first, int64_t j, int64_t size) {
      int64_t k = 0;
      for (; k + Many::width <= size; k += Many::width) step(Many(), first + k, j + k);
      for (; k < size; ++k) step(One(), first + k, j + k);
    });
  }
}

// The floats of a LaneTable, in registers where possible. A loop must own a copy: it would read another
// one again after each store.
template <bool kRepeats>
struct LaneValues {
  const float* table;
  Many first;

  template <typename V>
  V at(V, int64_t j) const {
    return V::load(table + j);
  }
  Many at(Many, int64_t j) const { return kRepeats ? first : Many::load(table + j); }
};

// One float per lane, repeated for a period
template <bool kRepeats>
class LaneTable {
 public:
  LaneTable(const float* lane_values, int64_t lanes)
      : table_(lanes > kChunk ? lane_values : storage_) {
    if (lanes > kChunk) return;
    const int64_t size = kRepeats ? Many::width : period_of(lanes);
    for (int64_t j = 0; j < size; j += lanes) {
      for (int64_t lane = 0; lane < lanes; ++lane) storage_[j + lane] = lane_values[lane];
    }
  }
  LaneTable(const LaneTable&) = delete;

  LaneValues<kRepeats> values() const {
    return {table_, kRepeats ? Many::load(table_) : Many::all(0)};
  }

 private:
  alignas(64) float storage_[kChunk];
  const float* table_;
};

// Sums of floats, one per lane of a span. They are written by finish().
template <bool kRepeats>
class LaneSums {
 public:
  LaneSums() = default;
  LaneSums(float* sums, int64_t lanes) { start(sums, lanes); }
  LaneSums(const LaneSums&) = delete;

  void start(float* sums, int64_t lanes) {
    sums_ = sums;
    lanes_ = lanes;
    size_ = kRepeats ? Many::width : period_of(lanes);
    table_ = lanes > kChunk ? sums : storage_;
    for (int64_t j = 0; j < size_; ++j) table_[j] = 0;
  }

  float* at(int64_t j) { return table_ + j; }

  void finish() {
    if (lanes_ > kChunk) return;
    for (int64_t lane = 0; lane < lanes_; ++lane) sums_[lane] = 0;
    for (int64_t j = 0; j < size_; j += lanes_) {
      for (int64_t lane = 0; lane < lanes_; ++lane) sums_[lane] += table_[j + lane];
    }
  }

 private:
  alignas(64) float storage_[kChunk];
  float* sums_;
  int64_t lanes_, size_;
  float* table_;
};

template <typename V>
struct Pair {
  V a, b;
};

// Calls step(Many or One, i, j, sums) for all elements, which adds to the two sums.
template <bool kRepeats, typename Step>
inline void sum_pairs(const Span& span, LaneSums<kRepeats>& a, LaneSums<kRepeats>& b, Step step) {
  float *const a_table = a.at(0), *const b_table = b.at(0);
  const auto step_in_memory = [=](auto v, int64_t i, int64_t j) {
    Pair<decltype(v)> sums{v.load(a_table + j), v.load(b_table + j)};
    step(v, i, j, sums);
    sums.a.store(a_table + j);
    sums.b.store(b_table + j);
  };
  if (!kRepeats) return each<kRepeats>(span, step_in_memory);
  // Two pairs in registers, since each addition waits for the one before it
  Pair<Many> even{Many::all(0), Many::all(0)}, odd = even;
  int64_t i = 0;
  for (; i + 2 * Many::width <= span.size; i += 2 * Many::width) {
    step(Many(), i, 0, even);
    step(Many(), i + Many::width, 0, odd);
  }
  if (i + Many::width <= span.size) {
    step(Many(), i, 0, even);
    i += Many::width;
  }
  (even.a + odd.a).store(a_table);
  (even.b + odd.b).store(b_table);
  for (; i < span.size; ++i) step_in_memory(One(), i, i % Many::width);
}

// Writes zeros to the lanes beyond the last channel.
template <typename E>
inline void clear_padding(E* out, const Span& span) {
  if (span.channels == span.lanes) return;
  for (int64_t i = 0; i < span.size; i += span.lanes) {
    for (int64_t lane = span.channels; lane < span.lanes; ++lane) out[i + lane] = E{0};
  }
}

}  // namespace

}  // namespace gluon_amp
