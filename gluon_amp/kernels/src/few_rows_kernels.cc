// The loops of few_rows_kernels.h, compiled three times as kernels.cc is.
#include "few_rows_kernels.h"

#include "vector_math.h"

namespace gluon_amp {
namespace {

// Each sum has kLanes parts, whatever the instruction set, which are added by halves. Of float16 and bfloat16
// values, the products are exact, so that all instruction sets compute the same bits.
constexpr int kLanes = 16, kVectors = kLanes / Many::width;
constexpr int64_t kColumns = 2048;  // at once, so that the data stays in the cache

// The tile of rows of the data and of the weight whose sums fill the registers
constexpr int kRows = kVectors == 1 ? 8 : kVectors == 2 ? 2 : 1, kWeights = kVectors > 2 ? 1 : 3;

template <typename T, int rows, int weights>
void add_tile(const FewRowsProduct& p, int64_t row, int64_t n, int64_t begin, int64_t end) {
  Many sums[rows][weights][kVectors];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) {
      for (Many& part : sum) part = Many::all(0);
    }
  }
  const float* x = p.data + row * p.columns;
  const T* w = static_cast<const T*>(p.weight) + n * p.columns;
  const auto step = [&](const float* x, int64_t x_stride, const T* w, int64_t w_stride) {
    for (int v = 0; v < kVectors; ++v) {
      Many values[weights];
      for (int j = 0; j < weights; ++j) values[j] = Many::load(w + j * w_stride + v * Many::width);
      for (int i = 0; i < rows; ++i) {
        const Many value = Many::load(x + i * x_stride + v * Many::width);
        for (int j = 0; j < weights; ++j) sums[i][j][v] = fused(value, values[j], sums[i][j][v]);
      }
    }
  };
  int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) step(x + k, p.columns, w + k, p.columns);
  if (k < end) {
    float last_x[rows][kLanes] = {};
    T last_w[weights][kLanes] = {};
    for (int64_t c = 0; c < end - k; ++c) {
      for (int i = 0; i < rows; ++i) last_x[i][c] = x[i * p.columns + k + c];
      for (int j = 0; j < weights; ++j) last_w[j][c] = w[j * p.columns + k + c];
    }
    step(last_x[0], kLanes, last_w[0], kLanes);
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < weights; ++j) {
      float parts[kLanes];
      for (int v = 0; v < kVectors; ++v) sums[i][j][v].store(parts + v * Many::width);
      float* out = p.out + (row + i) * p.stride + n + j;
      *out = (begin > 0 ? *out : p.bias ? p.bias[n + j] : 0) + sum_by_halves(parts);
    }
  }
}

template <typename T, int rows>
void add_rows(const FewRowsProduct& p, int64_t row, int64_t begin, int64_t end) {
  for (; row + rows <= p.rows; row += rows) {
    int64_t n = p.first;
    for (; n + kWeights <= p.last; n += kWeights) add_tile<T, rows, kWeights>(p, row, n, begin, end);
    for (; n < p.last; ++n) add_tile<T, rows, 1>(p, row, n, begin, end);
  }
  if (rows > 1 && row < p.rows) add_rows<T, (rows + 1) / 2>(p, row, begin, end);
}

template <typename T>
void multiply(const FewRowsProduct& p) {
  for (int64_t begin = 0; begin < p.columns; begin += kColumns) {
    const int64_t end = begin + kColumns < p.columns ? begin + kColumns : p.columns;
    add_rows<T, kRows>(p, 0, begin, end);
  }
}

const FewRowsKernels few_rows_table = {{multiply<Bfloat>, multiply<half_bits>, multiply<float>}};

}  // namespace

const FewRowsKernels* GLUON_AMP_NAMED(few_rows_kernels)() { return &few_rows_table; }

}  // namespace gluon_amp
