// The blocked layout: images of several channels as an array of five dimensions,
// (images, groups, height, width, lanes). Channel c is lane c % lanes of group c / lanes. Lanes beyond the
// last channel hold finite values that no result depends on; every operator here writes zeros there.
//
// With 16 lanes (8 without AVX512) this is oneDNN's nChw16c (nChw8c); with one group it is nhwc.
//
// To MXNet such an array has the plain layout of its five dimensions. So MXNet never reorders it, and it
// may be padded, which MXNet does not allow in oneDNN's own layouts.
#pragma once

#include <cstdint>
#include <string>

#include "arrays.h"
#include "attributes.h"
#include "formats.h"
#include "operators.h"

namespace gluon_amp {

struct Blocked {
  int64_t images, groups, height, width, lanes;

  explicit Blocked(const mxnet::TShape& shape)
      : images(shape[0]), groups(shape[1]), height(shape[2]), width(shape[3]), lanes(shape[4]) {}

  int64_t positions() const { return height * width; }
  int64_t plane() const { return positions() * lanes; }  // elements of one group of one image
  int64_t size() const { return images * groups * plane(); }
};

inline mxnet::TShape blocked_shape(int64_t images, int64_t channels, int64_t height, int64_t width,
                                   int64_t lanes) {
  mxnet::TShape shape(5, 0);
  shape[0] = images;
  shape[1] = (channels + lanes - 1) / lanes;
  shape[2] = height;
  shape[3] = width;
  shape[4] = lanes;
  return shape;
}

// The values of a node's arrays. If its attribute `in_float32` is set, it computes in float32: float32 arrays
// are not rounded to float16, and bfloat16 is not multiplied by kernels for bfloat16.
inline Element element_of(const NodeAttrs& attrs, const NDArray& array) {
  if (array.dtype() == mshadow::kBfloat16) return Element::kBfloat;
  CHECK_EQ(array.dtype(), mshadow::kFloat32);
  return flag_of(attrs, "in_float32") ? Element::kSingle : Element::kHalf;
}

// Calls body(T()) with the type of these values.
template <typename Body>
void with_elements(Element element, Body body) {
  if (element == Element::kBfloat) return body(Bfloat());
  element == Element::kHalf ? body(HalfValue()) : body(float());
}

// Moves images with `channels` channels to blocks of other lanes (blocking.cc). With 1 lane they have the plain
// layout (N, C, H, W); of two layouts with more, one has all channels side by side. A value has 2 or 4 bytes.
void change_lanes(const void* from, const Blocked& old_shape, void* to, const Blocked& new_shape, int64_t channels,
                  int bytes);

}  // namespace gluon_amp
