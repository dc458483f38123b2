// Reads arrays of any dtype as float32, and writes or adds results in the dtype or format of an array.
#pragma once

#include <mxnet/op_attr_types.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "arrays.h"
#include "formats.h"
#include "kernels.h"
#include "memory.h"
#include "parallel.h"

namespace gluon_amp {

// Converts n values of a dtype, from number `first` on, to float32.
inline void to_floats(const void* values, int dtype, int64_t first, float* out, int64_t n) {
  if (dtype == mshadow::kFloat16) {
    kernels().widen(static_cast<const half_bits*>(values) + first, out, n);
  } else if (dtype == mshadow::kBfloat16) {
    kernels().from_bfloat(static_cast<const Bfloat*>(values) + first, out, n);
  } else {
    std::memcpy(out, static_cast<const float*>(values) + first, n * sizeof(float));
  }
}

// A parameter in float32
class WideParameter {
 public:
  explicit WideParameter(const NDArray& array) : plain_(plain_copy(array)) {
    if (plain_.dtype() != mshadow::kFloat16) return;
    wide_.resize(plain_.shape().Size());
    to_floats(values_of<half_bits>(plain_), mshadow::kFloat16, 0, wide_.data(), wide_.size());
  }
  const float* data() const { return wide_.empty() ? values_of<float>(plain_) : wide_.data(); }
  int64_t size() const { return plain_.shape().Size(); }

 private:
  NDArray plain_;
  std::vector<float> wide_;
};

// The formats that float32 values are rounded to before they are stored, and the sums of these values and
// what an array holds. Without one (null), they are only rounded as the dtype of the array does.
struct Rounding {
  const Format *values, *sums;
};
constexpr Rounding kNoRounding{nullptr, nullptr};

inline Rounding rounding_of(int dtype) {
  return {dtype == mshadow::kFloat16 ? &kFloat16 : dtype == mshadow::kBfloat16 ? &kBfloat16 : nullptr, nullptr};
}

// The result of an operator, which is written or added to an array as MXNet requests it. It is computed as a
// whole in data() before finish(), or written in pieces.
class Result {
 public:
  // With `wide`, bfloat16 is computed in float32, in memory that the next such result reuses.
  Result(const NDArray& array, OpReqType req, const Rounding& rounding, bool wide = false)
      : rounding_(rounding), size_(array.shape().Size()), dtype_(array.dtype()), adds_(req == mxnet::kAddTo),
        wide_(wide), memory_(nullptr) {
    if (req == mxnet::kNullOp) return;
    if (adds_) make_plain(array);
    // NDArray::data() writes to the array itself, so that only one thread may call it.
    memory_ = result_of<char>(array);
    if (adds_ && !wide_) added_.resize(size_ * size_of_value(array));
  }
  Result(const NDArray& array, OpReqType req) : Result(array, req, rounding_of(array.dtype())) {}

  // Where the values are computed, in the array's dtype unless `wide`; null if nobody requests them
  template <typename T = void>
  T* data() {
    void* place = memory_;
    if (memory_ && wide_) place = scratch(Purpose::kWideTarget, size_ * sizeof(float));
    if (memory_ && !wide_ && adds_) place = added_.data();
    return static_cast<T*>(place);
  }

  // Stores what was computed. Without `rounds`, its values are those of the format already.
  void finish(bool rounds = true) {
    const bool in_place = !adds_ && !wide_;
    if (!memory_ || (in_place && !(rounds && rounding_.values && dtype_ == mshadow::kFloat32))) return;
    const void* computed = data();
    const int dtype = wide_ ? static_cast<int>(mshadow::kFloat32) : dtype_;
    in_parallel(size_, [&](int64_t first, int64_t count) { write(computed, dtype, first, count); });
  }

  // The array's memory, if float32 values need neither be converted nor added
  float* direct() const {
    const bool as_they_are = dtype_ == mshadow::kFloat32 && !adds_ && !rounding_.values;
    return as_they_are ? reinterpret_cast<float*>(memory_) : nullptr;
  }

  // Writes values that are next to each other, from number `start` on. Threads may write different parts.
  void write(const float* values, int64_t start, int64_t count) const {
    for (int64_t i = 0; memory_ && i < count; i += kPiece) {
      write_piece(values + i, start + i, std::min(kPiece, count - i));
    }
  }
  // Writes at most kBlock values of a dtype, from number `first` of both on.
  void write(const void* values, int dtype, int64_t first, int64_t count) const {
    if (dtype == mshadow::kFloat32) return write(static_cast<const float*>(values) + first, first, count);
    float wide[kBlock];
    to_floats(values, dtype, first, wide, count);
    write(wide, first, count);
  }
  void write(const std::vector<float>& values) const { write(values.data(), 0, values.size()); }
  void write_all(const float* values) const {
    in_parallel(size_, [&](int64_t first, int64_t count) { write(values + first, first, count); });
  }

 private:
  static constexpr int64_t kPiece = 1 << 12;

  void write_piece(const float* values, int64_t start, int64_t n) const {
    float rounded[kPiece];
    if (adds_ && rounding_.values) {
      kernels().round(values, rounded, n, *rounding_.values);
      values = rounded;
    }
    if (dtype_ == mshadow::kFloat16) {
      return (adds_ ? kernels().add_half : kernels().narrow)(values, at<half_bits>(start), n);
    }
    if (dtype_ == mshadow::kBfloat16) {
      return (adds_ ? kernels().add_bfloat : kernels().to_bfloat)(values, at<Bfloat>(start), n);
    }
    float* out = at<float>(start);
    if (adds_) {
      kernels().add(values, out, n);
      if (rounding_.sums) kernels().round(out, out, n, *rounding_.sums);
    } else if (rounding_.values) {
      kernels().round(values, out, n, *rounding_.values);
    } else {
      std::memcpy(out, values, n * sizeof(float));
    }
  }

  template <typename T>
  T* at(int64_t start) const { return reinterpret_cast<T*>(memory_) + start; }

  const Rounding rounding_;
  const int64_t size_;
  const int dtype_;
  const bool adds_, wide_;
  char* memory_;
  std::vector<char> added_;
};

// The gradient of a parameter. If the arithmetic is emulated float16, values are rounded to it, but not the
// sums in a float32 array.
inline Result parameter_gradient(const NDArray& array, OpReqType req, bool emulated) {
  return Result(array, req, emulated ? Rounding{&kFloat16, nullptr} : rounding_of(array.dtype()));
}

inline void write_zeros(const NDArray& array, OpReqType req) {
  if (req != mxnet::kNullOp) Result(array, req).write(std::vector<float>(array.shape().Size()));
}

// Converts an array to the dtype of another.
inline void convert_array(const NDArray& input, OpReqType req, const NDArray& output) {
  if (req == mxnet::kNullOp) return;
  const NDArray plain = plain_copy(input);
  const Result result(output, req);
  const void* values = values_of<char>(plain);
  const int dtype = plain.dtype();
  in_parallel(plain.shape().Size(), [&](int64_t first, int64_t count) {
    if (float* out = result.direct()) return to_floats(values, dtype, first, out + first, count);
    result.write(values, dtype, first, count);
  });
}

}  // namespace gluon_amp
