// Infers sizes and dtypes of the operators that move values, in both directions.
#pragma once

#include <cstdint>
#include <string>

#include "attributes.h"
#include "nnvm_binary.h"

namespace gluon_amp {

// Gives a shape of unknown rank a rank, and raises an error if it has another one.
inline void set_rank(const NodeAttrs& attrs, mxnet::TShape& shape, int rank) {
  if (!mxnet::ndim_is_known(shape)) shape = mxnet::TShape(rank, -1);
  CHECK_EQ(shape.ndim(), rank) << attrs.op->name << " expects arrays of " << rank << " dimensions";
}

inline void set_size(const NodeAttrs& attrs, mxnet::TShape& shape, int i, int64_t size) {
  if (!mxnet::dim_size_is_known(shape, i)) shape[i] = size;
  CHECK_EQ(shape[i], size) << attrs.op->name << ": size of dimension " << i;
}

// Two sizes that are equal
inline void share_size(const NodeAttrs& attrs, mxnet::TShape& a, int i, mxnet::TShape& b, int j) {
  if (mxnet::dim_size_is_known(a, i)) set_size(attrs, b, j, a[i]);
  if (mxnet::dim_size_is_known(b, j)) set_size(attrs, a, i, b[j]);
}

// Sets the number of groups of a blocked shape from those of channels and lanes.
inline void set_groups(const NodeAttrs& attrs, mxnet::TShape& blocked, int64_t channels) {
  if (!mxnet::dim_size_is_known(blocked, 4)) return;
  CHECK(channels > 0 && blocked[4] > 0) << attrs.op->name << " expects at least one channel and lane";
  set_size(attrs, blocked, 1, (channels - 1) / blocked[4] + 1);
}

// A forged shape may have so many elements that their number is not one of 64 bits.
inline void expect_addressable(const NodeAttrs& attrs, const mxnet::TShape& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    CHECK(!__builtin_mul_overflow(elements, size, &elements) && elements <= INT64_MAX / 64)
        << attrs.op->name << ": the array is too large";
  }
}

// Arrays of one dtype, in which with_elements can compute.
inline bool infer_one_dtype(const NodeAttrs& attrs, Ints& in, Ints& out) {
  int common = -1;
  for (const Ints* types : {&in, &out}) {
    for (int type : *types) {
      if (type == -1) continue;
      CHECK(type == mshadow::kBfloat16 || type == mshadow::kFloat32)
          << attrs.op->name << " expects bfloat16 or float32, not dtype " << type;
      CHECK(common == -1 || common == type) << attrs.op->name << ": dtypes differ";
      common = type;
    }
  }
  for (Ints* types : {&in, &out}) types->assign(types->size(), common);
  return common != -1;
}

// The number of arrays in an attribute such as num_args
inline uint32_t count_of(const NodeAttrs& attrs, const std::string& name) {
  const int64_t count = integer_of(attrs, name, 0);
  CHECK(1 <= count && count <= 1000) << attrs.op->name << ": " << name << " is " << count;
  return count;
}

// The number of lanes that a node asks for; 0: all channels in one group
inline int64_t lanes_of(const NodeAttrs& attrs) {
  const int64_t lanes = integer_of(attrs, "lanes", 0);
  CHECK(0 <= lanes && lanes <= 1 << 16) << attrs.op->name << ": lanes is " << lanes;
  return lanes;
}

}  // namespace gluon_amp
