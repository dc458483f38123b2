// Two-dimensional convolutions of images in the blocked layout, by oneDNN's primitives.
//
// MXNet's operator cannot write a padded layout, so that oneDNN computes layers with 3 or 24 channels by
// other and slower kernels, and it casts and reorders the weight at each call. This operator reads the
// weight as the parameter is stored, and writes its gradient in that form.
#include "blocked_convolution.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "onednn.h"
#include "packing.h"
#include "shapes.h"
#include "values.h"

namespace gluon_amp {
namespace blocked_convolution {

// oneDNN's kernels for the first layer read the plain layout, if it has at most this many channels, and
// write groups of lanes. There is none for the gradient of the data.
constexpr int64_t kMostPlainChannels = 3;

Convolution blocked(Convolution c) {
  if (!c.data_lanes) c.data_lanes = c.nhwc ? c.channels : c.lanes;
  return c;
}

// How the data is read to compute the result and the gradient of the weight
Convolution readable(const Convolution& c) {
  return c.channels > kMostPlainChannels || c.nhwc ? blocked(c) : c;
}

dnnl_memory_desc_t images_desc(const Convolution& c, int64_t channels, int64_t height, int64_t width,
                               int64_t lanes, dnnl_data_type_t dtype) {
  const bool nhwc = lanes == channels && (c.nhwc || (lanes != 8 && lanes != 16));
  return blocked_desc(c.images, channels, height, width, nhwc ? 0 : lanes, dtype);
}

void expect_lanes(const NodeAttrs& attrs, int64_t lanes, int64_t channels) {
  CHECK(lanes == 8 || lanes == 16 || lanes == channels)
      << attrs.op->name << ": " << lanes << " lanes for " << channels << " channels";
}

Convolution parse(const NodeAttrs& attrs) {
  Convolution result;
  const int64_t lanes = integer_of(attrs, "lanes", 16);
  result.kernel = pair_of(attrs, "kernel", 0, 1, INT32_MAX);
  result.stride = pair_of(attrs, "stride", 1, 1, INT32_MAX);
  result.pad = pair_of(attrs, "pad", 0, 0, INT32_MAX);
  result.dilate = pair_of(attrs, "dilate", 1, 1, INT32_MAX);
  result.filters = integer_of(attrs, "num_filter", 0);
  result.groups = integer_of(attrs, "num_group", 1);
  result.channels = integer_of(attrs, "channels", 0);
  result.plain_data = flag_of(attrs, "plain_data");
  result.bias = !flag_of(attrs, "no_bias");
  CHECK(0 < result.filters && result.filters <= INT32_MAX && result.groups > 0 &&
        result.filters % result.groups == 0)
      << attrs.op->name << ": num_filter or num_group is wrong";
  result.lanes = lanes ? lanes : result.filters;
  result.nhwc = lanes == 0;
  result.in_plain = result.plain_result = false;
  expect_lanes(attrs, result.lanes, result.filters);
  return result;
}

void read_images(const NodeAttrs& attrs, const mxnet::TShape& shape, Convolution* c) {
  CHECK_EQ(shape.ndim(), c->plain_data ? 4 : 5) << attrs.op->name << ": the data has another layout";
  c->images = shape[0];
  c->height = shape[2];
  c->width = shape[3];
  c->data_lanes = c->plain_data ? 0 : shape[4];
  if (c->plain_data) c->channels = shape[1];
  CHECK(c->channels > 0 && c->height > 0 && c->width > 0) << attrs.op->name << ": the images are empty";
  CHECK_EQ(c->channels % c->groups, 0) << attrs.op->name << ": num_group does not divide the channels";
  if (!c->plain_data) expect_lanes(attrs, c->data_lanes, c->channels);
  CHECK(c->channels <= INT32_MAX && (c->plain_data || (c->channels - 1) / c->data_lanes + 1 == shape[1]))
      << attrs.op->name << ": the data does not have " << c->channels << " channels";
}

void set_data(const NodeAttrs& attrs, const mxnet::TShape& shape, Convolution* c) {
  read_images(attrs, shape, c);
  const auto size = [&](int64_t in, int i) {
    return (in + 2 * c->pad[i] - c->dilate[i] * (c->kernel[i] - 1) - 1) / c->stride[i] + 1;
  };
  c->out_height = size(c->height, 0);
  c->out_width = size(c->width, 1);
  CHECK(c->height + 2 * c->pad[0] > c->dilate[0] * (c->kernel[0] - 1) &&
        c->width + 2 * c->pad[1] > c->dilate[1] * (c->kernel[1] - 1))
      << attrs.op->name << ": the kernel is larger than the padded image";
}

// --------------------------------------------------------------------------------- primitives

struct Descriptions {
  dnnl_memory_desc_t data, result, bias;
  dnnl_convolution_desc_t operation;
};

Descriptions describe(const Convolution& c, dnnl_data_type_t dtype, dnnl_prop_kind_t kind) {
  Descriptions d;
  std::memset(&d, 0, sizeof d);
  const Sizes sizes{c.images, c.channels, c.height, c.width};
  d.data = c.reads_plain() ? plain_desc(sizes, dtype)
                           : images_desc(c, c.channels, c.height, c.width, c.data_lanes, dtype);
  d.result = c.in_plain ? plain_desc({c.images, c.filters, c.out_height, c.out_width}, dtype)
                        : images_desc(c, c.filters, c.out_height, c.out_width, c.lanes, dtype);
  if (c.bias && kind != dnnl_backward_data) d.bias = plain_desc({c.filters}, dnnl_f32);
  Sizes of_weight{c.filters / c.groups, c.channels / c.groups, c.kernel[0], c.kernel[1]};
  if (c.groups > 1) of_weight.insert(of_weight.begin(), c.groups);
  const auto weight = any_desc(of_weight, kind == dnnl_backward_weights ? dnnl_f32 : dtype);
  auto& o = d.operation;
  o.primitive_kind = dnnl_convolution;
  o.prop_kind = kind;
  o.alg_kind = dnnl_convolution_direct;
  (kind == dnnl_backward_data ? o.diff_src_desc : o.src_desc) = d.data;
  (kind == dnnl_backward_weights ? o.diff_weights_desc : o.weights_desc) = weight;
  (kind == dnnl_backward_weights ? o.diff_bias_desc : o.bias_desc) = d.bias;
  const bool forward = kind == dnnl_forward_training || kind == dnnl_forward_inference;
  (forward ? o.dst_desc : o.diff_dst_desc) = d.result;
  for (int i = 0; i < 2; ++i) {
    o.strides[i] = c.stride[i];
    o.dilates[i] = c.dilate[i] - 1;
    o.padding[0][i] = o.padding[1][i] = c.pad[i];
  }
  o.accum_data_type = dnnl_f32;
  return d;
}

std::shared_ptr<const Plan> plan_of(const Convolution& c, dnnl_data_type_t dtype,
                                    dnnl_prop_kind_t kind) {
  const Sizes key{dtype,        kind,         c.images,     c.channels,    c.height,     c.width,
                  c.filters,    c.groups,     c.kernel[0],  c.kernel[1],   c.stride[0],  c.stride[1],
                  c.pad[0],     c.pad[1],     c.dilate[0],  c.dilate[1],   c.lanes,      c.data_lanes,
                  c.bias,       c.nhwc,       c.in_plain};
  static thread_local Plans plans;
  return plans.find_or_make(key, [&] {
    const Descriptions d = describe(c, dtype, kind), hint = describe(c, dtype, dnnl_forward_training);
    return make_plan(&d.operation, &hint.operation, kind, d.data, d.result, d.bias);
  });
}

// One pass over a convolution, and its primitive
struct Pass {
  Convolution c;
  std::shared_ptr<const Plan> plan;
};

// The same convolution of what it reads of the images. A 1×1 kernel without padding reads every stride-th row
// and column. Where the stride does not divide an image, oneDNN 2.4 has only slow kernels, which take up to
// three times as long as a copy and a convolution without strides.
Convolution part_of(Convolution c) {
  const bool divides = c.out_height * c.stride[0] == c.height && c.out_width * c.stride[1] == c.width;
  const bool reads_part = c.kernel == Sizes{1, 1} && c.pad == Sizes{0, 0} && !divides;
  if (!reads_part || c.plain_data || c.in_plain) return c;
  c.height = c.out_height;
  c.width = c.out_width;
  c.stride = {1, 1};
  return c;
}

// For some sizes, paddings and dilations, oneDNN 2.4 has only its reference kernel in the blocked layout,
// which can be a thousand times as slow as that for plain images. Of all its kernels for blocked images,
// only this one reads plain weights.
Pass pass_of(const Convolution& whole, dnnl_data_type_t dtype, dnnl_prop_kind_t kind) {
  Convolution c = part_of(whole);
  const auto plan = plan_of(c, dtype, kind);
  if (c.in_plain || !is_plain(plan->weight)) return {c, plan};
  c = whole;
  c.in_plain = true;
  return {c, plan_of(c, dtype, kind)};
}

// oneDNN 2.4's fastest kernels for AVX512 in float32 (brgconv) read all channels side by side, and weights in
// blocks of filters alone. For 3×3 kernels they take down to two thirds of the others' time. A convolution with
// fewer products for each result does not pay for the copies, nor does one of narrow images, which these kernels
// compute slowly, nor one whose weight is packed for a single pass. Without AVX512 there are no such kernels.
constexpr int64_t kFewProducts = 256, kNarrow = 7;

Pass forward_pass_of(const Convolution& c, dnnl_data_type_t dtype, dnnl_prop_kind_t kind) {
  const int64_t positions = c.kernel[0] * c.kernel[1], products = c.channels / c.groups * positions;
  if (kind == dnnl_forward_inference && dtype == dnnl_f32 && c.lanes == 16 && !c.nhwc && !c.reads_plain() &&
      positions > 1 && products >= kFewProducts && c.out_width >= kNarrow) {
    Convolution side_by_side = c;
    side_by_side.nhwc = true;
    side_by_side.lanes = c.filters;
    side_by_side.data_lanes = c.channels;
    const auto plan = plan_of(side_by_side, dtype, kind);
    const auto& blocking = plan->weight.format_desc.blocking;
    if (blocking.inner_nblks == 1 && blocking.inner_idxs[0] == 0) return {side_by_side, plan};
  }
  return pass_of(c, dtype, kind);
}

// ---------------------------------------------------------------------------------- the operator

// Copies images of which one side has every position, and the other those at multiples of its steps. The
// target's other positions become zeros.
void move_part(const void* from, const Blocked& source, const Sizes& from_step, void* to, const Blocked& target,
               const Sizes& to_step, int bytes) {
  const int64_t size = target.lanes * bytes, in_step = from_step[1] * size, out_step = to_step[1] * size;
  const bool spreads = target.size() > source.size();
#pragma omp parallel for schedule(static) if (target.size() > 2 * kBlock)
  for (int64_t i = 0; i < target.images * target.groups * target.height; ++i) {
    const int64_t y = i % target.height, in_image = y / to_step[0] * from_step[0];
    const int64_t row = i / target.height * source.height + in_image;
    const char* in = static_cast<const char*>(from) + row * source.width * size;
    char* out = static_cast<char*>(to) + i * target.width * size;
    if (spreads) std::memset(out, 0, target.width * size);
    const int64_t columns = y % to_step[0] ? 0 : std::min(source.width, target.width);
    for (int64_t x = 0; x < columns; ++x) std::memcpy(out + x * out_step, in + x * in_step, size);
  }
}

// Reads the data, of which `c` may be the convolution of a part.
const void* read_data(const Convolution& whole, const Convolution& c, const Precision& p, const NDArray& array) {
  const char* values = values_of<char>(array);
  const Blocked stored = c.data_with(whole.stored_data().lanes);
  if (c.stride != whole.stride) {
    const int bytes = size_of_value(array);
    void* copy = scratch(Purpose::kPart, stored.size() * bytes);
    move_part(values, whole.stored_data(), whole.stride, copy, stored, c.stride, bytes);
    values = static_cast<char*>(copy);
  }
  const void* images = read(p, values, stored.size(), Purpose::kWideImages);
  return moved(Purpose::kImages, images, stored, c.computed_data(), c.channels, p.bytes());
}

// Reads the gradient of the result likewise.
const void* read_grad(const Convolution& c, const Precision& p, const NDArray& grad) {
  const void* values = read(p, grad, Purpose::kWideResult);
  return moved(Purpose::kResult, values, c.stored_result(), c.computed_result(), c.filters, p.bytes());
}

void write_result(const Convolution& whole, const Precision& p, dnnl_prop_kind_t kind,
                  const NDArray& images, const Weight& weight, const float* bias, OpReqType req,
                  const NDArray& output, bool rounds) {
  if (req == mxnet::kNullOp) return;
  const Pass pass = forward_pass_of(readable(whole), p.dtype(), kind);
  const Convolution& c = pass.c;
  const Plan* plan = pass.plan.get();
  const auto packed = packed_weight(weight.array, plan->weight, p.element, weight.kept);
  const NDArray data = plain_copy(images);
  const Blocked computed = c.computed_result(), stored = whole.stored_result();
  Result target = result_for(p, output, req);
  const bool moves = computed.lanes != stored.lanes;
  void* result = moves ? scratch(Purpose::kResult, computed.size() * p.bytes()) : target.data();
  plan->primitive->execute({{DNNL_ARG_SRC, &plan->data, read_data(whole, c, p, data)},
                            {DNNL_ARG_WEIGHTS, &plan->weight, packed->data()},
                            {DNNL_ARG_BIAS, &plan->bias, bias},
                            {DNNL_ARG_DST, &plan->result, result}});
  if (moves) change_lanes(result, computed, target.data(), stored, c.filters, p.bytes());
  target.finish(rounds);
}

void write_data_grad(const Convolution& whole, const Precision& p, const NDArray& grad, const Weight& weight,
                     OpReqType req, const NDArray& output, const Finish& finish) {
  if (req == mxnet::kNullOp) return;
  const Pass pass = pass_of(blocked(whole), p.dtype(), dnnl_backward_data);
  const Convolution& c = pass.c;
  const Plan* plan = pass.plan.get();
  const auto packed = packed_weight(weight.array, plan->weight, p.element, weight.kept);
  const Blocked computed = c.computed_data(), stored = whole.stored_data();
  const void* grads = read_grad(c, p, grad);
  Result target = result_for(p, output, req);
  const bool moves = computed.lanes != stored.lanes, spreads = c.stride != whole.stride;
  void* result = moves || spreads ? scratch(Purpose::kImages, computed.size() * p.bytes()) : target.data();
  plan->primitive->execute({{DNNL_ARG_DIFF_DST, &plan->result, grads},
                            {DNNL_ARG_WEIGHTS, &plan->weight, packed->data()},
                            {DNNL_ARG_DIFF_SRC, &plan->data, result}});
  if (moves) change_lanes(result, computed, target.data(), stored, c.channels, p.bytes());
  if (spreads) move_part(result, computed, c.stride, target.data(), stored, whole.stride, p.bytes());
  if (finish) finish(target.data(), stored);
  target.finish();
}

// Whether some row (i = 0) or column (1) of the kernel meets nothing of the image but its padding
bool meets_only_padding(const Convolution& c, int i) {
  const int64_t size = i ? c.width : c.height, results = i ? c.out_width : c.out_height;
  for (int64_t k = 0; k < c.kernel[i]; ++k) {
    const int64_t start = k * c.dilate[i] - c.pad[i];
    const int64_t first = start < 0 ? (-start - 1) / c.stride[i] + 1 : 0;  // result that is not before it
    if (first >= results || start + first * c.stride[i] >= size) return true;
  }
  return false;
}

void weight_grad(const Convolution& whole, const Precision& p, const NDArray& grad, const NDArray& data,
                 const Requests& req, const Arrays& outputs) {
  const bool has_bias = whole.bias && req[2] != mxnet::kNullOp;
  if (req[1] == mxnet::kNullOp && !has_bias) return;
  // For blocked images in bfloat16, oneDNN 2.4 reads uninitialized memory in two cases: if an image is
  // narrower than the stride, since its kernels split an image into as many parts as the stride has columns,
  // and the last parts are empty; and for a row or column of the kernel that meets no image, which it does
  // not set to zero.
  const auto dtype = p.dtype();
  Convolution wanted = part_of(readable(whole));
  wanted.in_plain = dtype == dnnl_bf16 && (wanted.width < wanted.stride[1] ||
                                           meets_only_padding(wanted, 0) || meets_only_padding(wanted, 1));
  const Pass pass = pass_of(wanted, dtype, dnnl_backward_weights);
  const Convolution& c = pass.c;
  const Plan* plan = pass.plan.get();
  const NDArray plain = plain_copy(data);
  std::vector<float> bias(c.bias ? c.filters : 0);
  void* packed = scratch(Purpose::kWeightGradient, bytes_of(plan->weight));
  plan->primitive->execute({{DNNL_ARG_SRC, &plan->data, read_data(whole, c, p, plain)},
                            {DNNL_ARG_DIFF_DST, &plan->result, read_grad(c, p, grad)},
                            {DNNL_ARG_DIFF_WEIGHTS, &plan->weight, packed},
                            {DNNL_ARG_DIFF_BIAS, &plan->bias, c.bias ? bias.data() : nullptr}});
  if (c.bias) parameter_gradient(outputs[2], req[2], p.rounds_to_half()).write(bias);
  unpack_gradient(packed, plan->weight, req[1], p.rounds_to_half(), outputs[1]);
}

// inputs: data, weight, bias
void convolve(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
              const Requests& req, const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  Convolution c = parse(attrs);
  set_data(attrs, inputs[0].shape(), &c);
  // a relu that is stored rounded may read what is not: both orders give the same values and gradients
  const Precision p(attrs, inputs[0]);
  write_result(c, p, forward_kind(context), inputs[0], {inputs[1], kept_of(attrs)}, Bias(p, inputs).data(),
               req[0], outputs[0], !flag_of(attrs, "reader_rounds"));
}

// inputs: the gradient of the result, data, weight; outputs: the gradients of data, weight and bias
void convolve_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                   const Arrays& outputs) {
  Convolution c = parse(attrs);
  set_data(attrs, inputs[1].shape(), &c);
  if (inputs[1].shape().Size() == 0) return write_zero_gradients(req, outputs);
  // The gradient of the weight comes first: that of the data may be written to the memory of the
  // result's gradient or of the data.
  const Precision p(attrs, inputs[0]);
  weight_grad(c, p, inputs[0], inputs[1], req, outputs);
  write_data_grad(c, p, inputs[0], {inputs[2], Kept::kForOneUse}, req[0], outputs[0]);
}

// ------------------------------------------------------------------------------------- inference

bool unify_parameters(const NodeAttrs& attrs, const Convolution& c, int64_t channels,
                      mxnet::TShape result, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  mxnet::TShape weight(4, 0), bias(1, channels);
  weight[0] = c.filters;
  weight[1] = c.channels / c.groups;
  weight[2] = c.kernel[0];
  weight[3] = c.kernel[1];
  bool known = unify(attrs, {&in[1], &weight});
  if (in.size() == 3) known = unify(attrs, {&in[2], &bias}) && known;
  for (const auto* shape : {&weight, &result}) expect_addressable(attrs, *shape);
  return unify(attrs, {&out.at(0), &result}) && known;
}

bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  Convolution c = parse(attrs);
  if (!mxnet::shape_is_known(in[0])) return false;
  set_data(attrs, in[0], &c);
  const auto result = blocked_shape(c.images, c.filters, c.out_height, c.out_width, c.lanes);
  return unify_parameters(attrs, c, c.filters, result, in, out);
}

}  // namespace blocked_convolution

void register_blocked_convolution() {
  add_product("_gluon_amp_blocked_convolution", blocked_convolution::convolve,
              blocked_convolution::infer_shape, blocked_convolution::convolve_grad);
}

}  // namespace gluon_amp
