// Concatenates blocked images along their channels. The gradient splits them.
//
// Both move the same parts: ranges of channels that are lanes of one group in an input and of one group
// in the result. The attribute `lanes` is the number of lanes of the result, 0 for all channels in one group.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "blocked.h"
#include "operators.h"
#include "parallel.h"
#include "shapes.h"

namespace gluon_amp {
namespace {

const char kConcatenated[] = "num_args";

// Lanes of one group of an image in a narrow array (one of those that are concatenated) and in the wide
// one. Padding belongs to only one of the two.
struct Part {
  static constexpr int64_t kNone = -1;
  size_t array;                  // index of the narrow array
  int64_t narrow, wide, count;  // first lane, counted through the groups; kNone: the other has padding
};

std::vector<int64_t> channels_of(const NodeAttrs& attrs) {
  const auto channels = integers_of(attrs, "channels");
  CHECK_EQ(channels.size(), count_of(attrs, kConcatenated)) << attrs.op->name << ": channels";
  for (int64_t count : channels) {
    CHECK(0 < count && count <= INT32_MAX) << attrs.op->name << ": channels";
  }
  return channels;
}

std::vector<Part> parts_of(const NodeAttrs& attrs, const Arrays& narrow, const NDArray& wide) {
  const auto channels = channels_of(attrs);
  const Blocked result(wide.shape());
  std::vector<Part> parts;
  int64_t before = 0;
  for (size_t i = 0; i < channels.size(); ++i) {
    const Blocked shape(narrow[i].shape());
    const int64_t lanes = shape.lanes, padding = shape.groups * lanes - channels[i];
    CHECK_EQ(narrow[i].shape(),
             blocked_shape(result.images, channels[i], result.height, result.width, lanes));
    int64_t count;
    for (int64_t channel = 0; channel < channels[i]; channel += count) {
      const int64_t in_narrow = lanes - channel % lanes;
      const int64_t in_wide = result.lanes - (before + channel) % result.lanes;
      count = std::min({channels[i] - channel, in_narrow, in_wide});
      parts.push_back({i, channel, before + channel, count});
    }
    if (padding > 0) parts.push_back({i, channels[i], Part::kNone, padding});
    before += channels[i];
  }
  const int64_t padding = result.groups * result.lanes - before;
  CHECK(0 <= padding && padding < result.lanes);
  if (padding > 0) parts.push_back({0, Part::kNone, before, padding});
  return parts;
}

// Lanes of one group of an image: where they start, and the bytes between two positions
struct Lanes {
  char* data;
  int64_t step;
};

Lanes lanes_at(char* data, const Blocked& shape, int64_t image, int64_t first, int64_t size) {
  const int64_t group = image * shape.groups + first / shape.lanes;
  return {data + (group * shape.plane() + first % shape.lanes) * size, shape.lanes * size};
}

void copy_lanes(const Lanes& in, const Lanes& out, int64_t positions, int64_t bytes) {
  if (in.step == bytes && out.step == bytes) {
    std::memcpy(out.data, in.data, positions * bytes);
    return;
  }
  for (int64_t i = 0; i < positions; ++i) {
    std::memcpy(out.data + i * out.step, in.data + i * in.step, bytes);
  }
}

void clear_lanes(const Lanes& out, int64_t positions, int64_t bytes) {
  for (int64_t i = 0; i < positions; ++i) std::memset(out.data + i * out.step, 0, bytes);
}

// Copies all parts to the wide array if `joining`, otherwise to those narrow arrays that are not null.
void move_parts(const std::vector<Part>& parts, bool joining, const std::vector<char*>& narrow,
          const std::vector<Blocked>& narrow_shapes, char* wide, const Blocked& wide_shape,
          int64_t size) {
  const int64_t n = wide_shape.images * parts.size(), positions = wide_shape.positions();
#pragma omp parallel for schedule(static) if (wide_shape.size() > 2 * kBlock)
  for (int64_t i = 0; i < n; ++i) {
    const Part& part = parts[i % parts.size()];
    const int64_t image = i / parts.size(), bytes = part.count * size;
    const bool in_narrow = part.narrow != Part::kNone, in_wide = part.wide != Part::kNone;
    if (!narrow[part.array] || !(joining ? in_wide : in_narrow)) continue;
    Lanes from{}, to{};
    if (in_narrow) {
      (joining ? from : to) =
          lanes_at(narrow[part.array], narrow_shapes[part.array], image, part.narrow, size);
    }
    if (in_wide) (joining ? to : from) = lanes_at(wide, wide_shape, image, part.wide, size);
    if (from.data) {
      copy_lanes(from, to, positions, bytes);
    } else {
      clear_lanes(to, positions, bytes);
    }
  }
}

std::vector<Blocked> shapes_of_all(const Arrays& arrays) {
  std::vector<Blocked> shapes;
  for (const auto& array : arrays) shapes.emplace_back(array.shape());
  return shapes;
}

void concat(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
            const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  const NDArray& output = outputs[0];
  std::vector<char*> narrow;
  for (const auto& input : inputs) narrow.push_back(const_cast<char*>(values_of<char>(input)));
  move_parts(parts_of(attrs, inputs, output), true, narrow, shapes_of_all(inputs), result_of<char>(output),
       Blocked(output.shape()), size_of_value(output));
}

// input: the gradient of the result
void split(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
           const Arrays& outputs) {
  std::vector<char*> narrow;
  for (size_t i = 0; i < outputs.size(); ++i) {
    CHECK_NE(req[i], mxnet::kAddTo);
    narrow.push_back(req[i] == mxnet::kNullOp ? nullptr : result_of<char>(outputs[i]));
  }
  move_parts(parts_of(attrs, outputs, inputs[0]), false, narrow, shapes_of_all(outputs),
       const_cast<char*>(values_of<char>(inputs[0])), Blocked(inputs[0].shape()),
       size_of_value(inputs[0]));
}

bool infer_concat(const NodeAttrs& attrs, mxnet::ShapeVector& narrow, mxnet::ShapeVector& result) {
  mxnet::TShape& wide = result.at(0);
  const auto channels = channels_of(attrs);
  const int64_t lanes = lanes_of(attrs), all = std::accumulate(channels.begin(), channels.end(), int64_t{0});
  set_rank(attrs, wide, 5);
  set_size(attrs, wide, 4, lanes == 0 ? all : lanes);
  // Twice, since a size that is known only for the last array holds for the first, too.
  bool known = true;
  for (size_t i = 0; i < 2 * narrow.size(); ++i) {
    mxnet::TShape& shape = narrow[i % narrow.size()];
    set_rank(attrs, shape, 5);
    for (int common : {0, 2, 3}) share_size(attrs, shape, common, wide, common);
    set_groups(attrs, shape, channels[i % narrow.size()]);
    if (i >= narrow.size()) known = known && mxnet::shape_is_known(shape);
  }
  set_groups(attrs, wide, all);
  return known && mxnet::shape_is_known(wide);
}

}  // namespace

void register_concat() {
  const auto arrays = [](const NodeAttrs& attrs) { return count_of(attrs, kConcatenated); };
  nnvm::Op* op = add_op("_gluon_amp_concat", arrays, 1, concat, infer_concat, infer_one_dtype);
  add_gradient(op, 1, split, only_gradients);
}

}  // namespace gluon_amp
