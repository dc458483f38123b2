// One inline function of oneDNN's C++ header, as libmxnet.so exports it.
//
// Its body calls a function that libmxnet.so does not export. Without the C++ header no compiler knows
// the body: with it, clang compiles it for whoever names the symbol.
#include <mkldnn/dnnl_types.h>

namespace gluon_amp {

// dnnl::memory::desc, as it is returned
struct Description {
  dnnl_memory_desc_t data;
};

Description get_desc(const void* memory) asm("_ZNK4dnnl6memory8get_descEv");

dnnl_memory_desc_t describe(const void* memory) { return get_desc(memory).data; }

}  // namespace gluon_amp
