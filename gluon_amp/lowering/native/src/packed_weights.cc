// The offset of an element in a blocked layout is a sum of one term for each dimension. So tables of these
// terms describe any such layout.
#include "packed_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "kernels.h"

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

// A weight as (filters of all groups, channels, positions of the kernel), and its offsets in a layout.
struct Layout {
  int64_t groups = 1, filters, channels, positions = 1;  // filters of one group
  std::vector<int64_t> of_group{0}, of_filter, of_channel, of_position{0};
  bool padded;

  explicit Layout(const dnnl_memory_desc_t& desc) {
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

// Filters are processed in blocks, so that what a thread writes or reads stays in its cache.
constexpr int64_t kFilters = 16, kChannels = 16;

// Calls body(group, filter, channel, filters, channels) for all blocks.
template <typename Body>
void each_block(const Layout& layout, Body body) {
  const int64_t rows = (layout.filters + kFilters - 1) / kFilters;
  const int64_t columns = (layout.channels + kChannels - 1) / kChannels;
  const int64_t count = layout.groups * rows * columns;
#pragma omp parallel for schedule(static) if (count > 8)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t filter = i / columns % rows * kFilters, channel = i % columns * kChannels;
    body(i / columns / rows, filter, channel, std::min(kFilters, layout.filters - filter),
         std::min(kChannels, layout.channels - channel));
  }
}

template <typename From, typename To, typename Convert>
void pack(const From* weight, const Layout& layout, Convert convert, To* packed) {
  const int64_t positions = layout.positions;
  each_block(layout, [&](int64_t g, int64_t f, int64_t c, int64_t filters, int64_t channels) {
    std::vector<To> row(kChannels * positions);
    for (int64_t i = f; i < f + filters; ++i) {
      const From* source = weight + ((g * layout.filters + i) * layout.channels + c) * positions;
      convert(source, row.data(), channels * positions);
      To* target = packed + layout.of_group[g] + layout.of_filter[i];
      const To* next = row.data();
      for (int64_t j = c; j < c + channels; ++j) {
        To* place = target + layout.of_channel[j];
        for (int64_t k = 0; k < positions; ++k) place[layout.of_position[k]] = *next++;
      }
    }
  });
}

void fill(const NDArray& weight, const dnnl_memory_desc_t& desc, const Buffer& buffer) {
  const Layout layout(desc);
  if (layout.padded) std::memset(buffer.data(), 0, buffer.bytes());
  const NDArray plain = plain_copy(weight);
  const bool half = plain.dtype() == mshadow::kFloat16, low = desc.data_type == dnnl_bf16;
  const auto* wide_in = plain_data<float>(plain);
  const auto* half_in = reinterpret_cast<const half_bits*>(wide_in);
  auto* bfloats = static_cast<Bfloat*>(buffer.data());
  auto* values = static_cast<HalfValue*>(buffer.data());
  if (low && half) return pack(half_in, layout, kernels().half_to_bfloat, bfloats);
  if (low) return pack(wide_in, layout, kernels().to_bfloat, bfloats);
  if (half) return pack(half_in, layout, kernels().half_to_half_value, values);
  pack(wide_in, layout, kernels().to_half_value, values);
}

// --------------------------------------------------------------------------------------- cache

// The part of an NDArray that holds its memory and its version. It is the private first member.
const std::shared_ptr<void>& chunk_of(const NDArray& array) {
  return *reinterpret_cast<const std::shared_ptr<void>*>(&array);
}

struct Packed {
  std::weak_ptr<void> chunk;  // while this exists, no other chunk has its address
  size_t version;
  std::shared_ptr<const Buffer> buffer;
};

// Address of the memory, its dtype, and the bytes of the layout
using Key = std::tuple<const void*, int, std::vector<int64_t>>;

Key key_of(const NDArray& weight, const dnnl_memory_desc_t& desc) {
  const auto& blocking = desc.format_desc.blocking;
  std::vector<int64_t> layout{desc.data_type};
  layout.insert(layout.end(), desc.dims, desc.dims + desc.ndims);
  layout.insert(layout.end(), blocking.strides, blocking.strides + desc.ndims);
  layout.insert(layout.end(), blocking.inner_blks, blocking.inner_blks + blocking.inner_nblks);
  layout.insert(layout.end(), blocking.inner_idxs, blocking.inner_idxs + blocking.inner_nblks);
  return Key(weight.storage_handle().dptr, weight.dtype(), layout);
}

std::mutex mutex;
std::map<Key, Packed>& cache() {
  static auto* packed = new std::map<Key, Packed>;  // never destroyed: threads may outlive main()
  return *packed;
}

void forget_expired() {
  for (auto item = cache().begin(); item != cache().end();) {
    item = item->second.chunk.expired() ? cache().erase(item) : std::next(item);
  }
}

}  // namespace

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
                                            bool is_variable) {
  std::shared_ptr<const Buffer> buffer;
  if (!is_variable) {
    buffer = std::make_shared<Buffer>(bytes_of(desc));
    fill(weight, desc, *buffer);
    return buffer;
  }
  const Key key = key_of(weight, desc);
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
  fill(weight, desc, *buffer);
  std::lock_guard<std::mutex> lock(mutex);
  cache()[key] = Packed{chunk_of(weight), version, buffer};
  return buffer;
}

void unpack_gradient(const void* packed, const dnnl_memory_desc_t& desc, OpReqType req, bool emulated,
                     const NDArray& gradient) {
  if (req == mxnet::kNullOp) return;
  make_plain(gradient);
  const Layout layout(desc);
  const auto* values = static_cast<const float*>(packed);
  const bool half = gradient.dtype() == mshadow::kFloat16, adds = req == mxnet::kAddTo;
  const int64_t positions = layout.positions;
  each_block(layout, [&](int64_t g, int64_t f, int64_t c, int64_t filters, int64_t channels) {
    std::vector<float> row(kChannels * positions);
    std::vector<half_bits> rounded(half ? kChannels * positions : 0);
    const int64_t count = channels * positions;
    for (int64_t i = f; i < f + filters; ++i) {
      const float* source = values + layout.of_group[g] + layout.of_filter[i];
      float* next = row.data();
      for (int64_t j = c; j < c + channels; ++j) {
        const float* place = source + layout.of_channel[j];
        for (int64_t k = 0; k < positions; ++k) *next++ = place[layout.of_position[k]];
      }
      if (emulated && !half) kernels().round(row.data(), row.data(), count);
      const int64_t start = ((g * layout.filters + i) * layout.channels + c) * positions;
      if (half) {
        half_bits* target = plain_data<half_bits>(gradient) + start;
        kernels().narrow(row.data(), adds ? rounded.data() : target, count);
        if (adds) kernels().add_half(rounded.data(), target, count);
      } else if (adds) {
        kernels().add(row.data(), plain_data<float>(gradient) + start, count);
      } else {
        std::memcpy(plain_data<float>(gradient) + start, row.data(), count * sizeof(float));
      }
    }
  });
}

}  // namespace gluon_amp
