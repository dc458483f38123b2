// The offset of an element in a blocked layout is a sum of one term for each dimension. So tables of these
// terms describe any such layout.
#include "packed_weights.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "parallel.h"
#include "parameters.h"

namespace gluon_amp {
namespace {

// ------------------------------------------------------------------------------------- layouts

// The terms of one dimension: the offset of each of its (padded) positions, in elements.
std::vector<int64_t> terms(const dnnl_memory_desc_t& desc, int dimension) {
  const auto& blocking = desc.format_desc.blocking;
  std::vector<int64_t> result(desc.padded_dims[dimension]);
  for (int64_t position = 0; position < desc.padded_dims[dimension]; ++position) {
    int64_t rest = position, offset = 0, stride = 1;
    for (int i = blocking.inner_nblks - 1; i >= 0; --i) {
      const int64_t size = blocking.inner_blks[i];
      if (blocking.inner_idxs[i] == dimension) {
        offset += rest % size * stride;
        rest /= size;
      }
      stride *= size;
    }
    result[position] = offset + rest * blocking.strides[dimension];
  }
  return result;
}

// How many filters or channels are side by side in the layouts that oneDNN's kernels read: 8 with AVX2
int64_t side_of(const dnnl_memory_desc_t& desc) {
  const auto& blocking = desc.format_desc.blocking;
  return blocking.inner_nblks > 0 && blocking.inner_blks[blocking.inner_nblks - 1] == 8 ? 8 : 16;
}

// A weight as (filters of all groups, channels, positions of the kernel), and its offsets in a layout.
struct Layout {
  int64_t groups = 1, filters, channels, positions = 1;  // filters of one group
  std::vector<int64_t> of_group{0}, of_filter, of_channel, of_position{0};
  int64_t side;
  bool padded;

  explicit Layout(const dnnl_memory_desc_t& desc) : side(side_of(desc)) {
    const bool grouped = desc.ndims == 5;
    const int first = grouped ? 1 : 0;
    if (grouped) {
      groups = desc.dims[0];
      of_group = terms(desc, 0);
    }
    filters = desc.dims[first];
    channels = desc.dims[first + 1];
    of_filter = terms(desc, first);
    of_channel = terms(desc, first + 1);
    for (int i = first + 2; i < desc.ndims; ++i) {
      const auto inner = terms(desc, i);
      std::vector<int64_t> both;
      for (const int64_t a : of_position) {
        for (const int64_t b : inner) both.push_back(a + b);
      }
      of_position = both;
      positions *= desc.dims[i];
    }
    padded = false;
    for (int i = 0; i < desc.ndims; ++i) padded = padded || desc.dims[i] != desc.padded_dims[i];
  }
};

// The block of a weight that a thread packs, so that what it writes or reads stays in its cache: at most
// `side` filters and channels of one group.
struct Block {
  int64_t group, filter, channel, filters, channels;
};

// Calls body(Block) for all blocks.
template <typename Body>
void each_block(const Layout& layout, Body body) {
  const int64_t side = layout.side;
  const int64_t rows = (layout.filters + side - 1) / side, columns = (layout.channels + side - 1) / side;
  const int64_t count = layout.groups * rows * columns;
#pragma omp parallel for schedule(static) if (count > 8)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t filter = i / columns % rows * side, channel = i % columns * side;
    body(Block{i / columns / rows, filter, channel, std::min(side, layout.filters - filter),
               std::min(side, layout.channels - channel)});
  }
}

// The four layouts of a whole block that oneDNN's kernels for convolutions have. In two of them the filters
// are side by side, in the others the channels. In bfloat16, each of these is a pair of channels or filters.
enum class Order { kFilters, kChannels, kOther };

template <typename To>
Order find_order(const Layout& layout, const Block& b) {
  const bool pairs = sizeof(To) == 2;
  const int64_t side = layout.side;
  const auto side_by_side = [&](const std::vector<int64_t>& offsets, int64_t first, int64_t step) {
    for (int64_t i = 0; i < side; ++i) {
      if (offsets[first + i] - offsets[first] != i * step) return false;
    }
    return true;
  };
  const auto paired = [&](const std::vector<int64_t>& offsets, int64_t first, int64_t count) {
    for (int64_t i = 0; pairs && i < count; i += 2) {
      if (offsets[first + i + 1] - offsets[first + i] != 1) return false;
    }
    return !pairs || count % 2 == 0;
  };
  const int64_t step = pairs ? 2 : 1;
  if (b.filters == side && side_by_side(layout.of_filter, b.filter, step) &&
      paired(layout.of_channel, b.channel, b.channels)) {
    return Order::kFilters;
  }
  if (b.channels == side && side_by_side(layout.of_channel, b.channel, step) &&
      paired(layout.of_filter, b.filter, b.filters)) {
    return Order::kChannels;
  }
  return Order::kOther;
}

// Calls body(block, order) for all blocks; whole blocks have the order of the first one.
template <typename To, typename Body>
void each_ordered_block(const Layout& layout, Body body) {
  const int64_t side = layout.side;
  const bool whole = layout.filters >= side && layout.channels >= side;
  const Block first{0, 0, 0, side, side};
  const Order order = whole ? find_order<To>(layout, first) : Order::kOther;
  each_block(layout, [&](const Block& b) {
    const bool is_whole = b.filters == side && b.channels == side;
    body(b, is_whole ? order : find_order<To>(layout, b));
  });
}

// Memory of this thread for at least `count` values
float* memory_of_thread(size_t count) {
  static thread_local std::vector<float> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

void convert(const float* in, Bfloat* out, int64_t n) { kernels().to_bfloat(in, out, n); }
void convert(const float* in, float* out, int64_t n) { std::copy(in, in + n, out); }

// Stores a row of 8 or 16 values, in bfloat16 of 16 pairs.
void store_row(const float* low, const float* high, Bfloat* out, int64_t side) {
  kernels().interleave(low, high, out, side);
}
void store_row(const float* values, const float*, float* out, int64_t side) {
  for (int64_t i = 0; i < side; i += 8) std::memcpy(out + i, values + i, 8 * sizeof(float));
}

// Rounds to the values of an element; in and out may be one array.
void round_to(Element element, const float* in, float* out, int64_t n) {
  if (element == Element::kSingle) {
    if (in != out) std::copy(in, in + n, out);
  } else {
    kernels().round(in, out, n, element == Element::kHalf ? kFloat16 : kBfloat16);
  }
}

void transpose(const float* in, float* out, const Transposition& t) {
  kernels().moves->transpose4(reinterpret_cast<const uint32_t*>(in), reinterpret_cast<uint32_t*>(out), t);
}

// Packs a block. Its rows, one for each filter, begin at `source` and are `row` values apart.
template <typename To>
void pack_block(const float* source, int64_t row, const Layout& layout, const Block& b, Order order,
                To* packed) {
  float* memory = memory_of_thread(layout.side * layout.side * layout.positions);
  const int64_t positions = layout.positions, side = layout.side;
  const int64_t count = b.channels * positions, step = sizeof(To) == 2 ? 2 : 1;
  To* target = packed + layout.of_group[b.group];
  if (order == Order::kFilters) {
    transpose(source, memory, {side, count, row, side, side});
    target += layout.of_filter[b.filter];
    for (int64_t c = 0; c < b.channels; c += step) {
      To* place = target + layout.of_channel[b.channel + c];
      const float* values = memory + c * positions * side;
      for (int64_t k = 0; k < positions; ++k) {
        store_row(values + k * side, values + (positions + k) * side, place + layout.of_position[k], side);
      }
    }
  } else if (order == Order::kChannels) {
    target += layout.of_channel[b.channel];
    for (int64_t f = 0; f < b.filters; f += step) {
      const float* rows[2] = {source + f * row, source + (f + 1) * row};
      for (int64_t i = 0; positions > 1 && i < step; ++i) {
        transpose(rows[i], memory + i * count, {side, positions, positions, side, side});
        rows[i] = memory + i * count;
      }
      To* place = target + layout.of_filter[b.filter + f];
      for (int64_t k = 0; k < positions; ++k) {
        store_row(rows[0] + k * side, rows[1] + k * side, place + layout.of_position[k], side);
      }
    }
  } else {
    auto* values = reinterpret_cast<To*>(memory);
    for (int64_t f = 0; f < b.filters; ++f) {
      convert(source + f * row, values, count);
      for (int64_t c = 0; c < b.channels; ++c) {
        To* place = target + layout.of_filter[b.filter + f] + layout.of_channel[b.channel + c];
        for (int64_t k = 0; k < positions; ++k) place[layout.of_position[k]] = values[c * positions + k];
      }
    }
  }
}

void read_row(const float* in, float* out, int64_t n) { std::copy(in, in + n, out); }
void read_row(const half_bits* in, float* out, int64_t n) { kernels().widen(in, out, n); }

template <typename From, typename To>
void pack(const From* weight, const Layout& layout, Element element, To* packed) {
  // Only what is stored as float32 is rounded before.
  const bool direct = std::is_same<From, float>::value && (sizeof(To) == 2 || element == Element::kSingle);
  each_ordered_block<To>(layout, [&](const Block& b, Order order) {
    const int64_t row = layout.channels * layout.positions;
    const int64_t first = (b.group * layout.filters + b.filter) * row + b.channel * layout.positions;
    const float* source = reinterpret_cast<const float*>(weight + first);
    if (direct) return pack_block(source, row, layout, b, order, packed);
    const int64_t count = b.channels * layout.positions;
    std::vector<float> rows(b.filters * count);
    for (int64_t f = 0; f < b.filters; ++f) read_row(weight + first + f * row, &rows[f * count], count);
    if (sizeof(To) == 4) round_to(element, rows.data(), rows.data(), rows.size());
    pack_block(rows.data(), count, layout, b, order, packed);
  });
}

void fill(const NDArray& weight, const dnnl_memory_desc_t& desc, Element element, void* memory) {
  const NDArray plain = plain_copy(weight);
  const float* floats = plain_data<float>(plain);
  const half_bits* halves = reinterpret_cast<const half_bits*>(floats);
  const bool half = plain.dtype() == mshadow::kFloat16;
  auto* values = static_cast<float*>(memory);
  if (desc.data_type == dnnl_f32 && is_plain(desc)) {
    return in_parallel(plain.shape().Size(), [&](int64_t first, int64_t count) {
      if (half) kernels().widen(halves + first, values + first, count);
      round_to(element, half ? values + first : floats + first, values + first, count);
    });
  }
  const Layout layout(desc);
  if (layout.padded) std::memset(memory, 0, bytes_of(desc));
  auto* bfloats = static_cast<Bfloat*>(memory);
  if (desc.data_type == dnnl_bf16) {
    return half ? pack(halves, layout, element, bfloats) : pack(floats, layout, element, bfloats);
  }
  half ? pack(halves, layout, element, values) : pack(floats, layout, element, values);
}

// ------------------------------------------------------------------------------------- squares

// oneDNN's kernels read squares of filters and channels. Those of a convolution have a row for each
// channel, those of the gradient of its data a row for each filter. In bfloat16, a row has pairs of them.
bool has_squares(const dnnl_memory_desc_t& desc, int rows, int columns) {
  const auto& blocking = desc.format_desc.blocking;
  const bool pairs = desc.data_type == dnnl_bf16;
  const int64_t side = side_of(desc);
  const auto sizes = pairs ? std::vector<int64_t>{8, 16, 2} : std::vector<int64_t>{side, side};
  const std::vector<int64_t> dimensions =
      pairs ? std::vector<int64_t>{rows, columns, rows} : std::vector<int64_t>{rows, columns};
  return blocking.inner_nblks == static_cast<int>(sizes.size()) &&
         std::equal(sizes.begin(), sizes.end(), blocking.inner_blks) &&
         std::equal(dimensions.begin(), dimensions.end(), blocking.inner_idxs);
}

// Whether one layout is that of a convolution's weight, and the other that of the gradient of its data
bool are_turned(const dnnl_memory_desc_t& forward, const dnnl_memory_desc_t& backward) {
  const int filters = forward.ndims == 5 ? 1 : 0, channels = filters + 1;
  return forward.data_type == backward.data_type && forward.ndims == backward.ndims &&
         side_of(forward) == side_of(backward) &&
         std::equal(forward.dims, forward.dims + forward.ndims, backward.dims) &&
         has_squares(forward, channels, filters) && has_squares(backward, filters, channels);
}

void turn_square(const Bfloat* in, Bfloat* out, int64_t) {
  kernels().moves->turn_pairs(reinterpret_cast<const uint64_t*>(in), reinterpret_cast<uint64_t*>(out));
}
void turn_square(const float* in, float* out, int64_t side) {
  transpose(in, out, {side, side, side, side, side});
}

// Packs the weight for the gradient of the data from what is packed for the convolution.
template <typename T>
void turn(const T* forward, const dnnl_memory_desc_t& from, T* backward, const dnnl_memory_desc_t& to) {
  const Layout in(from), out(to);
  const int64_t filters = in.of_filter.size(), channels = in.of_channel.size();
  const int64_t side = in.side, rows = filters / side, columns = channels / side;
  const int64_t count = in.groups * rows * columns;
#pragma omp parallel for schedule(static) if (count > 8)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t group = i / columns / rows, filter = i / columns % rows * side;
    const int64_t channel = i % columns * side;
    const T* squares = forward + in.of_group[group] + in.of_filter[filter] + in.of_channel[channel];
    T* turned = backward + out.of_group[group] + out.of_filter[filter] + out.of_channel[channel];
    for (int64_t k = 0; k < in.positions; ++k) {
      turn_square(squares + in.of_position[k], turned + out.of_position[k], side);
    }
  }
}

// --------------------------------------------------------------------------------------- cache

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

// Whether the engine runs an operation now that writes this array. Under mx.engine.bulk, one operation
// executes several operators, which may write and read an array; its version changes at the end.
bool is_being_written(const NDArray& array) {
  mxnet::engine::Var* var = array.var();
  if (std::strcmp(typeid(*var).name(), "N5mxnet6engine11ThreadedVarE")) return false;
  return static_cast<const ThreadedVarStart*>(var)->reads == -1;
}

struct Packed {
  std::weak_ptr<void> chunk;  // while this exists, no other chunk has its address
  size_t version;
  dnnl_memory_desc_t desc;
  Element element;
  std::shared_ptr<const Buffer> buffer;
};

// Address of the values, their dtype, and the bytes of the layout
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
    const bool same = packed.version == weight.version() && packed.chunk.lock() == chunk_of(weight);
    if (same && packed.element == element && are_turned(packed.desc, desc)) return packed;
  }
  return {};
}

constexpr std::chrono::milliseconds kInterval(100);
bool forgetting = false;  // whether a thread forgets the weights of arrays that are gone

void forget_expired() {
  for (auto item = cache().begin(); item != cache().end();) {
    item = item->second.chunk.expired() ? cache().erase(item) : std::next(item);
  }
}

// Held while the thread forgets, and during a fork. Lock it before the other mutex.
std::mutex forgetting_mutex;

void keep_forgetting() {
  for (;;) {
    std::this_thread::sleep_for(kInterval);
    std::lock_guard<std::mutex> no_fork(forgetting_mutex);
    std::lock_guard<std::mutex> lock(mutex);
    forget_expired();
    if (cache().empty()) {
      forgetting = false;
      return;
    }
  }
}

// Frees what is packed soon after its array is gone, of which MXNet informs nobody. Hold the mutex.
void forget_when_expired() {
  if (forgetting) return;
  forgetting = true;
  // A child process has the memory of its parent, but not this thread. Before a fork, MXNet waits until
  // its engine is idle, and this handler runs before that: it must not hold what an operator locks.
  static const int handlers = pthread_atfork([] { forgetting_mutex.lock(); },
                                             [] { forgetting_mutex.unlock(); },
                                             [] {
                                               forgetting = false;
                                               forgetting_mutex.unlock();
                                             });
  (void)handlers;
  std::thread(keep_forgetting).detach();
}

}  // namespace

bool is_plain(const dnnl_memory_desc_t& desc) {
  int64_t stride = 1;
  for (int i = desc.ndims - 1; i >= 0; stride *= desc.dims[i--]) {
    if (desc.dims[i] != desc.padded_dims[i] || desc.format_desc.blocking.strides[i] != stride) return false;
  }
  return desc.format_desc.blocking.inner_nblks == 0;
}

void* scratch(Purpose purpose, size_t bytes) {
  static thread_local std::unique_ptr<Buffer> buffers[static_cast<int>(Purpose::kCount)];
  auto& buffer = buffers[static_cast<int>(purpose)];
  if (!buffer || buffer->bytes() < bytes) {
    buffer.reset();
    buffer.reset(new Buffer(bytes));
  }
  return buffer->data();
}

std::shared_ptr<const Buffer> packed_weight(const NDArray& weight, const dnnl_memory_desc_t& desc,
                                            Element element, bool is_variable) {
  const bool as_stored = desc.data_type == dnnl_f32 && weight.dtype() == mshadow::kFloat32 && is_plain(desc);
  if (as_stored && element == Element::kSingle && !weight.IsMKLDNNData()) {
    return std::make_shared<Buffer>(plain_data<float>(weight));
  }
  std::shared_ptr<const Buffer> buffer;
  if (!is_variable || is_foreign(weight) || is_being_written(weight)) {
    buffer = std::make_shared<Buffer>(bytes_of(desc));
    fill(weight, desc, element, buffer->data());
    return buffer;
  }
  const Key key = key_of(weight, desc, element);
  const size_t version = weight.version();
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = cache().find(key);
    if (found == cache().end()) {
      forget_expired();
    } else {
      Packed& packed = found->second;
      const bool same = packed.chunk.lock() == chunk_of(weight);
      if (same && packed.version == version) return packed.buffer;
      if (packed.buffer.use_count() == 1) buffer = packed.buffer;
      cache().erase(found);
    }
  }
  if (!buffer) buffer = std::make_shared<Buffer>(bytes_of(desc));
  fill(weight, desc, element, buffer->data());
  std::lock_guard<std::mutex> lock(mutex);
  cache()[key] = Packed{chunk_of(weight), version, desc, element, buffer};
  forget_when_expired();
  return buffer;
}

const void* packed_for_one_use(const NDArray& weight, const dnnl_memory_desc_t& desc, Element element) {
  void* memory = scratch(Purpose::kWeight, bytes_of(desc));
  const Packed forward = find_turned(weight, desc, element);
  if (!forward.buffer) {
    fill(weight, desc, element, memory);
  } else if (desc.data_type == dnnl_bf16) {
    turn(static_cast<const Bfloat*>(forward.buffer->data()), forward.desc, static_cast<Bfloat*>(memory),
         desc);
  } else {
    turn(static_cast<const float*>(forward.buffer->data()), forward.desc, static_cast<float*>(memory),
         desc);
  }
  return memory;
}

void unpack_gradient(const void* packed, const dnnl_memory_desc_t& desc, OpReqType req, bool emulated,
                     const NDArray& gradient) {
  if (req == mxnet::kNullOp) return;
  const auto* values = static_cast<const float*>(packed);
  const ParameterGradient output(gradient, req, emulated);
  if (is_plain(desc)) {
    return in_parallel(gradient.shape().Size(), [&](int64_t first, int64_t count) {
      output.write(values + first, first, count);
    });
  }
  const Layout layout(desc);
  const int64_t positions = layout.positions, side = layout.side;
  each_ordered_block<float>(layout, [&](const Block& b, Order order) {
    const int64_t count = b.channels * positions, row = layout.channels * positions;
    const float* source = values + layout.of_group[b.group];
    const int64_t start = ((b.group * layout.filters + b.filter) * layout.channels + b.channel) * positions;
    float* packed_rows = memory_of_thread(2 * side * count);
    float* rows = packed_rows + side * count;
    float* const direct = output.direct();
    float* target = direct ? direct + start : rows;
    const int64_t stride = direct ? row : count;
    if (order == Order::kFilters) {
      float* next = packed_rows;
      for (int64_t c = 0; c < b.channels; ++c) {
        const float* place = source + layout.of_filter[b.filter] + layout.of_channel[b.channel + c];
        for (int64_t k = 0; k < positions; ++k, next += side) {
          store_row(place + layout.of_position[k], nullptr, next, side);
        }
      }
      transpose(packed_rows, target, {count, side, side, stride, count});
    } else {
      for (int64_t f = 0; f < b.filters; ++f) {
        const float* place = source + layout.of_filter[b.filter + f];
        for (int64_t c = 0; c < b.channels; ++c) {
          for (int64_t k = 0; k < positions; ++k) {
            target[f * stride + c * positions + k] =
                place[layout.of_channel[b.channel + c] + layout.of_position[k]];
          }
        }
      }
    }
    for (int64_t f = 0; f < b.filters && !direct; ++f) output.write(rows + f * count, start + f * row, count);
  });
}

}  // namespace gluon_amp
