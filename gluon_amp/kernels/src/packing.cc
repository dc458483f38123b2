// The offset of an element in a blocked layout is a sum of one term for each dimension. So tables of these
// terms describe any such layout.
#include "packing.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "onednn.h"
#include "parallel.h"
#include "values.h"

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

bool has_pairs(const dnnl_memory_desc_t& desc) {
  const auto& blocking = desc.format_desc.blocking;
  return blocking.inner_nblks > 0 && blocking.inner_blks[blocking.inner_nblks - 1] == 2;
}

// A weight as (filters of all groups, channels, positions of the kernel), and its offsets in a layout.
struct Layout {
  int64_t groups = 1, filters, channels, positions = 1;  // filters of one group
  std::vector<int64_t> of_group{0}, of_filter, of_channel, of_position{0};
  int64_t side;
  bool pairs, padded;  // pairs: of filters or channels are next to each other, as in oneDNN's bfloat16

  explicit Layout(const dnnl_memory_desc_t& desc) : side(side_of(desc)), pairs(has_pairs(desc)) {
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
// are side by side, in the others the channels; either may be pairs of channels or filters.
enum class Order { kFilters, kChannels, kOther };

Order find_order(const Layout& layout, const Block& b) {
  const bool pairs = layout.pairs;
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
template <typename Body>
void each_ordered_block(const Layout& layout, Body body) {
  const int64_t side = layout.side;
  const bool whole = layout.filters >= side && layout.channels >= side;
  const Block first{0, 0, 0, side, side};
  const Order order = whole ? find_order(layout, first) : Order::kOther;
  each_block(layout, [&](const Block& b) {
    const bool is_whole = b.filters == side && b.channels == side;
    body(b, is_whole ? order : find_order(layout, b));
  });
}

// Memory of this thread
float* floats_of_thread(size_t count) {
  return static_cast<float*>(scratch(Purpose::kPackedBlock, count * sizeof(float)));
}

void convert(const float* in, Bfloat* out, int64_t n) { kernels().to_bfloat(in, out, n); }
void convert(const float* in, half_bits* out, int64_t n) { kernels().narrow(in, out, n); }
void convert(const float* in, float* out, int64_t n) { std::copy(in, in + n, out); }

// Stores a row of 8 or 16 values; with `high`, of 16 pairs.
template <typename To>
void store_row(const float* low, const float* high, To* out, int64_t side) {
  if (!high) return convert(low, out, side);
  kernels().interleave(low, high, reinterpret_cast<Bfloat*>(out), side);
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
  float* memory = floats_of_thread(layout.side * layout.side * layout.positions);
  const int64_t positions = layout.positions, side = layout.side;
  const int64_t count = b.channels * positions, step = layout.pairs ? 2 : 1;
  To* target = packed + layout.of_group[b.group];
  if (order == Order::kFilters) {
    transpose(source, memory, {side, count, row, side, side});
    target += layout.of_filter[b.filter];
    for (int64_t c = 0; c < b.channels; c += step) {
      To* place = target + layout.of_channel[b.channel + c];
      const float* values = memory + c * positions * side;
      for (int64_t k = 0; k < positions; ++k) {
        const float* high = layout.pairs ? values + (positions + k) * side : nullptr;
        store_row(values + k * side, high, place + layout.of_position[k], side);
      }
    }
  } else if (order == Order::kChannels) {
    target += layout.of_channel[b.channel];
    for (int64_t f = 0; f < b.filters; f += step) {
      const float* rows[2] = {source + f * row, layout.pairs ? source + (f + 1) * row : nullptr};
      for (int64_t i = 0; positions > 1 && i < step; ++i) {
        transpose(rows[i], memory + i * count, {side, positions, positions, side, side});
        rows[i] = memory + i * count;
      }
      To* place = target + layout.of_filter[b.filter + f];
      for (int64_t k = 0; k < positions; ++k) {
        const float* high = layout.pairs ? rows[1] + k * side : nullptr;
        store_row(rows[0] + k * side, high, place + layout.of_position[k], side);
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

template <typename To>
void pack_values(const NDArray& plain, const Layout& layout, Element element, To* packed) {
  const void* values = values_of<char>(plain);
  const int dtype = plain.dtype();
  // Only what is stored as float32 is rounded before.
  const bool direct = dtype == mshadow::kFloat32 && (sizeof(To) == 2 || element == Element::kSingle);
  each_ordered_block(layout, [&](const Block& b, Order order) {
    const int64_t row = layout.channels * layout.positions;
    const int64_t first = (b.group * layout.filters + b.filter) * row + b.channel * layout.positions;
    if (direct) return pack_block(static_cast<const float*>(values) + first, row, layout, b, order, packed);
    const int64_t count = b.channels * layout.positions;
    std::vector<float> rows(b.filters * count);
    for (int64_t f = 0; f < b.filters; ++f) to_floats(values, dtype, first + f * row, &rows[f * count], count);
    if (sizeof(To) == 4) round_to(element, rows.data(), rows.data(), rows.size());
    pack_block(rows.data(), count, layout, b, order, packed);
  });
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

void turn_square(const Bfloat* in, Bfloat* out, int64_t) {
  kernels().moves->turn_pairs(reinterpret_cast<const uint64_t*>(in), reinterpret_cast<uint64_t*>(out));
}
void turn_square(const float* in, float* out, int64_t side) {
  transpose(in, out, {side, side, side, side, side});
}

// Packs the weight for the gradient of the data from what is packed for the convolution.
template <typename T>
void turn_values(const T* forward, const dnnl_memory_desc_t& from, T* backward, const dnnl_memory_desc_t& to) {
  const Layout in(from), out(to);
  each_block(in, [&](const Block& b) {
    const T* squares = forward + in.of_group[b.group] + in.of_filter[b.filter] + in.of_channel[b.channel];
    T* turned = backward + out.of_group[b.group] + out.of_filter[b.filter] + out.of_channel[b.channel];
    for (int64_t k = 0; k < in.positions; ++k) {
      turn_square(squares + in.of_position[k], turned + out.of_position[k], in.side);
    }
  });
}

}  // namespace

void pack(const NDArray& weight, const dnnl_memory_desc_t& desc, Element element, void* packed) {
  const NDArray plain = plain_copy(weight);
  if (is_plain(desc)) {
    const void* values = values_of<char>(plain);
    const int dtype = plain.dtype();
    return in_parallel(plain.shape().Size(), [&](int64_t first, int64_t count) {
      if (desc.data_type != dnnl_f32) {
        float wide[kBlock];
        to_floats(values, dtype, first, wide, count);
        if (desc.data_type == dnnl_bf16) return convert(wide, static_cast<Bfloat*>(packed) + first, count);
        return convert(wide, static_cast<half_bits*>(packed) + first, count);
      }
      float* out = static_cast<float*>(packed) + first;
      if (dtype == mshadow::kFloat16) to_floats(values, dtype, first, out, count);
      round_to(element, dtype == mshadow::kFloat16 ? out : static_cast<const float*>(values) + first, out, count);
    });
  }
  const Layout layout(desc);
  if (layout.padded) std::memset(packed, 0, bytes_of(desc));
  if (desc.data_type == dnnl_bf16) return pack_values(plain, layout, element, static_cast<Bfloat*>(packed));
  if (desc.data_type == dnnl_f16) return pack_values(plain, layout, element, static_cast<half_bits*>(packed));
  pack_values(plain, layout, element, static_cast<float*>(packed));
}

bool are_turned(const dnnl_memory_desc_t& forward, const dnnl_memory_desc_t& backward) {
  const int filters = forward.ndims == 5 ? 1 : 0, channels = filters + 1;
  return forward.data_type == backward.data_type && forward.ndims == backward.ndims &&
         side_of(forward) == side_of(backward) &&
         std::equal(forward.dims, forward.dims + forward.ndims, backward.dims) &&
         has_squares(forward, channels, filters) && has_squares(backward, filters, channels);
}

void turn(const void* forward, const dnnl_memory_desc_t& from, void* backward, const dnnl_memory_desc_t& to) {
  if (to.data_type == dnnl_bf16) {
    turn_values(static_cast<const Bfloat*>(forward), from, static_cast<Bfloat*>(backward), to);
  } else {
    turn_values(static_cast<const float*>(forward), from, static_cast<float*>(backward), to);
  }
}

void unpack_gradient(const void* packed, const dnnl_memory_desc_t& desc, OpReqType req, bool emulated,
                     const NDArray& gradient) {
  if (req == mxnet::kNullOp) return;
  const auto* values = static_cast<const float*>(packed);
  const Result output = parameter_gradient(gradient, req, emulated);
  if (is_plain(desc)) return output.write_all(values);
  const Layout layout(desc);
  const int64_t positions = layout.positions, side = layout.side;
  each_ordered_block(layout, [&](const Block& b, Order order) {
    const int64_t count = b.channels * positions, row = layout.channels * positions;
    const float* source = values + layout.of_group[b.group];
    const int64_t start = ((b.group * layout.filters + b.filter) * layout.channels + b.channel) * positions;
    float* packed_rows = floats_of_thread(2 * side * count);
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
