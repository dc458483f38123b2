// Raw memory of MXNet's NDArrays, in the plain layout or in one of oneDNN's.
#pragma once

#include <mxnet/ndarray.h>
#include <mxnet/op_attr_types.h>

#include <cstring>
#include <vector>

#include "onednn.h"

namespace gluon_amp {

using mxnet::NDArray;
using mxnet::OpReqType;

template <typename T>
T* plain_data(const NDArray& array) {
  return static_cast<T*>(array.data().dptr_);
}

// Members of MKLDNNStream, which libmxnet.so exports. Its header is not in the wheel.
void* get_stream() asm("_ZN5mxnet12MKLDNNStream3GetEv");
void submit(void* stream, bool cleanup) asm("_ZN5mxnet12MKLDNNStream6SubmitEb");

inline NDArray plain_copy(const NDArray& array) {
  return array.IsMKLDNNData() ? array.Reorder2Default() : array;
}

// Converts an array that this operator may write to the plain layout, in place. The layout is that of the
// whole memory, also if the array is a slice of it.
inline void make_plain(const NDArray& array) {
  if (!array.IsMKLDNNData()) return;
  const NDArray plain = array.Reorder2Default();
  const auto values = plain.storage_handle(), memory = array.storage_handle();
  const_cast<NDArray&>(array).InvalidateMKLDNNData();
  std::memcpy(memory.dptr, values.dptr, values.size);
}

// Prepares an array to be overwritten in the plain layout. The values beside a slice are kept.
inline void begin_plain(const NDArray& array) {
  if (array.IsView()) return make_plain(array);
  if (array.IsMKLDNNData()) const_cast<NDArray&>(array).InvalidateMKLDNNData();
}

// Memory of an input in the plain layout, and of a result that may reuse memory of another layout
template <typename T>
const T* values_of(const NDArray& input) { return plain_data<const T>(input); }

template <typename T>
T* result_of(const NDArray& output) {
  begin_plain(output);
  return plain_data<T>(output);
}

// Bytes of a value
inline int size_of_value(const NDArray& array) { return mshadow::mshadow_sizeof(array.dtype()); }

// Float32 arrays of the same shape, read in the same layout: a blocked layout that all of them have,
// otherwise the plain one.
class SameLayout {
 public:
  explicit SameLayout(const std::vector<NDArray>& arrays) : arrays_(arrays) {
    blocked_ = true;
    for (size_t i = 0; blocked_ && i < arrays.size(); ++i) {
      blocked_ = arrays[i].IsMKLDNNData() && !arrays[i].IsView();
      if (!blocked_) break;
      const auto desc = describe(arrays[i].GetMKLDNNData());
      if (i == 0) desc_ = desc;
      blocked_ = dense(desc) && alike(desc_, desc);
      data.push_back(first_value(arrays[i]));
    }
    if (!blocked_) to_plain();
  }

  ~SameLayout() {
    // releases the memories that GetMKLDNNData and CreateMKLDNNData registered with the stream
    submit(get_stream(), true);
  }

  void to_plain() {
    blocked_ = false;
    data.clear();
    for (auto& array : arrays_) {
      array = plain_copy(array);
      data.push_back(plain_data<float>(array));
    }
  }

  // Memory for a result in the layout of the inputs; it may be the memory of the first input.
  float* result(const NDArray& output) {
    if (blocked_ && output.IsView()) to_plain();
    if (!blocked_) {
      // The result may reuse the memory of an input that was blocked.
      return result_of<float>(output);
    }
    if (first_value(output) != data[0]) const_cast<NDArray&>(output).CreateMKLDNNData(desc_);
    return first_value(output);
  }

  std::vector<const float*> data;

 private:
  static float* first_value(const NDArray& array) {
    return static_cast<float*>(array.storage_handle().dptr);
  }

  // Whether the memory holds float32 values without padding.
  static bool dense(const dnnl_memory_desc_t& desc) {
    if (desc.format_kind != dnnl_blocked || desc.data_type != dnnl_f32) return false;
    for (int i = 0; i < desc.ndims; ++i) {
      if (desc.dims[i] != desc.padded_dims[i]) return false;
    }
    return desc.offset0 == 0 && desc.extra.flags == 0;
  }

  std::vector<NDArray> arrays_;
  dnnl_memory_desc_t desc_;
  bool blocked_;
};

}  // namespace gluon_amp
