// Moves weights between the plain layout of a parameter and the layouts that oneDNN's primitives read.
#pragma once

#include <mkldnn/dnnl_types.h>

#include "arrays.h"
#include "formats.h"

namespace gluon_amp {

// Writes the weight in the dtype and layout of `desc`, rounded to the values of `element`. `desc` has the
// dimensions (filters, channels, ...) or, with groups, (groups, filters, channels, ...).
void pack(const NDArray& weight, const dnnl_memory_desc_t& desc, Element element, void* packed);

// Whether one layout is that of a convolution's weight, and the other that of the gradient of its data. Then
// turn() moves the weight from one to the other, which takes less time than to pack it.
bool are_turned(const dnnl_memory_desc_t& forward, const dnnl_memory_desc_t& backward);
void turn(const void* forward, const dnnl_memory_desc_t& from, void* backward, const dnnl_memory_desc_t& to);

// Copies a float32 gradient of the weight from the layout of `desc` to the plain one, rounded to float16 if
// the array has this dtype or `emulated`.
void unpack_gradient(const void* packed, const dnnl_memory_desc_t& desc, OpReqType req, bool emulated,
                     const NDArray& gradient);

}  // namespace gluon_amp
