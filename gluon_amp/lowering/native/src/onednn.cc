// One inline function of oneDNN's C++ header, which libmxnet.so exports.
//
// The function's body calls a function that libmxnet.so does not export. So this file does not include
// the C++ header: with it, clang would compile the body here, too.
#include <mkldnn/dnnl_types.h>

namespace gluon_amp {

// The binary form of dnnl::memory::desc
struct Description {
  dnnl_memory_desc_t data;
};

Description get_desc(const void* memory) asm("_ZNK4dnnl6memory8get_descEv");

dnnl_memory_desc_t describe(const void* memory) { return get_desc(memory).data; }

}  // namespace gluon_amp
