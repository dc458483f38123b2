// BatchNorm of blocked images, with a program (pointwise.h) applied to its result: value 0 is the
// normalized image, the others are further inputs.
//
// The numbers are those of MXNet's BatchNorm on a CPU: statistics in float32, the biased variance, and
// running statistics that the backward pass updates. The gradient normalizes the image again, instead of
// reading what the forward pass computed. For a program that is not among the common ones (kPatterns), the
// first pass over the image writes the gradient of the normalized image, rounded, to that of the image.
//
// All spans of a group are processed by one thread if there are enough groups, so that the second pass
// over the image reads from the cache. The sums are added in the order of the spans, so the results do
// not depend on the number of threads.
#include <omp.h>

#include <cmath>
#include <string>
#include <vector>

#include "parallel.h"
#include "pointwise.h"
#include "programs.h"
#include "shapes.h"
#include "values.h"

namespace gluon_amp {
namespace {

enum NormInput { kData, kGamma, kBeta, kMovingMean, kMovingVar, kExtras };
enum NormOutput { kResult, kMean, kInverse };
// Inputs of the gradient: then come the inputs of the program, or its result
enum NormGradInput {
  kGrad, kGradData, kGradGamma, kGradBeta, kGradMean, kGradInverse, kGradMovingMean, kGradMovingVar,
  kGradOthers
};
// Outputs of the gradient
enum { kDataGrad, kGammaGrad, kBetaGrad, kExtraGrads };

struct NormAttributes {
  Program program;
  float eps, momentum;
  bool fix_gamma, global;

  explicit NormAttributes(const NodeAttrs& attrs)
      : program(program_of(attrs, inputs_in(attrs, "num_extras", 1))),
        eps(static_cast<float>(number_of(attrs, "eps", 1e-3))),
        momentum(static_cast<float>(number_of(attrs, "momentum", 0.9))),
        fix_gamma(text_of(attrs, "fix_gamma").empty() || flag_of(attrs, "fix_gamma")),
        global(flag_of(attrs, "use_global_stats")) {}

  // A program of the image alone is differentiated from the normalized image, which is at hand.
  Needs needs() const {
    const Needs needs = needs_of(program);
    return needs == Needs::result && program.inputs == 1 ? Needs::nothing : needs;
  }
};

const NormKernels& norm_kernels(Element element) { return kernels().norm[static_cast<int>(element)]; }

// Floats for each lane of each group
class PerLane {
 public:
  explicit PerLane(const Spans& spans)
      : lanes_(spans.shape().lanes), values_(spans.shape().groups * lanes_) {}
  float* group(int64_t g) { return &values_[g * lanes_]; }
  float& operator[](int64_t channel) { return values_[channel]; }

 private:
  int64_t lanes_;
  std::vector<float> values_;
};

// Runs first(group, span) for all spans of a group, then finish(group), then second(group, span).
template <typename First, typename Finish, typename Second>
void in_two_passes(const Spans& spans, First first, Finish finish, Second second) {
  const int64_t groups = spans.shape().groups, count = spans.per_group(), all = groups * count;
  const bool parallel = spans.shape().size() > 2 * kBlock;
  const int threads = omp_get_max_threads();
  if (groups % threads == 0 || groups >= 4 * threads) {
#pragma omp parallel for schedule(dynamic) if (parallel)
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < count; ++i) first(g, i);
      finish(g);
      for (int64_t i = count - 1; i >= 0; --i) second(g, i);  // what was read last is in the cache
    }
  } else {
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t k = 0; k < all; ++k) first(k / count, k % count);
    for (int64_t g = 0; g < groups; ++g) finish(g);
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t k = all - 1; k >= 0; --k) second(k / count, k % count);
  }
}

// The channels of a group
int64_t first_channel(const Spans& spans, int64_t group) { return group * spans.shape().lanes; }
int64_t last_channel(const Spans& spans, int64_t group) {
  return std::min(spans.channels(), (group + 1) * spans.shape().lanes);
}

// ------------------------------------------------------------------------------------- forward

// Combines the moments of the spans (Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for
// computing sample variances, 1979).
class Moments {
 public:
  explicit Moments(const Spans& spans)
      : spans_(spans), lanes_(spans.shape().lanes), means_(spans.shape().groups * spans.per_group() * lanes_),
        squares_(means_.size()) {}

  void compute(const NormKernels& kernel, const char* data, int64_t group, int64_t i) {
    std::vector<float> scratch(lanes_);
    const int64_t place = (group * spans_.per_group() + i) * lanes_;
    kernel.moments(spans_.at(data, false, group, i), spans_.span(group, i), &means_[place],
                   &squares_[place], scratch.data());
  }

  // Writes the mean and the inverse standard deviation of a group's channels.
  void finish(int64_t group, float eps, float* mean, float* inverse) const {
    const int64_t channels = last_channel(spans_, group) - first_channel(spans_, group);
    std::vector<double> means(channels), squares(channels);
    double count = 0;
    for (int64_t i = 0; i < spans_.per_group(); ++i) {
      const double more = spans_.span(group, i).size / lanes_, share = more / (count + more);
      const int64_t place = (group * spans_.per_group() + i) * lanes_;
      for (int64_t c = 0; c < channels; ++c) {
        const double difference = means_[place + c] - means[c];
        means[c] += difference * share;
        squares[c] += squares_[place + c] + difference * difference * share * count;
      }
      count += more;
    }
    for (int64_t c = 0; c < channels; ++c) {
      mean[c] = static_cast<float>(means[c]);
      inverse[c] = static_cast<float>(1 / std::sqrt(squares[c] / count + eps));
    }
  }

 private:
  const Spans& spans_;
  const int64_t lanes_;
  std::vector<float> means_, squares_;
};

// The constants of the normalization. Padding has only zeros, and so it becomes zero.
struct Affine {
  PerLane mean, scale, shift;

  explicit Affine(const Spans& spans) : mean(spans), scale(spans), shift(spans) {}

  void set(int64_t channel, float of_mean, float inverse, float gamma, float beta) {
    mean[channel] = of_mean;
    scale[channel] = gamma * inverse;
    shift[channel] = beta;
  }
  LaneConstants constants(int64_t group) {
    return {mean.group(group), scale.group(group), shift.group(group), nullptr, nullptr};
  }
};

float inverse_of(float variance, float eps) {
  return static_cast<float>(1.0 / std::sqrt(variance + eps));
}

void normalize(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
               const Requests& req, const Arrays& outputs) {
  const NormAttributes norm(attrs);
  const mxnet::TShape& full = inputs[kData].shape();
  if (full.Size() == 0) return;
  CHECK_NE(req[kResult], mxnet::kAddTo);
  const Spans spans(full, checked_channels(attrs, full), inputs[kData].dtype());
  const int64_t channels = spans.channels();
  const bool trains = context.is_train && !norm.global;
  const auto& kernel = norm_kernels(element_of(attrs, inputs[kData]));

  float* gamma = const_cast<float*>(values_of<float>(inputs[kGamma]));
  const float* beta = values_of<float>(inputs[kBeta]);
  for (int64_t c = 0; norm.fix_gamma && c < channels; ++c) {
    if (gamma[c] != 1) gamma[c] = 1;  // as MXNet does
  }
  auto operands = operands_of(attrs, inputs, kExtras, full);
  const char* data = values_of<char>(inputs[kData]);
  operands.insert(operands.begin(), Operand{data, false});
  char* out = req[kResult] == mxnet::kNullOp ? nullptr : result_of<char>(outputs[kResult]);

  std::vector<float> mean(channels), inverse(channels);
  Affine affine(spans);
  Moments moments(spans);
  if (!trains) {
    const float* moving_mean = values_of<float>(inputs[kMovingMean]);
    const float* moving_var = values_of<float>(inputs[kMovingVar]);
    for (int64_t c = 0; c < channels; ++c) {
      mean[c] = moving_mean[c];
      inverse[c] = inverse_of(moving_var[c], norm.eps);
    }
  }
  in_two_passes(
      spans,
      [&](int64_t group, int64_t i) {
        if (trains) moments.compute(kernel, data, group, i);
      },
      [&](int64_t group) {
        const int64_t first = first_channel(spans, group);
        if (trains) moments.finish(group, norm.eps, &mean[first], &inverse[first]);
        for (int64_t c = first; c < last_channel(spans, group); ++c) {
          affine.set(c, mean[c], inverse[c], gamma[c], beta[c]);
        }
      },
      [&](int64_t group, int64_t i) {
        if (!out) return;
        Operand parts[kMaxInputs];
        for (size_t v = 0; v < operands.size(); ++v) parts[v] = spans.operand(operands[v], group, i);
        kernel.forward(norm.program, spans.span(group, i), affine.constants(group), parts,
                       spans.at(out, false, group, i));
      });
  Result(outputs[kMean], req[kMean]).write(mean);
  Result(outputs[kInverse], req[kInverse]).write(inverse);
}

// ------------------------------------------------------------------------------------ backward

void update_running(const NormAttributes& norm, const Arrays& inputs, int64_t channels) {
  const float *mean = values_of<float>(inputs[kGradMean]);
  const float* inverse = values_of<float>(inputs[kGradInverse]);
  float* moving_mean = const_cast<float*>(values_of<float>(inputs[kGradMovingMean]));
  float* moving_var = const_cast<float*>(values_of<float>(inputs[kGradMovingVar]));
  const float share = 1.0f - norm.momentum;
  for (int64_t c = 0; c < channels; ++c) {
    const float variance = static_cast<float>(1.0 / (inverse[c] * inverse[c]) - norm.eps);
    moving_mean[c] = moving_mean[c] * norm.momentum + mean[c] * share;
    moving_var[c] = moving_var[c] * norm.momentum + variance * share;
  }
}

void normalize_back(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
                    const Requests& req, const Arrays& outputs) {
  const NormAttributes norm(attrs);
  const mxnet::TShape& full = inputs[kGrad].shape();
  const Spans spans(full, checked_channels(attrs, full), inputs[kGrad].dtype());
  const int64_t channels = spans.channels(), lanes = full[4];
  std::vector<float> gamma_grad(channels), beta_grad(channels);
  const auto write_sums = [&]() {
    // As in MXNet, a fixed gamma's gradient is zero even if it is to be added.
    const bool adds = req[kGammaGrad] == mxnet::kAddTo;
    const OpReqType request = adds && norm.fix_gamma ? mxnet::kWriteTo : req[kGammaGrad];
    Result(outputs[kGammaGrad], request).write(gamma_grad);
    Result(outputs[kBetaGrad], req[kBetaGrad]).write(beta_grad);
  };
  if (full.Size() == 0) return write_sums();
  const bool trains = context.is_train && !norm.global;
  const auto& kernel = norm_kernels(element_of(attrs, inputs[kGrad]));

  std::vector<int> indices{kDataGrad};
  for (int v = 1; v < norm.program.inputs; ++v) indices.push_back(kExtraGrads + v - 1);
  TargetArrays targets(attrs, spans, outputs, req, indices, full);
  auto operands = operands_of(attrs, inputs, kGradOthers, full);
  const char* result = nullptr;
  if (norm.needs() == Needs::result) {
    CHECK(!operands[0].per_lane);
    result = static_cast<const char*>(operands[0].data);
    operands.clear();
  }
  operands.insert(operands.begin(), Operand{values_of<char>(inputs[kGradData]), false});
  const char* grad = values_of<char>(inputs[kGrad]);

  const float* gamma = values_of<float>(inputs[kGradGamma]);
  const float* beta = values_of<float>(inputs[kGradBeta]);
  const float* mean = values_of<float>(inputs[trains ? kGradMean : kGradMovingMean]);
  const float* inverse = values_of<float>(inputs[kGradInverse]);
  const float* moving_var = values_of<float>(inputs[kGradMovingVar]);
  Affine affine(spans);
  PerLane constant(spans), slope(spans);
  std::vector<float> inverses(channels);
  for (int64_t c = 0; c < channels; ++c) {
    inverses[c] = trains ? inverse[c] : inverse_of(moving_var[c], norm.eps);
    affine.set(c, mean[c], inverses[c], norm.fix_gamma ? 1 : gamma[c], beta[c]);
  }
  if (trains) update_running(norm, inputs, channels);

  const int64_t count = spans.shape().images * spans.shape().positions();
  std::vector<float> sums(spans.shape().groups * spans.per_group() * lanes), products(sums.size());
  const auto parts_of = [&](int64_t group, int64_t i, Operand* parts, Target* part_targets) {
    for (size_t v = 0; v < operands.size(); ++v) parts[v] = spans.operand(operands[v], group, i);
    targets.at(group, i, part_targets);
  };
  in_two_passes(
      spans,
      [&](int64_t group, int64_t i) {
        Operand parts[kMaxInputs] = {};
        Target part_targets[kMaxInputs];
        parts_of(group, i, parts, part_targets);
        const int64_t place = (group * spans.per_group() + i) * lanes;
        kernel.sums(norm.program, spans.span(group, i), affine.constants(group),
                    spans.at(grad, false, group, i), spans.at(result, false, group, i), parts,
                    part_targets, &sums[place], &products[place]);
      },
      [&](int64_t group) {
        for (int64_t c = first_channel(spans, group); c < last_channel(spans, group); ++c) {
          double sum = 0, product = 0;
          for (int64_t i = 0; i < spans.per_group(); ++i) {
            const int64_t place = (group * spans.per_group() + i) * lanes + c % lanes;
            sum += sums[place];
            product += products[place];
          }
          beta_grad[c] = static_cast<float>(sum);
          gamma_grad[c] = norm.fix_gamma ? 0 : static_cast<float>(product * inverses[c]);
          if (!trains) continue;
          constant[c] = static_cast<float>(-affine.scale[c] * sum / count);
          slope[c] =
              static_cast<float>(-affine.scale[c] * product * inverses[c] * inverses[c] / count);
        }
      },
      [&](int64_t group, int64_t i) {
        if (!targets.any_data()) return;
        Operand parts[kMaxInputs] = {};
        Target part_targets[kMaxInputs];
        parts_of(group, i, parts, part_targets);
        LaneConstants constants = affine.constants(group);
        constants.constant = constant.group(group);
        constants.slope = slope.group(group);
        kernel.backward(norm.program, spans.span(group, i), constants,
                        spans.at(grad, false, group, i), spans.at(result, false, group, i), parts,
                        part_targets);
      });
  targets.finish();
  write_sums();
}

// --------------------------------------------------------------------------------- registration

uint32_t norm_inputs(const NodeAttrs& attrs) { return kExtras + NormAttributes(attrs).program.inputs - 1; }

// Sets the sizes of float32 arrays with one value per channel.
void set_channels(const NodeAttrs& attrs, mxnet::ShapeVector& shapes, std::initializer_list<int> which) {
  const int64_t channels = integer_of(attrs, "channels", 0);
  for (int i : which) {
    set_rank(attrs, shapes.at(i), 1);
    set_size(attrs, shapes[i], 0, channels);
  }
}

bool infer_norm_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  const NormAttributes norm(attrs);
  set_channels(attrs, in, {kGamma, kBeta, kMovingMean, kMovingVar});
  set_channels(attrs, out, {kMean, kInverse});
  set_rank(attrs, in[kData], 5);
  if (!unify(attrs, {&in[kData], &out[kResult]})) return false;
  const mxnet::TShape& full = in[kData];
  checked_channels(attrs, full);
  for (size_t i = kExtras; i < in.size(); ++i) {
    if (!mxnet::shape_is_known(in[i])) return false;
    is_per_lane(attrs, in[i], full);
  }
  return true;
}

// Statistics and parameters are float32, and images of one dtype.
bool infer_norm_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  Ints images{in.at(kData), out[kResult]}, channels(in.begin() + kGamma, in.begin() + kExtras), none;
  images.insert(images.end(), in.begin() + kExtras, in.end());
  infer_cast<mshadow::kFloat32, mshadow::kFloat32>(attrs, channels, channels);
  const bool known = infer_one_dtype(attrs, images, none);
  in.assign(in.size(), images[0]);
  std::fill(in.begin() + kGamma, in.begin() + kExtras, mshadow::kFloat32);
  out = {images[0], mshadow::kFloat32, mshadow::kFloat32};
  return known;
}

}  // namespace

void register_norm() {
  nnvm::Op* op = add_op("_gluon_amp_norm", norm_inputs, 3, normalize, infer_norm_shape, infer_norm_type);
  set_visible(op, 1);
  const auto mutates = [](uint32_t mean, uint32_t var) {
    return MutateInputs([=](const NodeAttrs&) { return std::vector<uint32_t>{mean, var}; });
  };
  set_attr(op, "FMutateInputs", mutates(kMovingMean, kMovingVar), kPriority);
  may_work_in_place(op);
  const auto read = [](const ObjectPtr& node, const Entries& grads) {
    const Needs needs = NormAttributes(node->attrs).needs();
    const Entries& data = inputs_of(node);
    Entries read{grads[0], data[kData], data[kGamma], data[kBeta]};
    read.emplace_back(node, kMean, 0);
    read.emplace_back(node, kInverse, 0);
    read.push_back(data[kMovingMean]);
    read.push_back(data[kMovingVar]);
    if (needs == Needs::result) read.emplace_back(node, kResult, 0);
    if (needs == Needs::values) read.insert(read.end(), data.begin() + kExtras, data.end());
    return read;
  };
  const auto read_count = [](const NodeAttrs& attrs) -> uint32_t {
    const Needs needs = NormAttributes(attrs).needs();
    const uint32_t others = needs == Needs::values ? norm_inputs(attrs) - kExtras : needs == Needs::result;
    return kGradOthers + others;
  };
  const auto without_moving = [](const ObjectPtr& node, const Entries& gradients) {
    Entries all = gradients;
    all.insert(all.begin() + kMovingMean, 2, make_grad_node("_NoGradient", node, {}, {})[0]);
    return all;
  };
  nnvm::Op* grad = add_gradient(op, read_count, normalize_back, read, without_moving);
  grad->get_num_outputs = [](const NodeAttrs& attrs) { return norm_inputs(attrs) - kExtras + kExtraGrads; };
  set_attr(grad, "FMutateInputs", mutates(kGradMovingMean, kGradMovingVar), kPriority);
  may_work_in_place(grad);
}

}  // namespace gluon_amp
