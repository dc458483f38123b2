// Weights in the layout and dtype of a oneDNN primitive, packed once for each value of a parameter.
#pragma once

#include <mkldnn/dnnl_types.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "formats.h"
#include "operators.h"

namespace gluon_amp {

// Aligned memory, which is not initialized, or memory of another owner
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), owned_(true) {
    if (posix_memalign(&data_, 64, bytes ? bytes : 1)) throw std::bad_alloc();
  }
  explicit Buffer(float* borrowed) : data_(borrowed), bytes_(0), owned_(false) {}
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

// Whether a weight has the plain layout
bool is_plain(const dnnl_memory_desc_t& desc);

// Memory of one thread that is reused by the next caller that passes the same purpose. Fresh memory would
// cost more time than most kernels, because of page faults.
enum class Purpose {
  kWeight, kWeightGradient, kImages, kResult, kWideImages, kWideResult, kWideTarget, kRecurrent, kCount
};
void* scratch(Purpose purpose, size_t bytes);

// The weight in the dtype and layout of `desc`, rounded to the values of `element`.
// `desc` has the dimensions (filters, channels, ...) or, with groups, (groups, filters, channels, ...).
// If the weight is a variable of the graph (a parameter), the result is kept until the weight is written;
// otherwise a graph may write it without a new version of the array. It is not kept for memory that MXNet
// does not own. Whoever writes MXNet's memory by its address (to_dlpack_for_write, or another process in
// shared memory) must then write the array through MXNet, too, as by array[:] = array.
// A primitive that reads a weight as it is stored gets the weight's own memory.
std::shared_ptr<const Buffer> packed_weight(const NDArray& weight, const dnnl_memory_desc_t& desc,
                                            Element element, bool is_variable);

// The same in memory of this thread that the next call reuses. In the backward pass each weight is read
// once, and to keep a second copy of all weights would cost memory.
const void* packed_for_one_use(const NDArray& weight, const dnnl_memory_desc_t& desc, Element element);

// Copies a float32 gradient of the weight from the layout of `desc` to the plain one, rounded to float16 if
// the array has this dtype or `emulated`.
void unpack_gradient(const void* packed, const dnnl_memory_desc_t& desc, OpReqType req, bool emulated,
                     const NDArray& gradient);

}  // namespace gluon_amp
