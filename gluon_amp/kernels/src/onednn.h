// oneDNN's primitives, as libmxnet.so exports them.
//
// MXNet's own operators reorder weights at each call and refuse padded layouts. So the operators of the
// blocked layout create the primitives themselves.
#pragma once

#include <mkldnn/dnnl_types.h>

#include <initializer_list>
#include <memory>
#include <vector>

namespace gluon_amp {

// A copy of what dnnl::memory::get_desc returns
dnnl_memory_desc_t describe(const void* memory);

struct Argument {
  int kind;  // DNNL_ARG_SRC and others
  const dnnl_memory_desc_t* desc;
  const void* data;
};

// The binary form of a dnnl::handle, such as dnnl::engine
using Handle = std::shared_ptr<void>;

class Primitive {
 public:
  // `operation` is a dnnl_convolution_desc_t or another description of an operation. A backward
  // primitive needs the forward one as a hint. Returns null if oneDNN does not support it.
  static std::shared_ptr<Primitive> create(const void* operation, const Primitive* forward = nullptr);

  // A memory description: dnnl_query_weights_md and others
  dnnl_memory_desc_t query(dnnl_query_t what) const;
  // Arguments without memory, such as the bias of a layer that has none, are left out.
  void execute(std::initializer_list<Argument> arguments) const;

 private:
  // The binary form of dnnl::primitive_desc: in oneDNN 2.4, it has the handle of its iterator, too
  struct {
    Handle own, iterator;
  } description_;
  Handle primitive_;
};

// The description of a plain array
dnnl_memory_desc_t plain_desc(const std::vector<int64_t>& sizes, dnnl_data_type_t dtype);
// The description of an array whose layout oneDNN chooses
dnnl_memory_desc_t any_desc(const std::vector<int64_t>& sizes, dnnl_data_type_t dtype);
// Images (images, channels, height, width) in the blocked layout (see blocked.h); 0 lanes are nhwc
dnnl_memory_desc_t blocked_desc(int64_t images, int64_t channels, int64_t height, int64_t width,
                                int64_t lanes, dnnl_data_type_t dtype);
// Whether two descriptions of tensors of the same shape are of the same layout.
bool alike(const dnnl_memory_desc_t& a, const dnnl_memory_desc_t& b);
// Whether an array has the plain layout
bool is_plain(const dnnl_memory_desc_t& desc);
// Bytes of memory of a description
size_t bytes_of(const dnnl_memory_desc_t& desc);

}  // namespace gluon_amp
