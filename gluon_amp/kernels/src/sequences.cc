// What sequence models use most beside dense layers: LayerNorm, GELU, softmax and log_softmax over the last
// axis, the loss of a class, splits, and batch_dot in float32.
//
// MXNet computes the gradients of LayerNorm with several passes over temporary arrays, copies splits element
// by element, and divides each of a batch's small products among the threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attributes.h"
#include "operators.h"
#include "parallel.h"
#include "products.h"
#include "shapes.h"
#include "values.h"

namespace gluon_amp {
namespace sequences {

bool is_low(const NDArray& array) { return array.dtype() == mshadow::kBfloat16; }

// An array as a matrix, whose columns are the last axis. The number of elements is not 0.
RowsShape rows_of(const mxnet::TShape& shape) {
  const int64_t columns = shape[shape.ndim() - 1];
  return {static_cast<int64_t>(shape.Size()) / columns, columns};
}

// Calls body(first row, shape of the block) for blocks of rows in parallel. Their boundaries do not depend
// on the number of threads.
template <typename Body>
void in_row_blocks(const RowsShape& all, int64_t block, Body body) {
#pragma omp parallel for schedule(static) if (all.rows * all.columns > 2 * kBlock)
  for (int64_t first = 0; first < all.rows; first += block) {
    body(first, RowsShape{std::min(block, all.rows - first), all.columns});
  }
}

// ------------------------------------------------------------------------------------ layer norm

float epsilon_of(const NodeAttrs& attrs) { return static_cast<float>(number_of(attrs, "eps", 1e-5)); }

const LayerNormKernels& layer_norm_of(const NDArray& x, const NDArray& result) {
  return kernels().rows->layer_norm[is_low(x)][is_low(result)];
}

constexpr int64_t kRows = 32;  // whose gradients of gamma and beta are added, before those of all blocks

// inputs: data, gamma, beta
void layer_norm(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || inputs[0].shape().Size() == 0) return;
  const NDArray data = plain_copy(inputs[0]);
  const WideParameter gamma(inputs[1]), beta(inputs[2]);
  const char* x = values_of<char>(data);
  const int64_t in = size_of_value(data), out = size_of_value(outputs[0]);
  Result result(outputs[0], req[0]);
  char* values = result.data<char>();
  const auto forward = layer_norm_of(data, outputs[0]).forward;
  in_row_blocks(rows_of(data.shape()), kRows, [&](int64_t first, const RowsShape& block) {
    const int64_t start = first * block.columns;
    forward(x + start * in, gamma.data(), beta.data(), values + start * out, block, epsilon_of(attrs));
  });
  result.finish();
}

// inputs: the gradient of the result, data, gamma; outputs: the gradients of data, gamma and beta
void layer_norm_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                     const Arrays& outputs) {
  const int64_t columns = outputs[1].shape().Size();
  std::vector<float> sums(2 * columns);  // the gradients of gamma and beta
  if (inputs[1].shape().Size() > 0) {
    const NDArray grad = plain_copy(inputs[0]), data = plain_copy(inputs[1]);
    const WideParameter gamma(inputs[2]);
    const char *g = values_of<char>(grad), *x = values_of<char>(data);
    const int64_t in = size_of_value(data), out = size_of_value(grad);
    const RowsShape all = rows_of(data.shape());
    Result result(outputs[0], req[0]);
    char* x_grad = result.data<char>();
    std::vector<float> parts((all.rows + kRows - 1) / kRows * sums.size());
    const auto backward = layer_norm_of(data, grad).backward;
    in_row_blocks(all, kRows, [&](int64_t first, const RowsShape& block) {
      const int64_t start = first * columns;
      float* part = parts.data() + first / kRows * sums.size();
      backward(g + start * out, x + start * in, gamma.data(), x_grad ? x_grad + start * in : nullptr, part,
               part + columns, block, epsilon_of(attrs));
    });
    for (size_t i = 0; i < parts.size(); i += sums.size()) {
      kernels().add(parts.data() + i, sums.data(), sums.size());
    }
    result.finish();
  }
  Result(outputs[1], req[1]).write(sums.data(), 0, columns);
  Result(outputs[2], req[2]).write(sums.data() + columns, 0, columns);
}

bool infer_layer_norm_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  bool known = unify(attrs, {&in[0], &out.at(0)});
  if (!mxnet::ndim_is_known(in[0])) return false;
  CHECK_GT(in[0].ndim(), 0) << attrs.op->name << ": the data has no dimension";
  for (int k : {1, 2}) {
    set_rank(attrs, in[k], 1);
    share_size(attrs, in[0], in[0].ndim() - 1, in[k], 0);
    known = known && mxnet::shape_is_known(in[k]);
  }
  return unify(attrs, {&in[0], &out[0]}) && known;
}

// The result has the dtype of the attribute. What follows the data is float32.
bool infer_narrowing_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  const bool low = text_of(attrs, "dtype") == "bfloat16";
  Ints none, data{in[0]}, result{low ? mshadow::kBfloat16 : mshadow::kFloat32};
  Ints parameters(in.begin() + 1, in.end());
  infer_cast<mshadow::kFloat32, mshadow::kFloat32>(attrs, parameters, none);
  CHECK(out.at(0) == -1 || out[0] == result[0]) << attrs.op->name << ": the result has another dtype";
  if (!infer_one_dtype(attrs, data, none)) return false;
  data.insert(data.end(), parameters.begin(), parameters.end());
  in = data;
  out = result;
  return true;
}

// ------------------------------------------------------------------------------------------ gelu

// inputs: the gradient of the result if `backward`, and the data
template <bool backward>
void gelu(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
          const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  const NDArray grad = plain_copy(inputs.front()), data = plain_copy(inputs.back());
  const char *g = values_of<char>(grad), *x = values_of<char>(data);
  const int64_t in = size_of_value(data), of_grad = size_of_value(grad), out = size_of_value(outputs[0]);
  const bool narrows = is_low(backward ? grad : outputs[0]);
  const auto kernel = (backward ? kernels().rows->gelu_grad : kernels().rows->gelu)[is_low(data)][narrows];
  Result result(outputs[0], req[0]);
  char* values = result.data<char>();
  in_parallel(outputs[0].shape().Size(), [&](int64_t first, int64_t count) {
    kernel(g + first * of_grad, x + first * in, values + first * out, count);
  });
  result.finish();
}

// --------------------------------------------------------------------------------------- softmax

// softmax or log_softmax, or the gradient of either; inputs of a gradient: that of the result, and the result
template <Softmax RowsKernels::*kernel>
void softmax(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
             const Arrays& outputs) {
  const float scale = static_cast<float>(number_of(attrs, "scale", 1));
  CHECK(0 < scale && scale < INFINITY) << attrs.op->name << ": scale";
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  const NDArray first = plain_copy(inputs.front()), last = plain_copy(inputs.back());
  const float *x = values_of<float>(first), *y = values_of<float>(last);
  Result result(outputs[0], req[0]);
  float* out = result.data<float>();
  in_row_blocks(rows_of(outputs[0].shape()), 1, [&](int64_t i, const RowsShape& shape) {
    const int64_t n = shape.columns;
    (kernels().rows->*kernel)(x + i * n, y + i * n, out + i * n, n, scale);
  });
  result.finish();
}

// ---------------------------------------------------------------------------- loss of a class

// The log_softmax of the elements that labels pick, as MXNet's pick with mode "clip" does. A hidden result has
// two sums for each row (rows_kernels.h).

// The number of a class, read from a label
int64_t picked_of(const float* label, int64_t columns) {
  const float last = static_cast<float>(columns - 1);
  return *label > 0 ? std::min(columns - 1, static_cast<int64_t>(std::min(*label, last))) : 0;
}

void picked_log_softmax(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
                        const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  const NDArray data = plain_copy(inputs[0]), label = plain_copy(inputs[1]);
  const float *x = values_of<float>(data), *labels = values_of<float>(label);
  float* sums = result_of<float>(outputs[1]);
  Result result(outputs[0], req[0]);
  float* out = result.data<float>();
  in_row_blocks(rows_of(data.shape()), 1, [&](int64_t i, const RowsShape& shape) {
    const int64_t n = shape.columns;
    out[i] = kernels().rows->picked_log_softmax.forward(x + i * n, picked_of(labels + i, n), sums + 2 * i, n);
  });
  result.finish();
}

// inputs: the gradient of the result, data, labels and the sums; outputs: the gradients of data and labels
void picked_log_softmax_grad(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
                             const Arrays& outputs) {
  write_zeros(outputs[1], req[1]);
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  Arrays plain;
  for (const auto& input : inputs) plain.push_back(plain_copy(input));
  const float *grad = values_of<float>(plain[0]), *x = values_of<float>(plain[1]);
  const float *labels = values_of<float>(plain[2]), *sums = values_of<float>(plain[3]);
  Result result(outputs[0], req[0]);
  float* out = result.data<float>();
  in_row_blocks(rows_of(outputs[0].shape()), 1, [&](int64_t i, const RowsShape& shape) {
    const int64_t n = shape.columns;
    kernels().rows->picked_log_softmax.backward(grad[i], x + i * n, picked_of(labels + i, n), sums + 2 * i,
                                                out + i * n, n);
  });
  result.finish();
}

bool infer_picked_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  const mxnet::TShape& data = in[0];
  if (!mxnet::ndim_is_known(data)) return false;
  const int last = data.ndim() - 1;
  CHECK_GE(last, 0) << attrs.op->name << ": the data has no dimension";
  CHECK_NE(data[last], 0) << attrs.op->name << ": the data has no columns";
  mxnet::TShape kept = data, dropped(std::max(last, 1), 1), sums = data;
  kept[last] = 1;
  sums[last] = 2;
  std::copy(data.begin(), data.end() - 1, dropped.begin());  // of one row, there is one element
  const bool known = unify(attrs, {&out.at(0), flag_of(attrs, "keepdims") ? &kept : &dropped});
  if (mxnet::ndim_is_known(in[1])) unify(attrs, {&in[1], in[1].ndim() == data.ndim() ? &kept : &dropped});
  return unify(attrs, {&out.at(1), &sums}) && known && mxnet::shape_is_known(in[1]);
}

// ----------------------------------------------------------------------------------------- split

uint32_t count_parts(const NodeAttrs& attrs) { return count_of(attrs, "num_outputs"); }

int axis_of(const NodeAttrs& attrs, int rank) {
  int64_t axis = integer_of(attrs, "axis", 1);
  axis += axis < 0 ? rank : 0;
  CHECK(0 <= axis && axis < rank) << attrs.op->name << ": axis";
  return static_cast<int>(axis);
}

// Copies the parts of an array to it if `joining`, otherwise from it; null parts are left out.
void copy_parts(char* whole, const std::vector<char*>& parts, bool joining, const NodeAttrs& attrs,
                const NDArray& array) {
  const mxnet::TShape& shape = array.shape();
  const int axis = axis_of(attrs, shape.ndim());
  const int64_t count = parts.size(), runs = shape.ProdShape(0, axis) * count;
  const int64_t bytes = shape.ProdShape(axis, shape.ndim()) / count * size_of_value(array);
#pragma omp parallel for schedule(static) if (runs * bytes > 8 * kBlock)
  for (int64_t i = 0; i < runs; ++i) {
    char *part = parts[i % count], *there = whole + i * bytes;
    if (!part) continue;
    part += i / count * bytes;
    std::memcpy(joining ? there : part, joining ? part : there, bytes);
  }
}

void split_parts(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
           const Arrays& outputs) {
  if (inputs[0].shape().Size() == 0) return;
  const NDArray data = plain_copy(inputs[0]);
  std::vector<char*> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    CHECK_NE(req[i], mxnet::kAddTo);
    parts.push_back(req[i] == mxnet::kNullOp ? nullptr : result_of<char>(outputs[i]));
  }
  copy_parts(const_cast<char*>(values_of<char>(data)), parts, false, attrs, data);
}

// inputs: the gradients of the parts
void join_parts(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
          const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp || outputs[0].shape().Size() == 0) return;
  Arrays plain;
  std::vector<char*> parts;
  for (const auto& input : inputs) plain.push_back(plain_copy(input));
  for (const auto& array : plain) parts.push_back(const_cast<char*>(values_of<char>(array)));
  Result result(outputs[0], req[0]);
  copy_parts(result.data<char>(), parts, true, attrs, outputs[0]);
  result.finish();
}

bool infer_split_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  const int64_t count = count_parts(attrs);
  mxnet::TShape& whole = in[0];
  if (!mxnet::ndim_is_known(whole)) return false;
  const int axis = axis_of(attrs, whole.ndim());
  mxnet::TShape part = whole;
  if (mxnet::dim_size_is_known(whole, axis)) {
    CHECK_EQ(whole[axis] % count, 0) << attrs.op->name << ": the parts are not equal";
    part[axis] = whole[axis] / count;
  }
  mxnet::ShapeVector parts{part};
  const bool known = infer_one_shape(attrs, parts, out);
  part = parts[0];
  for (int i = 0; i < whole.ndim(); ++i) {
    if (i != axis) share_size(attrs, whole, i, part, i);
  }
  if (mxnet::dim_size_is_known(part, axis)) set_size(attrs, whole, axis, part[axis] * count);
  return known;
}

// ------------------------------------------------------------------------------------- batch_dot

// The matrices of an array, some of which are read as transposed
struct Matrices {
  NDArray array;
  bool turned;

  int64_t size(int k) const {
    const auto& shape = array.shape();
    return shape[shape.ndim() - (turned ? 1 + k : 2 - k)];
  }
  dnnl_memory_desc_t desc(int64_t batch) const {
    dnnl_memory_desc_t desc = plain_desc({batch, size(0), size(1)}, dnnl_f32);
    int64_t* strides = desc.format_desc.blocking.strides;
    if (turned) strides[1] = 1, strides[2] = size(0);
    return desc;
  }
};

void multiply(const Matrices& a, const Matrices& b, OpReqType req, const NDArray& array) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  if (req == mxnet::kNullOp || array.shape().Size() == 0) return;
  Result result(array, req);
  float* values = result.data<float>();
  const int64_t batch = array.shape().Size() / (m * n);
  if (k == 0) {
    std::fill(values, values + batch * m * n, 0.f);
    return result.finish();
  }
  static thread_local Plans plans;
  const auto plan = plans.find_or_make({batch, m, k, n, a.turned, b.turned}, [&] {
    dnnl_matmul_desc_t o;
    std::memset(&o, 0, sizeof o);
    o.primitive_kind = dnnl_matmul;
    o.src_desc = a.desc(batch);
    o.weights_desc = b.desc(batch);
    o.dst_desc = plain_desc({batch, m, n}, dnnl_f32);
    o.accum_data_type = dnnl_f32;
    return make_plan(&o, nullptr, dnnl_forward_inference, o.src_desc, o.dst_desc, o.bias_desc);
  });
  plan->primitive->execute({{DNNL_ARG_SRC, &plan->data, values_of<char>(a.array)},
                            {DNNL_ARG_WEIGHTS, &plan->weight, values_of<char>(b.array)},
                            {DNNL_ARG_DST, &plan->result, values}});
  result.finish();
}

void batch_dot(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
               const Arrays& outputs) {
  multiply({plain_copy(inputs[0]), flag_of(attrs, "transpose_a")},
           {plain_copy(inputs[1]), flag_of(attrs, "transpose_b")}, req[0], outputs[0]);
}

// inputs: the gradient of the result, and both arrays
void batch_dot_grad(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                    const Arrays& outputs) {
  const NDArray grad = plain_copy(inputs[0]), a = plain_copy(inputs[1]), b = plain_copy(inputs[2]);
  const bool turned_a = flag_of(attrs, "transpose_a"), turned_b = flag_of(attrs, "transpose_b");
  if (turned_a) {
    multiply({b, turned_b}, {grad, true}, req[0], outputs[0]);
  } else {
    multiply({grad, false}, {b, !turned_b}, req[0], outputs[0]);
  }
  if (turned_b) {
    multiply({grad, true}, {a, turned_a}, req[1], outputs[1]);
  } else {
    multiply({a, !turned_a}, {grad, false}, req[1], outputs[1]);
  }
}

bool infer_batch_dot_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  mxnet::TShape &a = in[0], &b = in[1], &result = out.at(0);
  if (!mxnet::ndim_is_known(a)) return false;
  const int last = a.ndim() - 1;
  CHECK_GE(last, 2) << attrs.op->name << " expects batches of matrices";
  for (auto* shape : {&b, &result}) set_rank(attrs, *shape, last + 1);
  const int turned_a = flag_of(attrs, "transpose_a"), turned_b = flag_of(attrs, "transpose_b");
  for (int i = 0; i < 2 * (last - 1); ++i) {  // twice, for what is known of one array only
    share_size(attrs, a, i / 2, b, i / 2);
    share_size(attrs, b, i / 2, result, i / 2);
  }
  share_size(attrs, a, last - 1 + turned_a, result, last - 1);
  share_size(attrs, a, last - turned_a, b, last - 1 + turned_b);
  share_size(attrs, b, last - turned_b, result, last);
  for (const auto* shape : {&a, &b, &result}) {
    if (!mxnet::shape_is_known(*shape)) return false;
    expect_addressable(attrs, *shape);
  }
  return true;
}

}  // namespace sequences

void register_sequences() {
  using namespace sequences;
  constexpr int kFloat = mshadow::kFloat32;
  nnvm::Op* op = add_op("_gluon_amp_layer_norm", 3, 1, layer_norm, infer_layer_norm_shape, infer_narrowing_type);
  may_work_in_place(op);
  may_work_in_place(add_gradient(op, 3, layer_norm_grad, and_inputs<2>));

  op = add_op("_gluon_amp_gelu", 1, 1, gelu<false>, infer_one_shape, infer_narrowing_type);
  may_work_in_place(add_gradient(op, 2, gelu<true>, and_inputs<1>));

  op = add_op("_gluon_amp_batch_dot", 2, 1, batch_dot, infer_batch_dot_shape, infer_cast<kFloat, kFloat>);
  add_gradient(op, 3, batch_dot_grad, and_inputs<2>);

  add_with_gradient<kFloat, kFloat>("_gluon_amp_softmax", 2, softmax<&RowsKernels::softmax>,
                                    softmax<&RowsKernels::softmax_grad>, and_result);
  add_with_gradient<kFloat, kFloat>("_gluon_amp_log_softmax", 2, softmax<&RowsKernels::log_softmax>,
                                    softmax<&RowsKernels::log_softmax_grad>, and_result);

  op = add_op("_gluon_amp_picked_log_softmax", 2, 2, picked_log_softmax, infer_picked_shape,
              infer_cast<kFloat, kFloat>);
  set_visible(op, 1);
  const auto names = [](const NodeAttrs&) { return std::vector<std::string>{"output", "sums"}; };
  set_attr(op, "FListOutputNames", Names(names), kPriority);
  add_gradient(op, 4, picked_log_softmax_grad, [](const ObjectPtr& node, const Entries& grads) {
    return Entries{grads[0], inputs_of(node)[0], inputs_of(node)[1], {node, 1, 0}};
  });

  op = add_op("_gluon_amp_split", 1, count_parts, split_parts, infer_split_shape, infer_one_dtype);
  add_gradient(op, count_parts, join_parts, only_gradients);
}

}  // namespace gluon_amp
