// Dense layers (FullyConnected) by oneDNN's inner product, or of few rows by our own, with weights packed once for
// each value.
#include "inner_products.h"
#include "operators.h"
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

Product product_of(const Dense& d, const Precision& p) {
  return {d.rows, d.columns, d.hidden, p.dtype(), d.bias, false};
}

// Where few_rows_kernels.h takes less time than oneDNN, with AVX2 and with AVX512
constexpr int64_t kFewRows = 32, kManyColumns = 1024;

// The result of a product of few rows, with the weight as narrow as its values
void multiply_rows(const Dense& d, const Precision& p, const NDArray& data, const NDArray& weight, Kept kept,
                   const float* bias, float* out) {
  const auto desc = plain_desc({d.hidden, d.columns}, stored_type(p.element));
  const auto packed = packed_weight(weight, desc, p.element, kept);
  const float* values = static_cast<const float*>(read(p, data, Purpose::kWideImages));
  const auto multiply = kernels().few_rows->multiply[static_cast<int>(p.element)];
  constexpr int64_t kAtOnce = 24;  // rows of the weight
#pragma omp parallel for schedule(static) if (d.rows * d.columns * d.hidden > kBlock)
  for (int64_t first = 0; first < d.hidden; first += kAtOnce) {
    const int64_t last = std::min(first + kAtOnce, d.hidden);
    multiply({values, packed->data(), bias, d.rows, d.columns, first, last, d.hidden, out});
  }
}

// inputs: data, weight, bias
void multiply(const NodeAttrs& attrs, const OpContext& context, const Arrays& inputs,
              const Requests& req, const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  CHECK_NE(req[0], mxnet::kAddTo);
  Dense d = parse(attrs);
  set_data(attrs, inputs[0].shape(), &d);
  const Precision p = precision_of(attrs, inputs[0]);
  const NDArray data = plain_copy(inputs[0]);
  const Bias bias(p, inputs);
  Result target = result_for(p, outputs[0], req[0]);
  if (d.rows <= kFewRows && d.columns >= kManyColumns && p.dtype() == dnnl_f32) {
    multiply_rows(d, p, data, inputs[1], kept_of(attrs), bias.data(), target.data<float>());
    return target.finish();
  }
  const auto plan = plan_of(product_of(d, p), forward_kind(context));
  const auto weight = packed_weight(inputs[1], plan->weight, p.element, kept_of(attrs));
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
  const Precision p = precision_of(attrs, grad);
  const void* grads = read(p, grad, Purpose::kWideResult);
  const Product product = product_of(d, p);
  if (req[1] != mxnet::kNullOp || (d.bias && req[2] != mxnet::kNullOp)) {
    write_weight_gradients(product, read(p, data, Purpose::kWideImages), grads,
                           Arrays(outputs.begin() + 1, outputs.end()), Requests(req.begin() + 1, req.end()),
                           p.rounds_to_half());
  }
  if (req[0] == mxnet::kNullOp) return;
  Result target = result_for(p, outputs[0], req[0]);
  const auto plan = plan_of(product, dnnl_backward_data);
  const auto weight = packed_weight(inputs[2], plan->weight, p.element, kept_of(attrs));
  plan->primitive->execute({{DNNL_ARG_DIFF_DST, &plan->result, grads},
                            {DNNL_ARG_WEIGHTS, &plan->weight, weight->data()},
                            {DNNL_ARG_DIFF_SRC, &plan->data, target.data()}});
  target.finish();
}

// The number of rows may be unknown at first, as that of the first state of a recurrent cell.
bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  Dense d = parse(attrs);
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
