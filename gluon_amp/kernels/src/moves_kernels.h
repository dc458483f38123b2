// Loops that move or add values of any layout, for three instruction sets.
#pragma once

#include <cstdint>

#include "formats.h"

namespace gluon_amp {

// Two dense blocks of memory: value (row, column) is read from in[row * in_stride + column] and written
// to out[column * out_stride + row]. The result has `out_rows` rows; those from `rows` on are zeros.
struct Transposition {
  int64_t rows, columns, in_stride, out_stride, out_rows;
};

template <typename T>
using Sum = void (*)(const T* const* in, int64_t count, T* out, int64_t first, int64_t end);

struct MovesKernels {
  void (*transpose2)(const uint16_t* in, uint16_t* out, const Transposition&);
  void (*transpose4)(const uint32_t* in, uint32_t* out, const Transposition&);
  // A square of 16 x 16 values of 2 bytes, from pairs of rows to pairs of columns, as 8 x 8 values of 8
  // bytes: in[i][j] has rows 2i and 2i + 1 of columns 2j and 2j + 1, column by column, and out[j][i] the
  // same values row by row.
  void (*turn_pairs)(const uint64_t* in, uint64_t* out);
  // out[i] = in[0][i] + ... + in[count - 1][i] for i from `first` to `end` - 1, added in float32 in this
  // order; `out` may be any of the inputs
  ByElement<Sum> sum;
};

}  // namespace gluon_amp
