// Dense layers (FullyConnected) by oneDNN's inner product, with weights packed once for each value.
#include <vector>

#include "products.h"
#include "shapes.h"

namespace gluon_amp {
namespace dense {

struct Dense {
  int64_t rows, columns, hidden;  // of the data, flattened; and of the result
  bool flatten, bias;
};

Dense parse(const NodeAttrs& attrs) {
  Dense result;
  result.hidden = integer_of(attrs, "num_hidden", 0);
  result.flatten = text_of(attrs, "flatten").empty() || flag_of(attrs, "flatten");
  result.bias = !flag_of(attrs, "no_bias");
  CHECK(0 < result.hidden && result.hidden <= INT32_MAX)
      << attrs.op->name << ": num_hidden must be positive";
  return result;
}

void set_data(const NodeAttrs& attrs, const mxnet::TShape& shape, Dense* d) {
  CHECK_GT(shape.ndim(), 0) << attrs.op->name << ": the data has no dimension";
  const int first = d->flatten ? 1 : shape.ndim() - 1;
  d->rows = d->columns = 1;
  for (int i = 0; i < shape.ndim(); ++i) (i < first ? d->rows : d->columns) *= shape[i];
  CHECK_GT(d->columns, 0) << attrs.op->name << ": the data has no columns";
}

std::shared_ptr<const Plan> plan_of(const Dense& d, dnnl_data_type_t dtype, dnnl_prop_kind_t kind) {
  static thread_local Plans plans;
  const auto describe = [&](dnnl_prop_kind_t of) {
    dnnl_inner_product_desc_t o;
    std::memset(&o, 0, sizeof o);
    const bool weights = of == dnnl_backward_weights, data = of == dnnl_backward_data;
    o.primitive_kind = dnnl_inner_product;
    o.prop_kind = of;
    (data ? o.diff_src_desc : o.src_desc) = plain_desc({d.rows, d.columns}, dtype);
    // In float32, the plain layout selects the kernel that MXNet uses, so that sums have the same bits.
    const Sizes sizes{d.hidden, d.columns};
    const auto own = dtype == dnnl_f32 ? plain_desc : any_desc;
    (weights ? o.diff_weights_desc : o.weights_desc) = own(sizes, weights ? dnnl_f32 : dtype);
    if (d.bias && !data) {
      (weights ? o.diff_bias_desc : o.bias_desc) = plain_desc({d.hidden}, dnnl_f32);
    }
    (weights || data ? o.diff_dst_desc : o.dst_desc) = plain_desc({d.rows, d.hidden}, dtype);
    o.accum_data_type = dnnl_f32;
    return o;
  };
  return plans.find_or_make({dtype, kind, d.rows, d.columns, d.hidden, d.bias}, [&] {
    const auto operation = describe(kind), forward = describe(dnnl_forward_training);
    return make_plan(&operation, &forward, kind, plain_desc({d.rows, d.columns}, dtype),
                     plain_desc({d.rows, d.hidden}, dtype), plain_desc({d.hidden}, dnnl_f32));
  });
}

// How long rows have to be in memory so that oneDNN computes the weight's gradient at full speed. If one side
// of the weight is short, its AVX2 kernel copies nothing, and takes twice as long where rows are a multiple of
// 4 KiB apart, since they then have the same places in the cache.
Dense with_longer_rows(Dense d, dnnl_data_type_t dtype) {
  const bool copies = 1. / d.columns + 1. / d.hidden < 0.0038;  // as oneDNN decides
  for (int64_t* columns : {&d.columns, &d.hidden}) {
    if (dtype == dnnl_f32 && !copies && *columns % 1024 == 0) *columns += 16;
  }
  return d;
}

// A copy of a matrix of float32 whose rows are followed by zeros, or its own memory if none are needed
const void* lengthened(const void* matrix, int64_t rows, int64_t columns, int64_t length,
                       Purpose purpose) {
  if (length == columns) return matrix;
  const float* from = static_cast<const float*>(matrix);
  float* copy = static_cast<float*>(scratch(purpose, rows * length * sizeof(float)));
#pragma omp parallel for schedule(static) if (rows * columns > 2 * kBlock)
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(copy + i * length, from + i * columns, columns * sizeof(float));
    std::fill(copy + i * length + columns, copy + (i + 1) * length, 0.f);
  }
  return copy;
}

// inputs: data, weight, bias
void multiply(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
              const Requests& req, const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  Dense d = parse(attrs);
  set_data(attrs, inputs[0].shape(), &d);
  const Precision p(attrs, inputs[0]);
  const auto plan = plan_of(d, p.dtype(), forward_kind(context));
  const auto weight = packed_weight(inputs[1], plan->weight, p.element, flag_of(attrs, "variable_weight"));
  const NDArray data = plain_copy(inputs[0]);
  const Bias bias(p, inputs);
  Result target(p, outputs[0], req[0]);
  plan->primitive->execute({{DNNL_ARG_SRC, &plan->data, read(p, data, Purpose::kWideImages)},
                            {DNNL_ARG_WEIGHTS, &plan->weight, weight->data()},
                            {DNNL_ARG_BIAS, &plan->bias, bias.data()},
                            {DNNL_ARG_DST, &plan->result, target.data()}});
  target.finish();
}

// inputs: the gradient of the result, data, weight; outputs: the gradients of data, weight and bias
void multiply_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                   const Arrays& outputs) {
  Dense d = parse(attrs);
  set_data(attrs, inputs[1].shape(), &d);
  if (inputs[1].shape().Size() == 0) return write_zero_gradients(req, outputs);
  const NDArray grad = plain_copy(inputs[0]), data = plain_copy(inputs[1]);
  const Precision p(attrs, grad);
  const void* grads = read(p, grad, Purpose::kWideResult);
  if (req[1] != mxnet::kNullOp || (d.bias && req[2] != mxnet::kNullOp)) {
    const Dense l = with_longer_rows(d, p.dtype());
    const auto plan = plan_of(l, p.dtype(), dnnl_backward_weights);
    std::vector<float> bias(d.bias ? l.hidden : 0);
    void* packed = scratch(Purpose::kWeightGradient, bytes_of(plan->weight));
    const void* datas = read(p, data, Purpose::kWideImages);
    const void* long_data = lengthened(datas, d.rows, d.columns, l.columns, Purpose::kImages);
    const void* long_grad = lengthened(grads, d.rows, d.hidden, l.hidden, Purpose::kResult);
    plan->primitive->execute({{DNNL_ARG_SRC, &plan->data, long_data},
                              {DNNL_ARG_DIFF_DST, &plan->result, long_grad},
                              {DNNL_ARG_DIFF_WEIGHTS, &plan->weight, packed},
                              {DNNL_ARG_DIFF_BIAS, &plan->bias, d.bias ? bias.data() : nullptr}});
    for (int64_t i = 1; l.columns != d.columns && i < d.hidden; ++i) {
      float* rows = static_cast<float*>(packed);
      std::memmove(rows + i * d.columns, rows + i * l.columns, d.columns * sizeof(float));
    }
    bias.resize(d.bias ? d.hidden : 0);
    if (d.bias) write_gradient(bias, req[2], p.rounds_to_half(), outputs[2]);
    unpack_gradient(packed, plan->weight, req[1], p.rounds_to_half(), outputs[1]);
  }
  if (req[0] == mxnet::kNullOp) return;
  Result target(p, outputs[0], req[0]);
  const auto plan = plan_of(d, p.dtype(), dnnl_backward_data);
  const auto weight = packed_weight(inputs[2], plan->weight, p.element, flag_of(attrs, "variable_weight"));
  plan->primitive->execute({{DNNL_ARG_DIFF_DST, &plan->result, grads},
                            {DNNL_ARG_WEIGHTS, &plan->weight, weight->data()},
                            {DNNL_ARG_DIFF_SRC, &plan->data, target.data()}});
  target.finish();
}

// The number of rows may be unknown at first, as that of the first state of a recurrent cell.
bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  Dense d = parse(attrs);
  expect_inputs(attrs, d.bias ? 3 : 2, in.size());
  mxnet::TShape& data = in[0];
  if (!mxnet::ndim_is_known(data) || data.ndim() == 0) return false;
  const int rows = d.flatten ? 1 : data.ndim() - 1;  // dimensions that data and result share
  set_rank(attrs, out.at(0), rows + 1);
  for (int i = 0; i < rows; ++i) share_size(attrs, data, i, out[0], i);
  set_size(attrs, out[0], rows, d.hidden);
  mxnet::TShape weight(2, -1), bias(1, d.hidden);
  weight[0] = d.hidden;
  int64_t columns = 1;
  for (int i = rows; i < data.ndim() && columns >= 0; ++i) {
    columns = mxnet::dim_size_is_known(data, i) ? columns * data[i] : -1;
  }
  weight[1] = columns;
  bool known = unify(attrs, {&in[1], &weight});
  if (d.bias) known = unify(attrs, {&in[2], &bias}) && known;
  if (!known || !mxnet::shape_is_known(data)) return false;
  set_data(attrs, data, &d);
  for (const auto* shape : {&in[1], &out[0]}) expect_addressable(attrs, *shape);
  return mxnet::shape_is_known(out[0]);
}

}  // namespace dense

void register_dense() {
  add_product("_gluon_amp_dense", dense::multiply, dense::infer_shape, dense::multiply_grad);
}

}  // namespace gluon_amp
