// Loops of depthwise convolutions over buffers of float32, for three instruction sets.
//
// A buffer holds some rows of one image, with `width` channels at each position: as many as a vector of
// this instruction set has values.
#pragma once

#include <cstdint>

#include "formats.h"

namespace gluon_amp {

// Where the values of `width` channels are in an array in the blocked layout
struct Slice {
  int lanes;     // min(width, the array's lanes)
  int channels;  // how many of these lanes are channels, the others are padding
};

// An offset for each lane of a slice. If all these values are in one vector, it starts at `window`,
// otherwise that is -1.
struct LaneOffsets {
  static constexpr int kMost = 16;
  int64_t offsets[kMost];
  int64_t window;
};

// Results of one row: result i is bias + the sum over taps t of weights[t] * source[i * stride +
// offsets[t]]. All distances count values, and `weights` and `bias` have `width` values for each tap.
struct GatheredRow {
  const float* source;
  int64_t stride, count;
  const float* weights;
  const float* bias;
  const int64_t* offsets;
  int64_t taps;
};

// Positions at which products of data and gradient are summed: row r, column c of the gradient is at
// r * grad_stride + c * width, and meets the data at r * row_stride + c * column_stride + offset.
struct Positions {
  int64_t rows, columns, grad_stride, row_stride, column_stride;
};

template <typename T>
struct DepthwiseLoops {
  // Reads `count` positions that are `step` values apart. Padding becomes 0.
  void (*load)(const T* in, int64_t step, int64_t count, Slice, float* out);
  // The same, but each lane has an offset of its own.
  void (*mix)(const T* in, int64_t step, int64_t count, const LaneOffsets&, Slice, float* out);
  // Packs the weights of one slice: tap t of a lane is weights[first.offsets[lane] + taps[t]]. Weights are
  // rounded to the element type; those of padding are 0.
  void (*pack)(const float* weights, const LaneOffsets& first, const int64_t* taps, int64_t count, Slice,
               float* out);
  // Writes a row of results that are `step` values apart.
  void (*gather)(const GatheredRow&, Slice, T* out, int64_t step);
};

struct DepthwiseKernels {
  int width;
  ByElement<DepthwiseLoops> loops;
  // sums[t] += the sum over all positions of data[... + offsets[t]] * grad
  void (*correlate)(const Positions&, const float* data, const float* grad, const int64_t* offsets,
                    int64_t taps, float* sums);
  // sum += the sum of `count` positions
  void (*add_up)(const float* grad, int64_t count, float* sum);
};

}  // namespace gluon_amp
