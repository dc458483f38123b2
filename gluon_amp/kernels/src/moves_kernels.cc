// The loops of moves_kernels.h, compiled three times as kernels.cc is.
#include <algorithm>

#include "vectors.h"

namespace gluon_amp {
namespace {

#if defined(GLUON_AMP_AVX2) || defined(GLUON_AMP_AVX512)

// A tile has twice as many rows as columns. Each of its halves is a square, held in the 128-bit halves of
// the registers. Interleaving the values of registers i and i + n / 2 rotates the bits of each value's
// index by one, so log2(n) rounds exchange row and column.
struct Pairs {
  static __m256i low(__m256i a, __m256i b) { return _mm256_unpacklo_epi16(a, b); }
  static __m256i high(__m256i a, __m256i b) { return _mm256_unpackhi_epi16(a, b); }
};

struct Quads {
  static __m256i low(__m256i a, __m256i b) { return _mm256_unpacklo_epi32(a, b); }
  static __m256i high(__m256i a, __m256i b) { return _mm256_unpackhi_epi32(a, b); }
};

template <typename T>
struct Tile {
  static constexpr int columns = 16 / sizeof(T), rows = 2 * columns;
  using Interleaved = typename std::conditional<sizeof(T) == 2, Pairs, Quads>::type;

  // Reads `present` rows; the others are zeros.
  static void transpose(const T* in, int64_t in_stride, int64_t present, T* out, int64_t out_stride) {
    const auto row = [=](int i) {
      if (i >= present) return _mm_setzero_si128();
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * in_stride));
    };
    __m256i x[columns], y[columns];
    for (int i = 0; i < columns; ++i) x[i] = _mm256_setr_m128i(row(i), row(i + columns));
    for (int n = 1; n < columns; n *= 2) {
      for (int i = 0; i < columns / 2; ++i) {
        y[2 * i] = Interleaved::low(x[i], x[i + columns / 2]);
        y[2 * i + 1] = Interleaved::high(x[i], x[i + columns / 2]);
      }
      for (int i = 0; i < columns; ++i) x[i] = y[i];
    }
    for (int i = 0; i < columns; ++i) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * out_stride), x[i]);
    }
  }
};

#else

template <typename T>
struct Tile {
  static constexpr int columns = 1, rows = 1;
  static void transpose(const T* in, int64_t, int64_t present, T* out, int64_t) {
    *out = present > 0 ? *in : 0;
  }
};

#endif

template <typename T>
void transpose_one_by_one(const T* in, T* out, const Transposition& t, int64_t first_column,
                          int64_t columns) {
  for (int64_t j = first_column; j < first_column + columns; ++j) {
    for (int64_t i = 0; i < t.out_rows; ++i) {
      out[j * t.out_stride + i] = i < t.rows ? in[i * t.in_stride + j] : 0;
    }
  }
}

// The last tile of a row or column may overlap with the one before: both write the same values.
template <typename T>
void transpose(const T* in, T* out, const Transposition& t) {
  using Tiles = Tile<T>;
  if (t.out_rows < Tiles::rows || t.columns < Tiles::columns) {
    return transpose_one_by_one(in, out, t, 0, t.columns);
  }
  // Two tiles write whole cache lines.
  constexpr int64_t pair = 2 * Tiles::rows;
  for (int64_t first = 0; first < t.out_rows; first += pair) {
    for (int64_t j = 0; j < t.columns; j += Tiles::columns) {
      const int64_t column = std::min(j, t.columns - Tiles::columns);
      for (int64_t i = first; i < std::min(first + pair, t.out_rows); i += Tiles::rows) {
        const int64_t row = std::min(i, t.out_rows - Tiles::rows);
        Tiles::transpose(in + row * t.in_stride + column, t.in_stride, t.rows - row,
                         out + column * t.out_stride + row, t.out_stride);
      }
    }
  }
}

void turn_pairs(const uint64_t* in, uint64_t* out) {
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) {
      const uint64_t x = in[i * 8 + j], low = 0xFFFF0000u, high = low << 16;
      out[j * 8 + i] = (x & ~(low | high)) | (x >> 16 & low) | (x << 16 & high);
    }
  }
}

template <typename T>
void sum(const T* const* in, int64_t count, T* out, int64_t first, int64_t end) {
  each(first, end, [=](auto v, int64_t i) {
    auto total = v.load(in[0] + i);
    for (int64_t k = 1; k < count; ++k) total = total + v.load(in[k] + i);
    total.store(out + i);
  });
}

const MovesKernels moves_table = {transpose<uint16_t>, transpose<uint32_t>, turn_pairs,
                                  {sum<Bfloat>, sum<HalfValue>, sum<float>}};

}  // namespace

const MovesKernels* GLUON_AMP_NAMED(moves_kernels)() { return &moves_table; }

}  // namespace gluon_amp
