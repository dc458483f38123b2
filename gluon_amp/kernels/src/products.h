// What the operators of matrix products share: primitives of oneDNN, which read weights and biases as
// the parameters are stored, and write their gradients in that form.
#pragma once

#include <cstring>
#include <map>
#include <vector>

#include "blocked.h"
#include "onednn.h"
#include "packed_weights.h"
#include "parameters.h"
#include "shapes.h"

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

// Plans are kept, as creating one takes longer than a small layer. Each thread has its own: a primitive
// owns temporary memory, so that only one thread at a time may execute it.
class Plans {
 public:
  template <typename Make>
  std::shared_ptr<const Plan> find_or_make(const Sizes& key, Make make) {
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    if (plans_.size() >= kMost) plans_.clear();
    return plans_[key] = make();
  }

 private:
  static constexpr size_t kMost = 4096;
  std::map<Sizes, std::shared_ptr<const Plan>> plans_;
};

inline dnnl_data_type_t dtype_of(const NDArray& array) {
  return array.dtype() == mshadow::kBfloat16 ? dnnl_bf16 : dnnl_f32;
}

// The bias of a product's inputs in float32, as oneDNN reads it, rounded as the data; without a bias, no
// memory
class Bias {
 public:
  explicit Bias(const Arrays& inputs) {
    if (inputs.size() < 3) return;
    const NDArray& bias = inputs[2];
    const WideParameter wide(bias);
    const int64_t n = wide.size();
    values_.resize(n);
    if (inputs[0].dtype() == mshadow::kBfloat16 && bias.dtype() == mshadow::kFloat32) {
      std::vector<Bfloat> rounded(n);
      kernels().to_bfloat(wide.data(), rounded.data(), n);
      kernels().from_bfloat(rounded.data(), values_.data(), n);
    } else {
      kernels().round(wide.data(), values_.data(), n, kFloat16);
    }
  }
  const float* data() const { return values_.empty() ? nullptr : values_.data(); }

 private:
  std::vector<float> values_;
};

// The emulation's float16: rounds float32 results of oneDNN.
inline void round_floats(float* values, int64_t n) {
  in_parallel(n, [&](int64_t first, int64_t count) {
    kernels().round(values + first, values + first, count, kFloat16);
  });
}

inline void round_values(const NDArray& array) {
  if (array.dtype() == mshadow::kFloat32) round_floats(plain_data<float>(array), array.shape().Size());
}

// Copies images from the plain layout to the blocked one, or back, into memory that the next copy for the
// same purpose reuses.
inline const void* moved(Purpose purpose, bool from_plain, const NDArray& images, int64_t channels,
                         const Blocked& shape) {
  const int bytes = size_of_value(images);
  void* copy = scratch(purpose, shape.size() * bytes);
  (from_plain ? to_blocked : to_plain)(values_of<void>(images), copy, channels, shape, bytes);
  return copy;
}

inline dnnl_prop_kind_t forward_kind(const OpContext& context) {
  return context.is_train ? dnnl_forward_training : dnnl_forward_inference;
}

// Where a gradient of the data is computed: the array itself, or memory that is added to it afterwards.
class Result {
 public:
  Result(const NDArray& array, OpReqType req) : array_(array) {
    const int64_t bytes = array.shape().Size() * mshadow::mshadow_sizeof(array.dtype());
    if (req == mxnet::kAddTo) added_.resize(bytes);
  }
  void* data() { return added_.empty() ? result_of<char>(array_) : added_.data(); }

  // Rounds the values to float16, if they are float32, and adds them.
  void finish() {
    if (array_.dtype() == mshadow::kFloat32) round_floats(static_cast<float*>(data()), array_.shape().Size());
    add();
  }

  // Adds values that are rounded already.
  void add() {
    if (added_.empty()) return;
    make_plain(array_);
    void* sum = result_of<char>(array_);
    add_arrays(array_.dtype(), {sum, added_.data()}, sum, array_.shape().Size());
  }

 private:
  const NDArray array_;
  std::vector<char> added_;
};

// ------------------------------------------------------------------------------------- operators

// The arrays of a product: data, weight and bias
inline uint32_t product_inputs(const NodeAttrs& attrs) { return flag_of(attrs, "no_bias") ? 2 : 3; }

inline bool is_weight_type(int type) { return type == mshadow::kFloat32 || type == mshadow::kFloat16; }

inline bool infer_product_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  expect_inputs(attrs, product_inputs(attrs), in.size());
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

// The gradients of weight and bias from no images
inline void write_zero_gradients(const Requests& req, const Arrays& outputs) {
  for (size_t i = 1; i < outputs.size(); ++i) {
    write_gradient(std::vector<float>(outputs[i].shape().Size()), req[i], false, outputs[i]);
  }
}

// Adds the operator of a product and its gradient, which reads the gradient of the result, data and weight.
inline void add_product(const std::string& name, const Compute& compute, const InferShape& infer,
                        const Compute& compute_grad) {
  nnvm::Op* op = add_op(name, compute, infer, infer_product_type);
  op->get_num_inputs = product_inputs;
  const auto read = [](const ObjectPtr& node, const Entries& grads) {
    const Entries& inputs = inputs_of(node);
    expect_inputs(node->attrs, product_inputs(node->attrs), inputs.size());
    return Entries{grads[0], inputs[0], inputs[1]};
  };
  nnvm::Op* grad = add_gradient(op, compute_grad, read);
  grad->num_inputs = 3;
  grad->get_num_outputs = product_inputs;
}

}  // namespace gluon_amp
