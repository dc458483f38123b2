// Functions of oneDNN 2.4's C++ header, which libmxnet.so exports.
//
// Their bodies in the header call functions that libmxnet.so does not export. So this file does not
// include the C++ header: with it, clang would compile the bodies here, too. It declares the objects in
// their binary form.
#include "onednn.h"

#include <algorithm>
#include <cstring>

namespace gluon_amp {
namespace {

// The binary form of dnnl::memory::desc
struct Description {
  dnnl_memory_desc_t data;
};

// One entry of a std::unordered_map<int, dnnl::memory> of GCC 4.8, and the map itself
struct Entry {
  Entry* next;
  int kind;
  Handle memory;
};
struct Map {
  void* buckets;
  size_t bucket_count;
  Entry* first;
  size_t size;
  float load;
  size_t next_resize;
};

Description get_desc(const void* memory) asm("_ZNK4dnnl6memory8get_descEv");
Description query_md(const void* description, int what,
                     int index) asm("_ZNK4dnnl19primitive_desc_base8query_mdENS_5queryEi");
void* cpu_engine() asm("_ZN5mxnet9CpuEngine3GetEv");
void construct_stream(void* self, const void* engine,
                      unsigned flags) asm("_ZN4dnnl6streamC1ERKNS_6engineENS0_5flagsE");
void construct_memory(void* self, const void* desc, const void* engine,
                      void* data) asm("_ZN4dnnl6memoryC1ERKNS0_4descERKNS_6engineEPv");
void construct_description(
    void* self, const void* operation, const void* attributes, const void* engine,
    const void* hint,
    bool allow_empty) asm("_ZN4dnnl14primitive_descC1EPKvPKNS_14primitive_attrERKNS_6engineEPK19"
                          "dnnl_primitive_descb");
void construct_primitive(void* self,
                         const void* description) asm("_ZN4dnnl9primitiveC1EPK19dnnl_primitive_desc");
void execute_primitive(
    const void* self, const void* stream,
    const Map& arguments) asm("_ZNK4dnnl9primitive7executeERKNS_6streamERKSt13unordered_mapIiNS_6memory"
                              "ESt4hashIiESt8equal_toIiESaISt4pairIKiS5_EEE");

const Handle& engine() { return *static_cast<const Handle*>(cpu_engine()); }

struct Stream {
  Handle handle;
  Stream() { construct_stream(&handle, &engine(), 0); }
};

dnnl_memory_desc_t sized(const std::vector<int64_t>& sizes, dnnl_data_type_t dtype, dnnl_format_kind_t kind) {
  dnnl_memory_desc_t desc;
  std::memset(&desc, 0, sizeof desc);
  desc.ndims = static_cast<int>(sizes.size());
  desc.data_type = dtype;
  desc.format_kind = kind;
  std::copy(sizes.begin(), sizes.end(), desc.dims);
  std::copy(sizes.begin(), sizes.end(), desc.padded_dims);
  return desc;
}

}  // namespace

dnnl_memory_desc_t describe(const void* memory) { return get_desc(memory).data; }

std::shared_ptr<Primitive> Primitive::create(const void* operation, const Primitive* forward) {
  const void* hint = forward ? forward->description_.own.get() : nullptr;
  auto created = std::make_shared<Primitive>();
  auto& description = created->description_;
  construct_description(&description, operation, nullptr, &engine(), hint, true);
  if (!description.own) return nullptr;
  construct_primitive(&created->primitive_, description.own.get());
  return created;
}

dnnl_memory_desc_t Primitive::query(dnnl_query_t what) const { return query_md(&description_, what, 0).data; }

void Primitive::execute(std::initializer_list<Argument> arguments) const {
  static thread_local const Stream stream;
  std::vector<Entry> entries(arguments.size());
  size_t count = 0;
  for (const Argument& argument : arguments) {
    if (!argument.data) continue;
    const Description desc{*argument.desc};
    construct_memory(&entries[count].memory, &desc, &engine(), const_cast<void*>(argument.data));
    entries[count].kind = argument.kind;
    entries[count].next = nullptr;
    if (count) entries[count - 1].next = &entries[count];
    ++count;
  }
  const Map map{nullptr, 0, entries.data(), count, 1.f, 0};
  execute_primitive(&primitive_, &stream.handle, map);
}

dnnl_memory_desc_t plain_desc(const std::vector<int64_t>& sizes, dnnl_data_type_t dtype) {
  dnnl_memory_desc_t desc = sized(sizes, dtype, dnnl_blocked);
  int64_t stride = 1;
  for (int i = desc.ndims - 1; i >= 0; --i) {
    desc.format_desc.blocking.strides[i] = stride;
    stride *= sizes[i];
  }
  return desc;
}

dnnl_memory_desc_t any_desc(const std::vector<int64_t>& sizes, dnnl_data_type_t dtype) {
  return sized(sizes, dtype, dnnl_format_kind_any);
}

dnnl_memory_desc_t blocked_desc(int64_t images, int64_t channels, int64_t height, int64_t width,
                                int64_t lanes, dnnl_data_type_t dtype) {
  dnnl_memory_desc_t desc = sized({images, channels, height, width}, dtype, dnnl_blocked);
  auto& blocking = desc.format_desc.blocking;
  const bool nhwc = lanes == 0;
  if (nhwc) lanes = channels;
  const int64_t groups = (channels + lanes - 1) / lanes;
  blocking.strides[0] = groups * height * width * lanes;
  blocking.strides[1] = nhwc ? 1 : height * width * lanes;
  blocking.strides[2] = width * lanes;
  blocking.strides[3] = lanes;
  if (!nhwc) {
    desc.padded_dims[1] = groups * lanes;
    blocking.inner_nblks = 1;
    blocking.inner_blks[0] = lanes;
    blocking.inner_idxs[0] = 1;
  }
  return desc;
}

size_t bytes_of(const dnnl_memory_desc_t& desc) {
  const auto& blocking = desc.format_desc.blocking;
  int64_t blocks[DNNL_MAX_NDIMS], inner = 1, most = 0;
  std::fill(blocks, blocks + DNNL_MAX_NDIMS, 1);
  for (int i = 0; i < blocking.inner_nblks; ++i) {
    blocks[blocking.inner_idxs[i]] *= blocking.inner_blks[i];
    inner *= blocking.inner_blks[i];
  }
  for (int i = 0; i < desc.ndims; ++i) {
    most = std::max<int64_t>(most, desc.padded_dims[i] / blocks[i] * blocking.strides[i]);
  }
  const bool wide = desc.data_type == dnnl_f32 || desc.data_type == dnnl_s32;
  return std::max(most, inner) * (wide ? 4 : 2);
}

bool alike(const dnnl_memory_desc_t& a, const dnnl_memory_desc_t& b) {
  const auto &x = a.format_desc.blocking, &y = b.format_desc.blocking;
  if (a.format_kind != dnnl_blocked || b.format_kind != dnnl_blocked) return false;
  if (a.ndims != b.ndims || x.inner_nblks != y.inner_nblks) return false;
  for (int i = 0; i < a.ndims; ++i) {
    if (a.padded_dims[i] != b.padded_dims[i] || x.strides[i] != y.strides[i]) return false;
  }
  for (int i = 0; i < x.inner_nblks; ++i) {
    if (x.inner_blks[i] != y.inner_blks[i] || x.inner_idxs[i] != y.inner_idxs[i]) return false;
  }
  return true;
}

bool is_plain(const dnnl_memory_desc_t& desc) {
  return alike(desc, plain_desc({desc.dims, desc.dims + desc.ndims}, desc.data_type));
}

}  // namespace gluon_amp
