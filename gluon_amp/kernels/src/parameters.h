// Reads parameters, in float32 or float16 (the dtypes in which a network stores them), and writes their
// gradients.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "blocked.h"
#include "kernels.h"
#include "parallel.h"

namespace gluon_amp {

// A parameter in float32
class WideParameter {
 public:
  explicit WideParameter(const NDArray& array) : plain_(plain_copy(array)) {
    if (plain_.dtype() != mshadow::kFloat16) return;
    wide_.resize(plain_.shape().Size());
    kernels().widen(plain_data<half_bits>(plain_), wide_.data(), wide_.size());
  }
  const float* data() const { return wide_.empty() ? plain_data<float>(plain_) : wide_.data(); }
  int64_t size() const { return plain_.shape().Size(); }

 private:
  NDArray plain_;
  std::vector<float> wide_;
};

// Where float32 gradients are written or added. They are rounded to float16 if the array has this dtype, or
// if the arithmetic is emulated float16.
class ParameterGradient {
 public:
  ParameterGradient(const NDArray& array, OpReqType req, bool emulated)
      : half_(array.dtype() == mshadow::kFloat16), adds_(req == mxnet::kAddTo), emulated_(emulated) {
    if (adds_) make_plain(array);
    // NDArray::data() writes to the array itself, so that only one thread may call it.
    floats_ = result_of<float>(array);
  }

  // Writes values that are next to each other, from `start` on. Threads may write different parts at once.
  void write(const float* values, int64_t start, int64_t count) const {
    for (int64_t i = 0; i < count; i += kPiece) {
      write_piece(values + i, start + i, std::min(kPiece, count - i));
    }
  }

  // The memory, if values need neither be rounded nor added
  float* direct() const { return half_ || adds_ || emulated_ ? nullptr : floats_; }

 private:
  static constexpr int64_t kPiece = 1 << 12;

  void write_piece(const float* values, int64_t start, int64_t n) const {
    if (half_) {
      half_bits rounded[kPiece], *out = reinterpret_cast<half_bits*>(floats_) + start;
      kernels().narrow(values, adds_ ? rounded : out, n);
      if (adds_) kernels().add_half(rounded, out, n);
      return;
    }
    float rounded[kPiece], *out = floats_ + start;
    if (emulated_) {
      kernels().round(values, rounded, n, kFloat16);
      values = rounded;
    }
    adds_ ? kernels().add(values, out, n) : (void)std::memcpy(out, values, n * sizeof(float));
  }

  const bool half_, adds_, emulated_;
  float* floats_;
};

inline void write_gradient(const std::vector<float>& values, OpReqType req, bool emulated,
                           const NDArray& array) {
  if (req != mxnet::kNullOp) ParameterGradient(array, req, emulated).write(values.data(), 0, values.size());
}

}  // namespace gluon_amp
