// Weights as oneDNN's primitives read them, packed once for each value of a parameter.
#pragma once

#include <mkldnn/dnnl_types.h>

#include <memory>

#include "arrays.h"
#include "formats.h"
#include "memory.h"

namespace gluon_amp {

// How long a packed weight is kept: until the weight is written, if it is a variable of the graph (a
// parameter); while it is read, since a graph may write another weight without a new version of the array; or
// in memory of this thread until the next weight for one use. In the backward pass each weight is read once,
// and to keep a second copy of all weights would cost memory.
enum class Kept { kUntilWritten, kWhileRead, kForOneUse };

// The weight in the dtype and layout of `desc`, as pack() writes it. A primitive that reads a weight as it is
// stored gets the weight's own memory. Weights in memory that MXNet does not own are not kept. Whoever writes
// MXNet's memory by its address (to_dlpack_for_write, or another process in shared memory) must then write the
// array through MXNet, too, as by array[:] = array.
std::shared_ptr<const Buffer> packed_weight(const NDArray& weight, const dnnl_memory_desc_t& desc,
                                            Element element, Kept kept);

// Frees all that is kept. Otherwise the weights of arrays that are gone are freed when the next one is packed.
void forget_weights();

}  // namespace gluon_amp
