// Memory of the operators beside that of arrays.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

namespace gluon_amp {

// Aligned memory, which is not initialized, or memory of another owner
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), owned_(true) {
    if (posix_memalign(&data_, 64, bytes ? bytes : 1)) throw std::bad_alloc();
  }
  explicit Buffer(void* borrowed) : data_(borrowed), bytes_(0), owned_(false) {}
  ~Buffer() {
    if (owned_) std::free(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_;
  size_t bytes_;
  bool owned_;
};

// Memory of one thread that is reused by the next caller that passes the same purpose. Fresh memory would
// cost more time than most kernels, because of page faults.
enum class Purpose {
  kWeight, kWeightGradient, kImages, kResult, kWideImages, kPart, kWideResult, kWideTarget, kRecurrent, kDepthwise,
  kPackedBlock, kCount
};
inline void* scratch(Purpose purpose, size_t bytes) {
  static thread_local std::unique_ptr<Buffer> buffers[static_cast<int>(Purpose::kCount)];
  auto& buffer = buffers[static_cast<int>(purpose)];
  if (!buffer || buffer->bytes() < bytes) {
    buffer.reset();
    buffer.reset(new Buffer(bytes));
  }
  return buffer->data();
}

}  // namespace gluon_amp
