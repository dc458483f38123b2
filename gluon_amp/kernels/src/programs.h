// What the operators with programs have in common: their inputs, and how blocked arrays are split into
// spans, which the kernels process.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "blocked.h"
#include "program.h"
#include "vectors.h"

namespace gluon_amp {

// The shape of an array with one value per image and channel
inline mxnet::TShape per_image(const mxnet::TShape& full) {
  mxnet::TShape shape = full;
  shape[2] = shape[3] = 1;
  return shape;
}

inline int64_t checked_channels(const NodeAttrs& attrs, const mxnet::TShape& full) {
  const int64_t channels = integer_of(attrs, "channels", 0), lanes = full[4];
  CHECK(lanes >= 1 && channels >= 1 && (channels - 1) / lanes + 1 == full[1])
      << attrs.op->name << ": channels is " << channels << " for an array of shape " << full;
  return channels;
}

// The number of inputs of a program, from an attribute
inline int64_t inputs_in(const NodeAttrs& attrs, const std::string& name, int64_t others) {
  const int64_t count = integer_of(attrs, name, -1);
  CHECK(0 <= count && count + others <= kMaxInputs) << attrs.op->name << ": " << name << " is "
                                                    << count;
  return count + others;
}

// Whether an input has one value per image and channel; raises an error if it has neither these values
// nor the full shape.
inline bool is_per_lane(const NodeAttrs& attrs, const mxnet::TShape& shape,
                          const mxnet::TShape& full) {
  CHECK(shape == full || shape == per_image(full))
      << attrs.op->name << ": an input of shape " << shape << " beside one of shape " << full;
  return shape != full;
}

// The inputs of a program from number `first` on; number 0 is an image, too. MXNet has not checked those of
// a gradient in a forged graph.
inline std::vector<Operand> operands_of(const NodeAttrs& attrs, const Arrays& inputs, size_t first,
                                        const mxnet::TShape& full) {
  std::vector<Operand> operands;
  for (size_t i = first; i < inputs.size(); ++i) {
    CHECK_EQ(inputs[i].dtype(), inputs[0].dtype()) << attrs.op->name << ": dtypes differ";
    operands.push_back({values_of<char>(inputs[i]), is_per_lane(attrs, inputs[i].shape(), full)});
  }
  return operands;
}

// Spans of an array. Their boundaries depend on its shape only, and so do the sums over them.
class Spans {
 public:
  static constexpr int64_t kElements = 1 << 13;  // of a span, at most: 16 KiB of bfloat16

  Spans(const mxnet::TShape& shape, int64_t channels, int dtype)
      : shape_(shape), channels_(channels), bytes_(mshadow::mshadow_sizeof(dtype)) {
    const int64_t longest = std::max<int64_t>(kElements / shape_.lanes, 1);
    per_plane_ = (shape_.positions() + longest - 1) / longest;
    positions_ = per_plane_ ? (shape_.positions() + per_plane_ - 1) / per_plane_ : 0;
    // Whole periods of the kernels' tables
    const int64_t step = std::min<int64_t>(32, longest);
    positions_ = (positions_ + step - 1) / step * step;
    per_plane_ = positions_ ? (shape_.positions() + positions_ - 1) / positions_ : 0;
  }

  const Blocked& shape() const { return shape_; }
  int64_t channels() const { return channels_; }
  int64_t per_plane() const { return per_plane_; }
  int64_t per_group() const { return shape_.images * per_plane_; }  // spans of all images

  // Span number i of a group's, 0 to per_group() - 1
  Span span(int64_t group, int64_t i) const {
    const int64_t first = i % per_plane_ * positions_;
    const int64_t count = std::min(positions_, shape_.positions() - first);
    const int64_t channels = std::min(shape_.lanes, channels_ - group * shape_.lanes);
    return {count * shape_.lanes, shape_.lanes, channels};
  }

  // Where that span's elements, or its values per lane, are in an array
  template <typename T>
  T* at(T* data, bool per_lane, int64_t group, int64_t i) const {
    if (!data) return nullptr;
    const int64_t plane = i / per_plane_ * shape_.groups + group;
    const int64_t position = plane * shape_.positions() + i % per_plane_ * positions_;
    return data + (per_lane ? plane : position) * shape_.lanes * bytes_;
  }

  Operand operand(const Operand& whole, int64_t group, int64_t i) const {
    return {at(static_cast<const char*>(whole.data), whole.per_lane, group, i), whole.per_lane};
  }

 private:
  const Blocked shape_;
  const int64_t channels_, bytes_;
  int64_t per_plane_, positions_;
};

// The gradients of a program's inputs: arrays, and the sums of those that have one value per lane
class TargetArrays {
 public:
  // Input number v has the gradient outputs[indices[v]].
  TargetArrays(const NodeAttrs& attrs, const Spans& spans, const Arrays& outputs, const Requests& req,
               const std::vector<int>& indices, const mxnet::TShape& full)
      : spans_(spans) {
    const Blocked& shape = spans.shape();
    for (size_t v = 0; v < indices.size(); ++v) {
      const OpReqType request = req[indices[v]];
      const NDArray& output = outputs[indices[v]];
      CHECK_NE(request, mxnet::kAddTo);
      CHECK_EQ(output.dtype(), outputs[indices[0]].dtype()) << attrs.op->name << ": dtypes differ";
      per_lane_.push_back(is_per_lane(attrs, output.shape(), full));
      data_.push_back(request == mxnet::kNullOp ? nullptr : result_of<char>(output));
      const bool sums = data_[v] && per_lane_[v];
      sums_.emplace_back(sums ? shape.groups * spans.per_group() * shape.lanes : 0);
    }
    element_ = element_of(attrs, outputs[indices[0]]);
  }

  bool any_data() const {
    for (size_t v = 0; v < data_.size(); ++v) {
      if (data_[v] && !per_lane_[v]) return true;
    }
    return false;
  }

  // Sets the targets of one span.
  void at(int64_t group, int64_t i, Target* targets) {
    const int64_t sums = (group * spans_.per_group() + i) * spans_.shape().lanes;
    for (size_t v = 0; v < data_.size(); ++v) {
      targets[v] = {nullptr, nullptr};
      if (data_[v] && per_lane_[v]) targets[v].sums = &sums_[v][sums];
      if (data_[v] && !per_lane_[v]) targets[v].data = spans_.at(data_[v], false, group, i);
    }
  }

  // Writes the arrays with one value per lane, once the sums of all spans are known.
  void finish() {
    with_elements(element_, [&](auto element) {
      for (size_t v = 0; v < data_.size(); ++v) {
        if (!data_[v] || !per_lane_[v]) continue;
        finish(sums_[v], static_cast<decltype(element)*>(static_cast<void*>(data_[v])));
      }
    });
  }

 private:
  template <typename E>
  void finish(const std::vector<float>& sums, E* out) {
    const Blocked& shape = spans_.shape();
    for (int64_t image = 0; image < shape.images; ++image) {
      for (int64_t group = 0; group < shape.groups; ++group) {
        const int64_t first = group * spans_.per_group() + image * spans_.per_plane();
        const float* of_image = &sums[first * shape.lanes];
        for (int64_t lane = 0; lane < shape.lanes; ++lane) {
          double sum = 0;
          for (int64_t i = 0; i < spans_.per_plane(); ++i) sum += of_image[i * shape.lanes + lane];
          if (group * shape.lanes + lane >= spans_.channels()) sum = 0;
          One{static_cast<float>(sum)}.store(out++);
        }
      }
    }
  }

  const Spans& spans_;
  std::vector<bool> per_lane_;
  std::vector<char*> data_;
  std::vector<std::vector<float>> sums_;
  Element element_;
};

}  // namespace gluon_amp
