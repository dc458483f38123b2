// Products of matrices by oneDNN's inner product, which dense and recurrent layers share.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "memory.h"
#include "onednn.h"
#include "packing.h"
#include "parallel.h"
#include "products.h"
#include "values.h"

namespace gluon_amp {

// data [rows, columns] times the transpose of a weight [hidden, columns]
struct Product {
  int64_t rows, columns, hidden;
  dnnl_data_type_t dtype;  // of the operands and, unless it is wide, of the result
  bool bias, wide;         // wide: the forward pass writes float32
};

inline std::shared_ptr<const Plan> plan_of(const Product& p, dnnl_prop_kind_t kind) {
  static thread_local Plans plans;
  const auto describe = [&](dnnl_prop_kind_t of) {
    dnnl_inner_product_desc_t o;
    std::memset(&o, 0, sizeof o);
    const bool weights = of == dnnl_backward_weights, data = of == dnnl_backward_data;
    o.primitive_kind = dnnl_inner_product;
    o.prop_kind = of;
    (data ? o.diff_src_desc : o.src_desc) = plain_desc({p.rows, p.columns}, p.dtype);
    // In float32, the plain layout selects the kernel that MXNet uses, so that sums have the same bits.
    const Sizes sizes{p.hidden, p.columns};
    const auto own = p.dtype == dnnl_f32 ? plain_desc : any_desc;
    (weights ? o.diff_weights_desc : o.weights_desc) = own(sizes, weights ? dnnl_f32 : p.dtype);
    if (p.bias && !data) {
      (weights ? o.diff_bias_desc : o.bias_desc) = plain_desc({p.hidden}, dnnl_f32);
    }
    const auto type = p.wide && !weights && of == kind ? dnnl_f32 : p.dtype;
    (weights || data ? o.diff_dst_desc : o.dst_desc) = plain_desc({p.rows, p.hidden}, type);
    o.accum_data_type = dnnl_f32;
    return o;
  };
  return plans.find_or_make({p.dtype, kind, p.rows, p.columns, p.hidden, p.bias, p.wide}, [&] {
    const auto operation = describe(kind), forward = describe(dnnl_forward_training);
    const auto type = p.wide && kind != dnnl_backward_weights ? dnnl_f32 : p.dtype;
    return make_plan(&operation, &forward, kind, plain_desc({p.rows, p.columns}, p.dtype),
                     plain_desc({p.rows, p.hidden}, type), plain_desc({p.hidden}, dnnl_f32));
  });
}

// How long rows have to be in memory so that oneDNN computes the weight's gradient at full speed. If one side
// of the weight is short, its AVX2 kernel copies nothing, and takes twice as long where rows are a multiple of
// 4 KiB apart, since they then have the same places in the cache.
inline Product with_longer_rows(Product p) {
  const bool copies = 1. / p.columns + 1. / p.hidden < 0.0038;  // as oneDNN decides
  for (int64_t* columns : {&p.columns, &p.hidden}) {
    if (p.dtype == dnnl_f32 && !copies && *columns % 1024 == 0) *columns += 16;
  }
  return p;
}

// A copy of a matrix of float32 whose rows are followed by zeros, or its own memory if none are needed
inline const void* lengthened(const void* matrix, int64_t rows, int64_t columns, int64_t length,
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

// The sums of a matrix's columns. They are added in oneDNN's order, but each row is read at once: oneDNN
// reads eight columns at a time, whose rows are far apart.
inline std::vector<float> sum_rows(const float* matrix, int64_t rows, int64_t columns) {
  constexpr int64_t kColumns = 256;
  std::vector<float> sums(columns);
#pragma omp parallel for schedule(static) if (rows * columns > 2 * kBlock)
  for (int64_t first = 0; first < columns; first += kColumns) {
    const int64_t count = std::min(kColumns, columns - first);
    for (int64_t i = 0; i < rows; ++i) kernels().add(matrix + i * columns + first, &sums[first], count);
  }
  return sums;
}

// Computes the gradients of weight and bias, `gradients` of which `req` asks for, from data and the gradient
// of the result.
inline void write_weight_gradients(Product product, const void* data, const void* grad, const Arrays& gradients,
                                   const Requests& req, bool rounds_to_half) {
  const bool wanted = product.bias && req[1] != mxnet::kNullOp;
  if (req[0] == mxnet::kNullOp && !wanted) return;
  const bool own_sums = wanted && product.dtype == dnnl_f32;
  product.bias = wanted && !own_sums;
  std::vector<float> sums(product.bias ? product.hidden : 0);
  if (own_sums) sums = sum_rows(static_cast<const float*>(grad), product.rows, product.hidden);
  if (req[0] != mxnet::kNullOp || product.bias) {
    const Product longer = with_longer_rows(product);
    const auto plan = plan_of(longer, dnnl_backward_weights);
    const bool same = longer.columns == product.columns && longer.hidden == product.hidden;
    void* direct = nullptr;
    if (same && req[0] != mxnet::kNullOp && is_plain(plan->weight)) {
      direct = parameter_gradient(gradients[0], req[0], rounds_to_half).direct();
    }
    void* packed = direct ? direct : scratch(Purpose::kWeightGradient, bytes_of(plan->weight));
    data = lengthened(data, product.rows, product.columns, longer.columns, Purpose::kImages);
    grad = lengthened(grad, product.rows, product.hidden, longer.hidden, Purpose::kResult);
    plan->primitive->execute({{DNNL_ARG_SRC, &plan->data, data},
                              {DNNL_ARG_DIFF_DST, &plan->result, grad},
                              {DNNL_ARG_DIFF_WEIGHTS, &plan->weight, packed},
                              {DNNL_ARG_DIFF_BIAS, &plan->bias, product.bias ? sums.data() : nullptr}});
    for (int64_t i = 1; longer.columns != product.columns && i < product.hidden; ++i) {
      float* rows = static_cast<float*>(packed);
      std::memmove(rows + i * product.columns, rows + i * longer.columns, product.columns * sizeof(float));
    }
    if (!direct) unpack_gradient(packed, plan->weight, req[0], rounds_to_half, gradients[0]);
  }
  if (wanted) parameter_gradient(gradients[1], req[1], rounds_to_half).write(sums);
}

}  // namespace gluon_amp
