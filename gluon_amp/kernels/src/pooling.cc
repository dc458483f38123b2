// Pooling of blocked images, with the attributes and the results of MXNet's Pooling; with the attribute
// `output_size`, those of its AdaptiveAvgPooling2D.
//
// Max pooling keeps the index of each maximum in its window for the gradient: one byte per value of the
// result, instead of the data and the result. The gradient gathers: each value of the data adds up the
// gradients of the windows that contain it, so no two threads write to one place.
#include <algorithm>
#include <string>
#include <vector>

#include "blocked.h"
#include "kernels.h"
#include "operators.h"
#include "parallel.h"
#include "shapes.h"

namespace gluon_amp {
namespace {

constexpr int64_t kLongest = 1 << 24;  // along one dimension, of images and attributes
constexpr int64_t kLargest = 1 << 30;  // positions of a window or an image, so that an int32_t counts them

struct PoolingAttributes {
  bool max, adaptive, global, full, include_pad;
  int64_t channels;
  std::vector<int64_t> output_size;          // of adaptive pooling
  std::vector<int64_t> kernel, stride, pad;  // of pooling that is neither adaptive nor global

  explicit PoolingAttributes(const NodeAttrs& attrs) {
    const std::string& op = attrs.op->name;
    max = one_of(attrs, "pool_type", "max", "avg");
    full = !one_of(attrs, "pooling_convention", "valid", "full");
    global = flag_of(attrs, "global_pool");
    const std::string count_include_pad = text_of(attrs, "count_include_pad", "None");
    include_pad = count_include_pad == "None" || flag_of(attrs, "count_include_pad");
    channels = integer_of(attrs, "channels", 0);
    CHECK(0 < channels && channels <= INT32_MAX) << op << ": channels is " << channels;
    adaptive = !text_of(attrs, "output_size").empty();
    if (adaptive) {
      CHECK(!max) << op << ": output_size is for averages";
      const auto sizes = integers_of(attrs, "output_size");
      const bool square = sizes.size() == 1;
      output_size = square ? std::vector<int64_t>(2, sizes[0]) : pair_of(attrs, "output_size", 1, 1, kLongest);
      CHECK(0 < output_size[0] && output_size[0] <= kLongest) << op << ": output_size is " << output_size[0];
    }
    if (adaptive || global) return;
    kernel = pair_of(attrs, "kernel", 0, 1, kLongest);
    stride = pair_of(attrs, "stride", 1, 1, kLongest);
    pad = pair_of(attrs, "pad", 0, 0, kLongest);
    CHECK(pad[0] < kernel[0] && pad[1] < kernel[1]) << op << ": a window has only padding";
    CHECK_LE(kernel[0] * kernel[1], kLargest) << op << ": kernel";
  }

  // The dtype of the indices. The windows of global pooling have a size that the attributes do not tell.
  int index_type() const {
    return global || kernel[0] * kernel[1] > 256 ? mshadow::kInt32 : mshadow::kUint8;
  }

 private:
  // Whether an attribute has its first possible value, which is also the one if it is missing.
  static bool one_of(const NodeAttrs& attrs, const std::string& name, const std::string& first,
                     const std::string& second) {
    const std::string text = text_of(attrs, name, first);
    CHECK(text == first || text == second) << attrs.op->name << ": " << name << " is " << text;
    return text == first;
  }
};

// The number of windows along the height (i = 0) or the width (1)
int64_t windows_in(int64_t size, int i, const PoolingAttributes& pooling, const NodeAttrs& attrs) {
  CHECK(0 < size && size <= kLongest) << attrs.op->name << ": height or width is " << size;
  if (pooling.adaptive) return pooling.output_size[i];
  if (pooling.global) return 1;
  const int64_t rest = size + 2 * pooling.pad[i] - pooling.kernel[i], stride = pooling.stride[i];
  CHECK_GE(rest, 0) << attrs.op->name << ": the kernel is larger than the padded data";
  return (pooling.full ? rest + stride - 1 : rest) / stride + 1;
}

mxnet::TShape pooled_shape(const NodeAttrs& attrs, const PoolingAttributes& pooling,
                           const Blocked& images) {
  const int64_t height = windows_in(images.height, 0, pooling, attrs);
  const int64_t width = windows_in(images.width, 1, pooling, attrs);
  CHECK(images.positions() <= kLargest && height * width <= kLargest)
      << attrs.op->name << ": images of too many pixels";
  CHECK_GT(images.lanes, 0) << attrs.op->name << " expects at least one lane";
  const auto shape = blocked_shape(images.images, pooling.channels, height, width, images.lanes);
  CHECK_EQ(shape[1], images.groups) << attrs.op->name << ": channels";
  return shape;
}

// The windows along one dimension, with the memory of their tables
class WindowTables {
 public:
  WindowTables(int64_t size, int i, const PoolingAttributes& pooling, const NodeAttrs& attrs)
      : first_(size), last_(size) {
    const int64_t count = windows_in(size, i, pooling, attrs);
    const bool regular = !pooling.adaptive && !pooling.global;
    kernel_ = regular ? pooling.kernel[i] : size;
    stride_ = regular ? pooling.stride[i] : 1;
    pad_ = regular ? pooling.pad[i] : 0;
    for (int64_t window = 0; window < count; ++window) {
      if (pooling.adaptive) {
        add(window * size / count, ((window + 1) * size + count - 1) / count);
        divisors_.push_back(end_.back() - begin_.back());
      } else {
        const int64_t start = window * stride_ - pad_, end = start + kernel_;
        add(std::min(std::max<int64_t>(start, 0), size), std::min(end, size));
        const int64_t padded = std::min(end, size + pad_) - start;
        divisors_.push_back(pooling.include_pad ? padded : end_.back() - begin_.back());
      }
    }
  }

  Windows windows() const {
    return {kernel_,       stride_,     pad_,          static_cast<int64_t>(begin_.size()),
            begin_.data(), end_.data(), first_.data(), last_.data()};
  }

  // The number of values along this dimension that avg pooling divides by
  int64_t divisor(int64_t window) const { return divisors_[window]; }

  bool empty_windows() const { return begin_.back() == end_.back(); }  // only the last may be empty

 private:
  void add(int64_t begin, int64_t end) {
    const int64_t window = begin_.size();
    for (int64_t at = begin; at < end; ++at) {
      if (last_[at] == 0) first_[at] = window;
      last_[at] = window + 1;
    }
    begin_.push_back(begin);
    end_.push_back(end);
  }

  int64_t kernel_, stride_, pad_;
  std::vector<int64_t> begin_, end_, first_, last_, divisors_;
};

class PoolingTables {
 public:
  PoolingTables(const NodeAttrs& attrs, const mxnet::TShape& data)
      : attributes(attrs),
        images(data),
        result(pooled_shape(attrs, attributes, images)),
        rows_(images.height, 0, attributes, attrs),
        columns_(images.width, 1, attributes, attrs) {
    if (attributes.max) return;
    for (int64_t row = 0; row < result[2]; ++row) {
      for (int64_t column = 0; column < result[3]; ++column) {
        const int64_t divisor = rows_.divisor(row) * columns_.divisor(column);
        divisors_.push_back(std::max<int64_t>(divisor, 1));
        factors_.push_back(1.f / divisors_.back());
      }
    }
  }

  PoolingShape shape() const {
    return {rows_.windows(),  columns_.windows(), images.width,
            images.lanes, divisors_.data(),   factors_.data()};
  }

  // Max pooling of a window that is empty has a result even in lanes that are padding.
  bool fills_padding() const {
    const bool padding = attributes.channels % images.lanes != 0;
    return padding && (rows_.empty_windows() || columns_.empty_windows());
  }

  PoolingAttributes attributes;
  Blocked images;
  mxnet::TShape result;

 private:
  WindowTables rows_, columns_;
  std::vector<float> divisors_, factors_;
};

// Calls body(plane, row, the row's first element) for all rows of all groups of all images.
template <typename Body>
void each_row(const Blocked& images, Body body) {
  const int64_t height = images.height, rows = images.images * images.groups * height;
#pragma omp parallel for schedule(static) if (images.size() > 2 * kBlock)
  for (int64_t i = 0; i < rows; ++i) body(i / height, i % height, i * images.width * images.lanes);
}

// Writes zeros to the lanes behind the last channel.
template <typename T>
void clear_padding(const Blocked& images, int64_t channels, T* values) {
  const int64_t used = channels - (images.groups - 1) * images.lanes;
  for (int64_t image = 0; image < images.images; ++image) {
    T* last_group = values + ((image + 1) * images.groups - 1) * images.plane();
    for (int64_t i = 0; i < images.positions(); ++i) {
      std::fill(last_group + i * images.lanes + used, last_group + (i + 1) * images.lanes, T());
    }
  }
}

// Calls body(kernels, Index()) for the dtype of the indices.
template <typename T, typename Body>
void with_indices(const Pooling<T>& kernel, const PoolingAttributes& pooling, Body body) {
  pooling.index_type() == mshadow::kUint8 ? body(kernel.max, uint8_t()) : body(kernel.wide_max, int32_t());
}

void pool(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
          const Arrays& outputs) {
  CHECK_NE(req[0], mxnet::kAddTo);
  const PoolingTables tables(attrs, inputs[0].shape());
  CHECK_EQ(tables.result, outputs[0].shape());
  const bool max = tables.attributes.max;
  if (tables.result.Size() == 0 || (req[0] == mxnet::kNullOp && !max)) return;
  const PoolingShape shape = tables.shape();
  const Blocked result(tables.result);
  const int64_t plane_size = tables.images.plane();
  with_elements(element_of(attrs, inputs[0]), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels().pooling->of(element);
    const T* data = values_of<T>(inputs[0]);
    T* out = result_of<T>(outputs[0]);
    if (!max) {
      return each_row(result, [&](int64_t plane, int64_t row, int64_t at) {
        kernel.avg(data + plane * plane_size, out + at, row, shape);
      });
    }
    with_indices(kernel, tables.attributes, [&](const auto& kernel, auto index) {
      auto* indices = req[1] == mxnet::kNullOp ? nullptr : result_of<decltype(index)>(outputs[1]);
      each_row(result, [&](int64_t plane, int64_t row, int64_t at) {
        kernel.forward(data + plane * plane_size, out + at, indices ? indices + at : nullptr, row, shape);
      });
    });
    if (tables.fills_padding()) clear_padding(result, tables.attributes.channels, out);
  });
}

// inputs: the gradient of the result and, of max pooling, the indices
void pool_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
               const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  const PoolingTables tables(attrs, outputs[0].shape());
  for (const auto& input : inputs) CHECK_EQ(tables.result, input.shape());
  const Blocked &images = tables.images, result(tables.result);
  if (images.size() == 0) return;
  const PoolingShape shape = tables.shape();
  with_elements(element_of(attrs, inputs[0]), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels().pooling->of(element);
    const T* out_grad = values_of<T>(inputs[0]);
    T* grad = result_of<T>(outputs[0]);
    if (!tables.attributes.max) {
      return each_row(images, [&](int64_t plane, int64_t row, int64_t at) {
        kernel.avg_grad(out_grad + plane * result.plane(), grad + at, row, shape);
      });
    }
    with_indices(kernel, tables.attributes, [&](const auto& kernel, auto index) {
      const auto* indices = values_of<decltype(index)>(inputs[1]);
      each_row(images, [&](int64_t plane, int64_t row, int64_t at) {
        const int64_t first = plane * result.plane();
        kernel.backward(out_grad + first, indices + first, grad + at, row, shape);
      });
    });
  });
}

uint32_t arrays_of_result(const NodeAttrs& attrs) { return PoolingAttributes(attrs).max ? 2 : 1; }

// The result and, of max pooling, the indices
bool infer_pooled_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  const PoolingAttributes pooling(attrs);
  if (!mxnet::shape_is_known(in[0])) return false;
  CHECK_EQ(in[0].ndim(), 5) << attrs.op->name << " expects arrays of 5 dimensions";
  mxnet::ShapeVector expected{pooled_shape(attrs, pooling, Blocked(in[0]))};
  return infer_one_shape(attrs, expected, out);
}

bool infer_pooled_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  Ints values{out.at(0)};
  const bool known = infer_one_dtype(attrs, in, values);
  out[0] = values[0];
  if (out.size() == 2) out[1] = PoolingAttributes(attrs).index_type();
  return known;
}

}  // namespace

void register_pooling() {
  nnvm::Op* op = add_op("_gluon_amp_pool", 1, arrays_of_result, pool, infer_pooled_shape, infer_pooled_type);
  set_visible(op, 1);
  const auto read = [](const ObjectPtr& node, const Entries& grads) {
    Entries inputs{grads[0]};
    if (arrays_of_result(node->attrs) == 2) inputs.emplace_back(node, 1, 0);
    return inputs;
  };
  add_gradient(op, arrays_of_result, pool_grad, read);
}

}  // namespace gluon_amp
