// MXNet's versions of arrays say which packed weights are right: the engine counts all writes, by whatever
// operator, thread or view. What else has to be known of an array MXNet has no function for, so it is read from
// private members of MXNet 1.9.1.
#include "packed_weights.h"

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <typeinfo>
#include <vector>

#include "onednn.h"
#include "packing.h"

namespace gluon_amp {
namespace {

// ------------------------------------------------------------------------------------ MXNet's arrays

// The part of an NDArray that holds its memory and its version. It is the private first member.
const std::shared_ptr<void>& chunk_of(const NDArray& array) {
  return *reinterpret_cast<const std::shared_ptr<void>*>(&array);
}

// The first members of this part, which is the private class NDArray::Chunk
struct ChunkStart {
  mxnet::Storage::Handle memory;
  std::vector<mxnet::Storage::Handle> indices;
  std::shared_ptr<void> onednn;
  mxnet::Engine::VarHandle var;
  bool foreign;
};

// Whether an array's memory is not MXNet's (from_numpy and from_dlpack without a copy), so that others can
// write it without a new version.
bool is_foreign(const NDArray& array) {
  return static_cast<const ChunkStart*>(chunk_of(array).get())->foreign;
}

// The first members of the engine's class ThreadedVar
struct ThreadedVarStart : mxnet::engine::Var {
  std::shared_ptr<void> exception;
  std::mutex mutex;
  int reads;  // -1 while the variable is written
};

// Whether the engine runs an operation now that writes this array. In bulk (a hybridized net without
// static_alloc, mx.engine.bulk), one operation executes several operators, which may write and read an array;
// its version changes at the end.
bool is_being_written(const NDArray& array) {
  mxnet::engine::Var* var = array.var();
  if (std::strcmp(typeid(*var).name(), "N5mxnet6engine11ThreadedVarE")) return false;
  return static_cast<const ThreadedVarStart*>(var)->reads == -1;
}

// ------------------------------------------------------------------------------------------ the cache

struct Packed {
  std::weak_ptr<void> chunk;  // while this exists, no other chunk has its address
  size_t version;
  dnnl_memory_desc_t desc;
  Element element;
  std::shared_ptr<const Buffer> buffer;

  bool is_of(const NDArray& weight) const {
    return version == weight.version() && chunk.lock() == chunk_of(weight);
  }
};

// Address of the values, their dtype, and the numbers of the layout
using Key = std::tuple<const void*, int, std::vector<int64_t>>;

Key key_of(const NDArray& weight, const dnnl_memory_desc_t& desc, Element element) {
  const auto& blocking = desc.format_desc.blocking;
  std::vector<int64_t> layout{desc.data_type, static_cast<int64_t>(element)};
  layout.insert(layout.end(), desc.dims, desc.dims + desc.ndims);
  layout.insert(layout.end(), blocking.strides, blocking.strides + desc.ndims);
  layout.insert(layout.end(), blocking.inner_blks, blocking.inner_blks + blocking.inner_nblks);
  layout.insert(layout.end(), blocking.inner_idxs, blocking.inner_idxs + blocking.inner_nblks);
  const char* values = static_cast<const char*>(weight.storage_handle().dptr) + weight.byte_offset();
  return Key(values, weight.dtype(), layout);
}

std::mutex mutex;
std::map<Key, Packed>& cache() {
  static auto* packed = new std::map<Key, Packed>;  // never destroyed: threads may outlive main()
  return *packed;
}

// What is kept of a weight's present value in a layout that can be turned to `desc`; none has no buffer
Packed find_turned(const NDArray& weight, const dnnl_memory_desc_t& desc, Element element) {
  if (is_being_written(weight)) return {};
  Key key = key_of(weight, desc, element);
  std::get<2>(key).clear();  // comes before all layouts
  std::lock_guard<std::mutex> lock(mutex);
  for (auto item = cache().lower_bound(key); item != cache().end(); ++item) {
    if (std::get<0>(item->first) != std::get<0>(key) || std::get<1>(item->first) != std::get<1>(key)) break;
    const Packed& packed = item->second;
    if (packed.is_of(weight) && packed.element == element && are_turned(packed.desc, desc)) return packed;
  }
  return {};
}

// What is kept of a weight's present value, or memory to pack it in.
struct Found {
  std::shared_ptr<const Buffer> buffer;
  bool packed;
};

Found find(const NDArray& weight, const Key& key) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = cache().find(key);
  if (found == cache().end()) {
    for (auto item = cache().begin(); item != cache().end();) {
      item = item->second.chunk.expired() ? cache().erase(item) : std::next(item);
    }
    return {};
  }
  const Packed packed = found->second;
  if (packed.is_of(weight)) return {packed.buffer, true};
  cache().erase(found);
  return {packed.buffer.use_count() == 1 ? packed.buffer : nullptr, false};
}

}  // namespace

std::shared_ptr<const Buffer> packed_weight(const NDArray& weight, const dnnl_memory_desc_t& desc,
                                            Element element, Kept kept) {
  const bool single = weight.dtype() == mshadow::kFloat32 && desc.data_type == dnnl_f32;
  const bool half = weight.dtype() == mshadow::kFloat16 && desc.data_type == dnnl_f16;
  const bool exact = half || (single && element == Element::kSingle);
  if (exact && is_plain(desc) && !weight.IsMKLDNNData()) {
    return std::make_shared<Buffer>(plain_data<void>(weight));
  }
  if (kept == Kept::kForOneUse) {
    const auto buffer = std::make_shared<Buffer>(scratch(Purpose::kWeight, bytes_of(desc)));
    const Packed forward = find_turned(weight, desc, element);
    if (forward.buffer) {
      turn(forward.buffer->data(), forward.desc, buffer->data(), desc);
    } else {
      pack(weight, desc, element, buffer->data());
    }
    return buffer;
  }
  const bool keeps = kept == Kept::kUntilWritten && !is_foreign(weight) && !is_being_written(weight);
  const Key key = keeps ? key_of(weight, desc, element) : Key();
  const size_t version = weight.version();
  Found found = keeps ? find(weight, key) : Found{};
  if (found.packed) return found.buffer;
  if (!found.buffer) found.buffer = std::make_shared<Buffer>(bytes_of(desc));
  pack(weight, desc, element, found.buffer->data());
  if (keeps) {
    std::lock_guard<std::mutex> lock(mutex);
    cache()[key] = Packed{chunk_of(weight), version, desc, element, found.buffer};
  }
  return found.buffer;
}

void forget_weights() {
  std::lock_guard<std::mutex> lock(mutex);
  cache().clear();
}

}  // namespace gluon_amp
