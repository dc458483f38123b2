// Loops over contiguous float16 and float32 values, for three instruction sets, with the same bits.
//
// Each function is serial and processes [0, n). parallel.h splits arrays into pieces for the threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "depthwise_kernels.h"
#include "few_rows_kernels.h"
#include "formats.h"
#include "moves_kernels.h"
#include "norm_kernels.h"
#include "pooling_kernels.h"
#include "program.h"
#include "recurrent_kernels.h"
#include "rows_kernels.h"

namespace gluon_amp {

using half_bits = uint16_t;  // the bits of a float16

struct UpdateConstants {
  float lr, wd, decay;          // of the weight; decay: decoupled, 0: none
  float rescale, clip;          // of the gradient; clip < 0: no clipping
  float beta1, beta2, epsilon;  // SGD has the first, its momentum
};

// `G` is the type of the gradient: half_bits or float. The states are SGD's momentum, or null, or Adam's mean
// and variance. For a float32 weight, `master` is the weight itself and `weight` is null. For a float16
// weight, the update first compares each element with its rounded master: if they differ, the user has
// written to the weight, and the master becomes the weight. If they are equal, the master keeps its additional
// bits.
template <typename G>
using Update = void (*)(const G* grad, float* state, float* variance, float* master, half_bits* weight,
                        int64_t n, const UpdateConstants&);

struct Kernels {
  // out = in, rounded to a format; in and out may be one array
  void (*round)(const float* in, float* out, int64_t n, const Format&);
  // out = in, multiplied by 2**exponent, rounded and divided by it
  void (*round_scaled)(const float* in, float* out, int64_t n, const Format&, int exponent);
  // the largest magnitude; NaN is not larger than anything
  float (*largest)(const float* in, int64_t n);
  // out = max(rounded in, 0), which is 0 for NaN, as oneDNN has it
  void (*round_relu)(const float* in, float* out, int64_t n, const Format&);
  // the gradient of round_relu, rounded; `result` is the result of round_relu
  void (*round_relu_grad)(const float* grad, const float* result, float* out, int64_t n, const Format&);
  void (*narrow)(const float* in, half_bits* out, int64_t n);
  void (*widen)(const half_bits* in, float* out, int64_t n);
  // out += in, rounded to the type of out
  void (*add)(const float* in, float* out, int64_t n);
  void (*add_half)(const float* in, half_bits* out, int64_t n);
  void (*add_bfloat)(const float* in, Bfloat* out, int64_t n);
  bool (*finite)(const float* in, int64_t n);
  bool (*finite_half)(const half_bits* in, int64_t n);
  Update<float> sgd;
  Update<half_bits> sgd_half;
  Update<float> adam;
  Update<half_bits> adam_half;
  // master = weight, the first argument, where the rounded master is not the weight
  Update<half_bits> sync_half;
  // Sets `count` arrays, from `first` to `end`, to their sum; each is multiplied by the factor before. All
  // results are rounded, as in MXNet's loops.
  void (*sum_half)(half_bits* const* arrays, size_t count, int64_t first, int64_t end, float factor);
  // out = in, rounded to the type of out
  void (*to_bfloat)(const float* in, Bfloat* out, int64_t n);
  void (*from_bfloat)(const Bfloat* in, float* out, int64_t n);
  // out[2 * i] = low[i], out[2 * i + 1] = high[i], rounded
  void (*interleave)(const float* low, const float* high, Bfloat* out, int64_t n);
  // Of the files of these names
  const MovesKernels* moves;
  const DepthwiseKernels* depthwise;
  const PoolingKernels* pooling;
  const NormKernels* norm;  // an array: of each Element
  const PointwiseKernels* pointwise;  // likewise
  const RowsKernels* rows;
  const RecurrentKernels* recurrent;
  const FewRowsKernels* few_rows;
};

// Declares the functions that return the table of a file that is compiled once for each instruction set.
#define GLUON_AMP_TABLES(Type, name) \
  const Type* plain_##name();        \
  const Type* avx2_##name();         \
  const Type* avx512_##name()

GLUON_AMP_TABLES(Kernels, kernels);
GLUON_AMP_TABLES(DepthwiseKernels, depthwise_kernels);
GLUON_AMP_TABLES(MovesKernels, moves_kernels);
GLUON_AMP_TABLES(NormKernels, norm_kernels);
GLUON_AMP_TABLES(PointwiseKernels, pointwise_kernels);
GLUON_AMP_TABLES(PoolingKernels, pooling_kernels);
GLUON_AMP_TABLES(RowsKernels, rows_kernels);
GLUON_AMP_TABLES(RecurrentKernels, recurrent_kernels);
GLUON_AMP_TABLES(FewRowsKernels, few_rows_kernels);

// The best kernels that this processor supports, unless select_kernels has selected others.
const Kernels& kernels();
// 0: the best, 1: plain, 2: AVX2 and F16C, 3: AVX512. Returns false if the processor does not support
// them.
bool select_kernels(int set);

}  // namespace gluon_amp
