// Loops that pool blocked images, for three instruction sets. A call computes one row of one group.
#pragma once

#include <cstdint>

#include "formats.h"

namespace gluon_amp {

// The windows along the height or the width
struct Windows {
  int64_t kernel, stride, pad;
  int64_t count;          // windows
  const int64_t* begin;   // of each window: the first position of the data in it
  const int64_t* end;     // and the one after the last; both are equal in a window without any
  const int64_t* first;   // of each position of the data: the first window that contains it
  const int64_t* last;    // and the one after the last
};

struct PoolingShape {
  Windows rows, columns;
  int64_t width, lanes;   // of the data
  // of each window: avg pooling divides the sum by it, and multiplies the gradient by its inverse
  const float *divisors, *factors;
};

// The index of a value in its window: the row of the window times the window's width, plus the column. As
// in oneDNN, a value that is not greater than -FLT_MAX is never found, so that the index is 0.
template <typename T, typename Index>
struct MaxPooling {
  // `data` is a group of an image, `out` and `indices` a row of the result; `indices` may be null.
  void (*forward)(const T* data, T* out, Index* indices, int64_t row, const PoolingShape&);
  // `out_grad` and `indices` are a group of an image, `grad` a row of the data's gradient.
  void (*backward)(const T* out_grad, const Index* indices, T* grad, int64_t row,
                   const PoolingShape&);
};

template <typename T>
struct Pooling {
  MaxPooling<T, uint8_t> max;
  MaxPooling<T, int32_t> wide_max;  // for windows of more than 256 values
  void (*avg)(const T* data, T* out, int64_t row, const PoolingShape&);
  void (*avg_grad)(const T* out_grad, T* grad, int64_t row, const PoolingShape&);
};

using PoolingKernels = ByElement<Pooling>;

}  // namespace gluon_amp
