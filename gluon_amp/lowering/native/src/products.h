// What the operators of matrix products share: primitives of oneDNN, which read weights and biases as
// the parameters are stored, and write their gradients in that form.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "blocked.h"
#include "kernels.h"
#include "onednn.h"
#include "packed_weights.h"
#include "parallel.h"

namespace gluon_amp {

using Sizes = std::vector<int64_t>;

// A primitive and the layouts of its arrays
struct Plan {
  std::shared_ptr<Primitive> primitive;
  dnnl_memory_desc_t data, result, bias, weight;
};

// `operation` and `forward` are descriptions of an operation of `kind`, and of its forward pass.
inline std::shared_ptr<const Plan> make_plan(const void* operation, const void* forward,
                                             dnnl_prop_kind_t kind, const dnnl_memory_desc_t& data,
                                             const dnnl_memory_desc_t& result,
                                             const dnnl_memory_desc_t& bias) {
  auto plan = std::make_shared<Plan>();
  std::shared_ptr<Primitive> hint;
  if (kind == dnnl_backward_data || kind == dnnl_backward_weights) hint = Primitive::create(forward);
  plan->primitive = Primitive::create(operation, hint.get());
  CHECK(plan->primitive) << "oneDNN does not support this product";
  plan->data = data;
  plan->result = result;
  plan->bias = bias;
  plan->weight = plan->primitive->query(kind == dnnl_backward_weights ? dnnl_query_diff_weights_md
                                                                      : dnnl_query_weights_md);
  return plan;
}

// Plans are kept, as creating one takes longer than a small layer.
class Plans {
 public:
  template <typename Make>
  std::shared_ptr<const Plan> find_or_make(const Sizes& key, Make make) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    if (plans_.size() >= kMost) plans_.clear();
    return plans_[key] = make();
  }

 private:
  static constexpr size_t kMost = 4096;
  std::mutex mutex_;
  std::map<Sizes, std::shared_ptr<const Plan>> plans_;
};

inline dnnl_data_type_t dtype_of(const NDArray& array) {
  return array.dtype() == mshadow::kBfloat16 ? dnnl_bf16 : dnnl_f32;
}

// A bias in float32, as oneDNN reads it, rounded as the data
class Bias {
 public:
  Bias(const NDArray& bias, int dtype) : values_(bias.shape().Size()) {
    const NDArray plain = plain_copy(bias);
    const int64_t n = values_.size();
    if (plain.dtype() == mshadow::kFloat16) {
      kernels().widen(plain_data<half_bits>(plain), values_.data(), n);
    } else if (dtype == mshadow::kBfloat16) {
      std::vector<Bfloat> rounded(n);
      kernels().to_bfloat(plain_data<float>(plain), rounded.data(), n);
      kernels().from_bfloat(rounded.data(), values_.data(), n);
    } else {
      kernels().round(plain_data<float>(plain), values_.data(), n);
    }
  }
  const float* data() const { return values_.data(); }

 private:
  std::vector<float> values_;
};

// Writes the gradient of a bias, rounded to float16 if the array has this dtype or `emulated`.
inline void write_bias_grad(float* values, OpReqType req, bool emulated, const NDArray& output) {
  if (req == mxnet::kNullOp) return;
  const int64_t n = output.shape().Size();
  if (emulated) kernels().round(values, values, n);
  const bool adds = req == mxnet::kAddTo;
  if (output.dtype() == mshadow::kFloat32) {
    float* out = result_of<float>(output);
    return adds ? kernels().add(values, out, n) : (void)std::memcpy(out, values, n * sizeof(float));
  }
  std::vector<half_bits> rounded(n);
  half_bits* out = result_of<half_bits>(output);
  kernels().narrow(values, adds ? rounded.data() : out, n);
  if (adds) kernels().add_half(rounded.data(), out, n);
}

// The emulation's float16: rounds float32 results of oneDNN.
inline void round_values(const NDArray& array) {
  if (array.dtype() != mshadow::kFloat32) return;
  float* values = plain_data<float>(array);
  in_parallel(array.shape().Size(), [&](int64_t first, int64_t count) {
    kernels().round(values + first, values + first, count);
  });
}

// A copy in float32 of bfloat16 values
inline std::vector<float> widened(const void* values, int64_t count) {
  std::vector<float> wide(count);
  kernels().from_bfloat(static_cast<const Bfloat*>(values), wide.data(), count);
  return wide;
}

// ----------------------------------------------------------------------------------------- dtypes

inline bool is_weight_type(int type) { return type == mshadow::kFloat32 || type == mshadow::kFloat16; }

inline bool infer_product_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  int& type = in.at(0);
  if (type == -1) type = out.at(0);
  if (type == -1) return false;
  CHECK(type == mshadow::kFloat32 || type == mshadow::kBfloat16) << attrs.op->name << ": dtype " << type;
  CHECK(out[0] == -1 || out[0] == type) << attrs.op->name << ": the result has another dtype";
  out[0] = type;
  for (size_t i = 1; i < in.size(); ++i) {
    if (in[i] == -1) in[i] = mshadow::kFloat32;
    CHECK(is_weight_type(in[i])) << attrs.op->name << ": weights of dtype " << in[i];
  }
  return true;
}

inline bool infer_product_grad_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  expect_inputs(attrs, 3, in.size());
  Ints read{in[1], in[2]}, result{in[0]};
  if (out.size() == 3) read.push_back(out[2]);
  const bool known = infer_product_type(attrs, read, result);
  in = {result[0], read[0], read[1]};
  out = read;
  return known;
}

// Adds the operator of a product and its gradient. The operator reads data, weight and bias; the gradient
// reads the gradient of the result, data and weight.
inline void add_product(const std::string& name, const Compute& compute, const InferShape& infer,
                        const Compute& compute_grad, const InferShape& infer_grad) {
  const std::string backward = "_backward" + name;
  const auto arrays = [](const NodeAttrs& attrs) { return flag_of(attrs, "no_bias") ? 2u : 3u; };
  nnvm::Op* op = add_op(name, compute, infer, infer_product_type);
  op->get_num_inputs = arrays;
  const auto gradient = [=](const ObjectPtr& node, const Entries& grads) {
    const Entries& inputs = inputs_of(node);
    return make_grad_node(backward.c_str(), node, {grads[0], inputs[0], inputs[1]}, node->attrs.dict);
  };
  set_attr(op, "FGradient", Gradient(gradient), kPriority);
  nnvm::Op* grad = add_op(backward, compute_grad, infer_grad, infer_product_grad_type);
  grad->num_inputs = 3;
  grad->get_num_outputs = arrays;
  set_attr(grad, "TIsBackward", true, kPriority);
}

}  // namespace gluon_amp
