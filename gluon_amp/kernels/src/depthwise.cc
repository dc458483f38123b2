// Convolutions with few channels in a group, of images in the blocked layout: plans and threads around the
// loops of depthwise_kernels.h. In depthwise convolutions, each channel is a group. Products and sums are in
// float32, and results are rounded once. No result depends on the number of threads. The operator has the
// attributes of _gluon_amp_blocked_convolution, and its result the lanes of its data.
//
// Each task copies some rows of one image, `width` of its channels, to a buffer in float32 with zeros
// around the image. So the loops need not know about borders, and a value is converted once although
// several results read it. The buffer stays in the L2 cache.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "blocked_convolution.h"
#include "kernels.h"
#include "memory.h"
#include "products.h"
#include "values.h"

namespace gluon_amp {
namespace depthwise {
namespace {

using blocked_convolution::Convolution;

constexpr int64_t kBufferBytes = 96 << 10;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Float32 memory of this thread
float* floats(int64_t count) {
  return static_cast<float*>(scratch(Purpose::kDepthwise, count * sizeof(float)));
}

int64_t whole_cache_lines(int64_t values) { return ceil_div(values, 16) * 16; }

// ------------------------------------------------------------------------------------------ plans

// The results first, first + step, ... of one dimension, which read their sources alike: result
// first + m * step reads positions m * stride + offset of the sources.
struct Phase {
  int64_t first, step, count;
  std::vector<int64_t> taps;  // indexes in the kernel
  std::vector<int64_t> offsets;
};

// One dimension of a convolution or of the gradient of its data
struct Axis {
  int64_t results, sources, stride;
  std::vector<Phase> phases;
  int64_t lowest, highest;  // of all offsets
  int64_t most;             // results of a phase

  Axis(int64_t results, int64_t sources, int64_t stride, std::vector<Phase> all)
      : results(results), sources(sources), stride(stride), phases(std::move(all)), most(0) {
    std::vector<int64_t> offsets;
    for (const Phase& phase : phases) {
      most = std::max(most, phase.count);
      offsets.insert(offsets.end(), phase.offsets.begin(), phase.offsets.end());
    }
    if (offsets.empty()) offsets = {0};
    lowest = *std::min_element(offsets.begin(), offsets.end());
    highest = *std::max_element(offsets.begin(), offsets.end());
  }

  // How many sources are between the first that the first of `count` results reads, and the last
  int64_t reach(int64_t count) const { return (count - 1) * stride + highest - lowest + 1; }
};

// One dimension of a convolution: its rows (i = 0) or columns (1)
Axis forward_axis(const Convolution& c, int i) {
  const int64_t in = i ? c.width : c.height, out = i ? c.out_width : c.out_height;
  Phase phase{0, 1, out, {}, {}};
  for (int64_t k = 0; k < c.kernel[i]; ++k) {
    phase.taps.push_back(k);
    phase.offsets.push_back(k * c.dilate[i] - c.pad[i]);
  }
  return Axis(out, in, c.stride[i], {phase});
}

// Position i of the data was read as i = stride * o + dilate * k - pad. So all positions with the same
// remainder of i / stride collect the gradient of the same taps.
Axis grad_axis(const Convolution& c, int i) {
  const int64_t in = i ? c.width : c.height, out = i ? c.out_width : c.out_height, stride = c.stride[i];
  std::vector<Phase> phases;
  for (int64_t first = 0; first < std::min(stride, in); ++first) {
    Phase phase{first, stride, ceil_div(in - first, stride), {}, {}};
    for (int64_t k = 0; k < c.kernel[i]; ++k) {
      const int64_t distance = first + c.pad[i] - k * c.dilate[i];
      if (distance % stride) continue;
      phase.taps.push_back(k);
      phase.offsets.push_back(distance / stride);
    }
    phases.push_back(phase);
  }
  return Axis(in, out, 1, phases);
}

// A phase of rows and one of columns
struct PhasePair {
  const Phase *rows, *columns;
  int64_t first_tap, taps;  // in Plan
};

// The channels of an array, how many of them are in a group of the convolution, and how far the weights of
// two channels of a group are apart
struct Side {
  int64_t channels, each, step;
};

// A result reads all channels of its group in the sources. They are copied to as many buffers, in which
// each lane holds a channel that the result of this lane reads. So they only add taps to each position of
// the kernel.
struct Plan {
  Axis rows, columns;
  Side source, result;
  int64_t pitch;        // positions in a row of the buffer
  int64_t at_once;      // rows of results, of one phase, that a buffer serves
  int64_t buffer_size;  // of one channel of each group
  std::vector<PhasePair> pairs;
  // The taps in the order of the pairs: where the weight of a tap is, relative to that of the first tap of
  // the result's channel; and where its sources are in the buffers
  std::vector<int64_t> weights, offsets;

  Plan(Axis of_rows, Axis of_columns, Side of_source, Side of_result, int64_t kernel_w)
      : rows(std::move(of_rows)),
        columns(std::move(of_columns)),
        source(of_source),
        result(of_result),
        pitch(columns.reach(columns.most)) {
    const int64_t width = kernels().depthwise->width, row_bytes = pitch * width * source.each * sizeof(float);
    const int64_t kept = kBufferBytes / row_bytes - (rows.highest - rows.lowest + 1);
    at_once = std::min(rows.most, std::max<int64_t>(1, kept / rows.stride + 1));
    buffer_size = whole_cache_lines(rows.reach(at_once) * pitch * width);
    for (const Phase& y : rows.phases) {
      for (const Phase& x : columns.phases) {
        const int64_t taps = source.each * y.taps.size() * x.taps.size();
        pairs.push_back({&y, &x, static_cast<int64_t>(weights.size()), taps});
        for (int64_t channel = 0; channel < source.each; ++channel) {
          for (size_t i = 0; i < y.taps.size(); ++i) {
            for (size_t j = 0; j < x.taps.size(); ++j) {
              const int64_t row = y.offsets[i] - rows.lowest, column = x.offsets[j] - columns.lowest;
              weights.push_back(channel * source.step + y.taps[i] * kernel_w + x.taps[j]);
              offsets.push_back(channel * buffer_size + (row * pitch + column) * width);
            }
          }
        }
      }
    }
  }

  Plan(Plan&&) = default;
};

// ----------------------------------------------------------------------------------------- slices

// The channels of a blocked array, `width` at a time. If width does not divide the lanes, the last two
// slices of a group overlap; both then compute the same values.
struct Slices {
  int64_t lanes, channels, in_group, groups, count;
  int width;

  Slices(int64_t lanes, int64_t channels, int width)
      : lanes(lanes),
        channels(channels),
        in_group(ceil_div(lanes, width)),
        groups(ceil_div(channels, lanes)),
        count(groups * in_group),
        width(width) {}

  int64_t group(int64_t slice) const { return slice / in_group; }
  int64_t first_lane(int64_t slice) const {
    return std::max<int64_t>(0, std::min(slice % in_group * width, lanes - width));
  }
  int64_t first_channel(int64_t slice) const { return group(slice) * lanes + first_lane(slice); }
  Slice operator[](int64_t slice) const {
    const int64_t present = std::min<int64_t>(lanes, width);
    const int64_t left = channels - first_channel(slice);
    return {static_cast<int>(present), static_cast<int>(std::max<int64_t>(0, std::min(left, present)))};
  }
};

// Where each lane of a buffer comes from
struct Origins {
  Slices slices;  // of the results
  int64_t each;   // buffers
  int64_t plane;  // values in one group of the sources
  std::vector<LaneOffsets> all;  // of each slice and each buffer

  Origins(const Plan& plan, const Slices& of_results)
      : slices(of_results),
        each(plan.source.each),
        plane(plan.rows.sources * plan.columns.sources * of_results.lanes),
        all(slices.count * each) {
    const int64_t lanes = slices.lanes;
    for (int64_t i = 0; i < slices.count; ++i) {
      for (int64_t channel = 0; channel < each; ++channel) {
        LaneOffsets& from = all[i * each + channel];
        from.window = -1;
        int64_t lowest = plan.source.channels, highest = 0;
        for (int lane = 0; lane < slices[i].channels; ++lane) {
          const int64_t group = (slices.first_channel(i) + lane) / plan.result.each;
          const int64_t source = group * each + channel;
          from.offsets[lane] = source / lanes * plane + source % lanes;
          lowest = std::min(lowest, source);
          highest = std::max(highest, source);
        }
        const int64_t group = lowest / lanes, first = std::min(lowest % lanes, lanes - slices.width);
        const int64_t begin = group * lanes + first;
        if (first >= 0 && highest / lanes == group && highest < begin + slices.width) {
          from.window = group * plane + first;
        }
      }
    }
  }
};

// Copies the sources of results [first, last) of each phase to the buffers.
template <typename T>
void fill(const DepthwiseLoops<T>& loops, const Plan& plan, const Origins& origins, int64_t slice,
          const T* image, int64_t first, int64_t last, float* buffers) {
  const int64_t lanes = origins.slices.lanes, width = origins.slices.width;
  const int64_t top = first * plan.rows.stride + plan.rows.lowest;
  const int64_t height = plan.rows.reach(last - first);
  const int64_t left = std::max<int64_t>(0, std::min(plan.pitch, -plan.columns.lowest));
  const int64_t begin = std::max<int64_t>(0, plan.columns.lowest);
  const int64_t end = std::min(plan.columns.sources, plan.columns.lowest + plan.pitch);
  const int64_t inside = std::max<int64_t>(0, end - begin);
  for (int64_t channel = 0; channel < origins.each; ++channel) {
    const LaneOffsets& from = origins.all[slice * origins.each + channel];
    float* buffer = buffers + channel * plan.buffer_size;
    for (int64_t row = 0; row < height; ++row, buffer += plan.pitch * width) {
      const int64_t y = top + row;
      float* const middle = buffer + left * width;
      float* const stop = buffer + plan.pitch * width;
      if (y < 0 || y >= plan.rows.sources || inside == 0) {
        std::fill(buffer, stop, 0.f);
        continue;
      }
      std::fill(buffer, middle, 0.f);
      const T* const in = image + (y * plan.columns.sources + begin) * lanes;
      if (plan.source.each == 1 && plan.result.each == 1) {
        loops.load(in + from.offsets[0], lanes, inside, origins.slices[slice], middle);
      } else {
        loops.mix(in, lanes, inside, from, origins.slices[slice], middle);
      }
      std::fill(middle + inside * width, stop, 0.f);
    }
  }
}

int threads_for(int64_t steps, int64_t tasks) {
  constexpr int64_t few = 20000;  // Waking threads takes longer than these steps of the loops.
  return steps < few ? 1 : static_cast<int>(std::min<int64_t>(tasks, omp_get_max_threads()));
}

Side data_side(const Convolution& c) {
  return {c.channels, c.channels / c.groups, c.kernel[0] * c.kernel[1]};
}

Side result_side(const Convolution& c) {
  return {c.filters, c.filters / c.groups, c.channels / c.groups * c.kernel[0] * c.kernel[1]};
}

int64_t weights_of_group(const Convolution& c) { return result_side(c).each * result_side(c).step; }

// Where the weights of the channels of a slice start
LaneOffsets first_weights(const Plan& plan, const Slices& slices, int64_t slice, int64_t group_size) {
  LaneOffsets result{};
  for (int lane = 0; lane < slices[slice].channels; ++lane) {
    const int64_t channel = slices.first_channel(slice) + lane;
    result.offsets[lane] =
        channel / plan.result.each * group_size + channel % plan.result.each * plan.result.step;
  }
  return result;
}

// Computes the results of a plan. Weights and bias, or null, are float32, and rounded to the values of the
// images. The padding of sources may hold any values, that of results is 0.
template <typename T>
void gather(T, const Convolution& shape, const Plan& plan, const void* source, const float* weights,
            const float* bias, void* result) {
  const DepthwiseKernels& kernels = *gluon_amp::kernels().depthwise;
  const auto& loops = kernels.loops.of(T());
  const int64_t width = kernels.width, lanes = shape.lanes, taps = plan.weights.size();
  const Slices slices(lanes, plan.result.channels, width);
  const Origins origins(plan, slices);
  const int64_t source_image = ceil_div(plan.source.channels, lanes) * origins.plane;
  const int64_t result_plane = plan.rows.results * plan.columns.results * lanes;
  const int64_t at_once = plan.at_once, chunks = ceil_div(plan.rows.most, at_once);
  const int64_t tasks = shape.images * slices.count * chunks;
  const int64_t packed_size = (taps + 1) * width;  // the bias is the last one
  const int64_t buffers_size = plan.source.each * plan.buffer_size;
  const int64_t steps = shape.images * slices.count * plan.rows.results * plan.columns.results;
  const int threads = threads_for(steps * (taps + 1), tasks);

  float* const all_buffers = floats(threads * buffers_size + slices.count * packed_size);
  float* const all_packed = all_buffers + threads * buffers_size;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < slices.count; ++i) {
      float* const packed = all_packed + i * packed_size;
      const LaneOffsets first = first_weights(plan, slices, i, weights_of_group(shape));
      loops.pack(weights, first, plan.weights.data(), taps, slices[i], packed);
      float* const packed_bias = packed + taps * width;
      std::fill(packed_bias, packed_bias + width, 0.f);
      if (bias) {
        LaneOffsets own{};
        for (int lane = 0; lane < slices[i].channels; ++lane) own.offsets[lane] = lane;
        const int64_t only = 0;
        loops.pack(bias + slices.first_channel(i), own, &only, 1, slices[i], packed_bias);
      }
    }
    float* const buffers = all_buffers + omp_get_thread_num() * buffers_size;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < tasks; ++task) {
      // Slices of one group come one after another, since their values share cache lines.
      int64_t rest = task;
      const int64_t in_group = rest % slices.in_group;
      rest /= slices.in_group;
      const int64_t chunk = rest % chunks;
      rest /= chunks;
      const int64_t group = rest % slices.groups, image = rest / slices.groups;
      const int64_t i = group * slices.in_group + in_group;
      const int64_t first = chunk * at_once, last = std::min(plan.rows.most, first + at_once);
      const T* const sources = static_cast<const T*>(source) + image * source_image;
      fill(loops, plan, origins, i, sources, first, last, buffers);
      const float* packed = all_packed + i * packed_size;
      T* const plane = static_cast<T*>(result) + (image * slices.groups + group) * result_plane;
      T* const out = plane + slices.first_lane(i);
      for (const PhasePair& pair : plan.pairs) {
        GatheredRow row;
        row.stride = plan.columns.stride * width;
        row.count = pair.columns->count;
        row.weights = packed + pair.first_tap * width;
        row.bias = packed + taps * width;
        row.offsets = plan.offsets.data() + pair.first_tap;
        row.taps = pair.taps;
        for (int64_t m = first; m < std::min(last, pair.rows->count); ++m) {
          row.source = buffers + (m - first) * plan.rows.stride * plan.pitch * width;
          const int64_t y = pair.rows->first + m * pair.rows->step;
          T* const at = out + (y * plan.columns.results + pair.columns->first) * lanes;
          loops.gather(row, slices[i], at, pair.columns->step * lanes);
        }
      }
    }
  }
}

// Gradients of weight and bias, or null, are float32, and not rounded. They are summed by parts of the images,
// whose number does not depend on that of the threads.
constexpr int64_t kTasks = 64;

template <typename T>
void correlate(T, const Convolution& shape, const Plan& plan, const void* data, const void* grad,
               float* weight_grad, float* bias_grad) {
  const DepthwiseKernels& kernels = *gluon_amp::kernels().depthwise;
  const auto& loops = kernels.loops.of(T());
  const int64_t width = kernels.width, lanes = shape.lanes, taps = plan.weights.size();
  const Slices slices(lanes, plan.result.channels, width);
  const Origins origins(plan, slices);
  const int64_t data_image = ceil_div(plan.source.channels, lanes) * origins.plane;
  const int64_t grad_plane = shape.out_height * shape.out_width * lanes;
  const int64_t at_once = plan.at_once, chunks = ceil_div(shape.out_height, at_once);
  const int64_t units = shape.images * chunks;
  const int64_t parts = std::min(units, ceil_div(kTasks, slices.count));
  const int64_t tasks = parts * slices.count;
  const int64_t sums_size = (taps + 1) * width;  // the bias is the last one
  const int64_t data_size = plan.source.each * plan.buffer_size;
  const int64_t buffers_size = data_size + whole_cache_lines(at_once * shape.out_width * width);
  const int64_t steps = shape.images * slices.count * shape.out_height * shape.out_width;
  const int threads = threads_for(steps * (taps + 1), tasks);

  float* const all_buffers = floats(threads * buffers_size + tasks * sums_size);
  float* const all_sums = all_buffers + threads * buffers_size;
#pragma omp parallel num_threads(threads)
  {
    float* const data_buffers = all_buffers + omp_get_thread_num() * buffers_size;
    float* const grad_buffer = data_buffers + data_size;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t part = task / slices.count, i = task % slices.count;
      float* const sums = all_sums + task * sums_size;
      std::fill(sums, sums + sums_size, 0.f);
      for (int64_t unit = units * part / parts; unit < units * (part + 1) / parts; ++unit) {
        const int64_t image = unit / chunks, first = unit % chunks * at_once;
        const int64_t last = std::min(shape.out_height, first + at_once);
        const T* const sources = static_cast<const T*>(data) + image * data_image;
        fill(loops, plan, origins, i, sources, first, last, data_buffers);
        const int64_t positions = (last - first) * shape.out_width;
        const T* const own = static_cast<const T*>(grad) +
                             (image * slices.groups + slices.group(i)) * grad_plane +
                             first * shape.out_width * lanes + slices.first_lane(i);
        loops.load(own, lanes, positions, slices[i], grad_buffer);
        const Positions all{last - first, shape.out_width, shape.out_width * width,
                            plan.rows.stride * plan.pitch * width, plan.columns.stride * width};
        kernels.correlate(all, data_buffers, grad_buffer, plan.offsets.data(), taps, sums);
        if (bias_grad) kernels.add_up(grad_buffer, positions, sums + taps * width);
      }
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < slices.count; ++i) {
      float* const sums = all_sums + i * sums_size;
      for (int64_t part = 1; part < parts; ++part) {
        const float* const more = sums + part * slices.count * sums_size;
        for (int64_t j = 0; j < sums_size; ++j) sums[j] += more[j];
      }
      const LaneOffsets first = first_weights(plan, slices, i, weights_of_group(shape));
      for (int64_t lane = 0; lane < slices[i].channels; ++lane) {
        float* const out = weight_grad + first.offsets[lane];
        for (int64_t t = 0; t < taps; ++t) out[plan.weights[t]] = sums[t * width + lane];
        if (bias_grad) bias_grad[slices.first_channel(i) + lane] = sums[taps * width + lane];
      }
    }
  }
}

Plan forward_plan(const Convolution& c) {
  return Plan(forward_axis(c, 0), forward_axis(c, 1), data_side(c), result_side(c), c.kernel[1]);
}

Plan grad_plan(const Convolution& c) {
  return Plan(grad_axis(c, 0), grad_axis(c, 1), result_side(c), data_side(c), c.kernel[1]);
}

// ----------------------------------------------------------------------------------- the operator

// Positions under a kernel moved along one row. They are copied at once.
constexpr int64_t kMostPositions = 1 << 22;

Convolution convolution_of(const NodeAttrs& attrs, const mxnet::TShape& data) {
  Convolution c = blocked_convolution::parse(attrs);
  blocked_convolution::set_data(attrs, data, &c);
  c = blocked_convolution::blocked(c);
  CHECK_EQ(c.data_lanes, c.lanes) << attrs.op->name << ": data and result have different lanes";
  const int64_t rows = c.dilate[0] * (c.kernel[0] - 1) + 1, most = std::max(c.channels, c.filters) / c.groups;
  CHECK_LE(rows, kMostPositions / (c.width + 2 * c.pad[1]) / most) << attrs.op->name
                                                                    << ": the kernel is too large";
  return c;
}

const void* read_data(const Convolution& c, const NDArray& data) {
  return moved(Purpose::kImages, values_of<char>(data), c.stored_data(), c.computed_data(), c.channels,
               size_of_value(data));
}

// inputs: data, weight, bias
void convolve(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
              const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  const Convolution c = convolution_of(attrs, inputs[0].shape());
  const NDArray data = plain_copy(inputs[0]);
  const WideParameter weight(inputs[1]), bias(inputs.back());  // without a bias, the weight twice
  const Plan plan = forward_plan(c);
  const void* values = read_data(c, data);
  void* result = result_of<char>(outputs[0]);
  with_elements(element_of(attrs, data), [&](auto value) {
    gather(value, c, plan, values, weight.data(), c.bias ? bias.data() : nullptr, result);
  });
}

// inputs: the gradient of the result, data, weight; outputs: the gradients of data, weight, bias
void convolve_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                   const Arrays& outputs) {
  const Convolution c = convolution_of(attrs, inputs[1].shape());
  const NDArray grad = plain_copy(inputs[0]), data = plain_copy(inputs[1]);
  const WideParameter weight(inputs[2]);
  const bool bias = c.bias && req[2] != mxnet::kNullOp;
  const Precision p(element_of(attrs, data));
  const int bytes = size_of_value(data);
  const char* grads = values_of<char>(grad);
  if (req[1] != mxnet::kNullOp || bias) {
    std::vector<float> of_weight(outputs[1].shape().Size()), of_bias(c.filters);
    const Plan plan = forward_plan(c);
    const void* values = read_data(c, data);
    if (c.images > 0) {
      with_elements(p.element, [&](auto value) {
        correlate(value, c, plan, values, grads, of_weight.data(), bias ? of_bias.data() : nullptr);
      });
    }
    parameter_gradient(outputs[1], req[1], p.rounds_to_half()).write(of_weight);
    if (bias) parameter_gradient(outputs[2], req[2], p.rounds_to_half()).write(of_bias);
  }
  if (req[0] == mxnet::kNullOp) return;
  Result target = result_for(p, outputs[0], req[0]);
  const Blocked computed = c.computed_data(), stored = c.stored_data();
  const bool moves = computed.lanes != stored.lanes;
  void* result = moves ? scratch(Purpose::kImages, computed.size() * bytes) : target.data();
  const Plan plan = grad_plan(c);
  with_elements(p.element, [&](auto value) { gather(value, c, plan, grads, weight.data(), nullptr, result); });
  if (moves) change_lanes(result, computed, target.data(), stored, c.channels, bytes);
  target.finish(false);
}

bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  if (!blocked_convolution::infer_shape(attrs, in, out)) return false;
  convolution_of(attrs, in[0]);
  return true;
}

}  // namespace
}  // namespace depthwise

void register_depthwise() {
  add_product("_gluon_amp_depthwise", depthwise::convolve, depthwise::infer_shape,
              depthwise::convolve_grad);
}

}  // namespace gluon_amp
