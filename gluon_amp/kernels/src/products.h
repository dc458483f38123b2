// What the operators of matrix products share: primitives of oneDNN, which read weights and biases as
// the parameters are stored, and write their gradients in that form.
#pragma once

#include <cstring>
#include <map>
#include <vector>

#include "blocked.h"
#include "memory.h"
#include "onednn.h"
#include "operators.h"
#include "packed_weights.h"
#include "values.h"

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

// How a product computes: the values of its arrays, whether bfloat16 is widened to float32 for it, and
// whether arrays of float32 hold the values of bfloat16
struct Precision {
  Element element;
  bool widens, wide_values = false;

  Precision(Element of_arrays) : element(of_arrays), widens(false) {}
  Precision(const NodeAttrs& attrs, const NDArray& array)
      : element(element_of(attrs, array)),
        widens(element == Element::kBfloat && flag_of(attrs, "in_float32")) {}

  // Of the primitive
  dnnl_data_type_t dtype() const {
    return element == Element::kBfloat && !widens && !wide_values ? dnnl_bf16 : dnnl_f32;
  }
  int bytes() const { return dtype() == dnnl_bf16 ? 2 : 4; }
  Element computed() const { return widens ? Element::kSingle : element; }
  bool rounds_to_half() const { return element == Element::kHalf; }
  // Of results
  Rounding rounding() const {
    const Format* format = element == Element::kBfloat ? &kBfloat16 : rounds_to_half() ? &kFloat16 : nullptr;
    return {format, format};
  }
};

// With the attribute `bfloat_values`, arrays of float32 hold the values of bfloat16.
inline Precision precision_of(const NodeAttrs& attrs, const NDArray& array) {
  Precision p(attrs, array);
  if (!flag_of(attrs, "bfloat_values")) return p;
  CHECK_EQ(array.dtype(), mshadow::kFloat32) << attrs.op->name << ": bfloat_values expects float32 arrays";
  p.element = Element::kBfloat;
  p.wide_values = true;
  return p;
}

// The type in which values are stored that are widened only where they are read
inline dnnl_data_type_t stored_type(Element element) {
  return element == Element::kBfloat ? dnnl_bf16 : element == Element::kHalf ? dnnl_f16 : dnnl_f32;
}

// The values of an array as the primitive reads them
inline const void* read(const Precision& p, const char* stored, int64_t n, Purpose purpose) {
  if (!p.widens) return stored;
  auto* wide = static_cast<float*>(scratch(purpose, n * sizeof(float)));
  in_parallel(n, [&](int64_t first, int64_t count) {
    to_floats(stored, mshadow::kBfloat16, first, wide + first, count);
  });
  return wide;
}
inline const void* read(const Precision& p, const NDArray& array, Purpose purpose) {
  return read(p, values_of<char>(array), array.shape().Size(), purpose);
}

// The bias of a product's inputs in float32, as oneDNN reads it, rounded as the data; without a bias, no
// memory
class Bias {
 public:
  Bias(const Precision& p, const Arrays& inputs) {
    if (inputs.size() < 3) return;
    const NDArray& bias = inputs[2];
    const WideParameter wide(bias);
    const int64_t n = wide.size();
    values_.assign(wide.data(), wide.data() + n);
    if (p.element == Element::kSingle) return;
    const bool to_bfloat = p.element == Element::kBfloat && bias.dtype() == mshadow::kFloat32;
    kernels().round(values_.data(), values_.data(), n, to_bfloat ? kBfloat16 : kFloat16);
  }
  const float* data() const { return values_.empty() ? nullptr : values_.data(); }

 private:
  std::vector<float> values_;
};

// The images themselves, or a copy in blocks of other lanes, in memory that the next copy for the same purpose
// reuses
inline const void* moved(Purpose purpose, const void* images, const Blocked& from, const Blocked& to,
                         int64_t channels, int bytes) {
  if (from.lanes == to.lanes) return images;
  void* copy = scratch(purpose, to.size() * bytes);
  change_lanes(images, from, copy, to, channels, bytes);
  return copy;
}

inline dnnl_prop_kind_t forward_kind(const OpContext& context) {
  return context.is_train ? dnnl_forward_training : dnnl_forward_inference;
}

inline Result result_for(const Precision& p, const NDArray& array, OpReqType req) {
  return Result(array, req, p.rounding(), p.widens);
}

// ------------------------------------------------------------------------------------- operators

// The arrays of a product: data, weight and bias
inline uint32_t product_inputs(const NodeAttrs& attrs) { return flag_of(attrs, "no_bias") ? 2 : 3; }

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

// How long a node's weight is kept that is used in each pass
inline Kept kept_of(const NodeAttrs& attrs) {
  return flag_of(attrs, "variable_weight") ? Kept::kUntilWritten : Kept::kWhileRead;
}

// The gradients of weight and bias from no images
inline void write_zero_gradients(const Requests& req, const Arrays& outputs) {
  for (size_t i = 1; i < outputs.size(); ++i) write_zeros(outputs[i], req[i]);
}

// Adds the operator of a product and its gradient, which reads the gradient of the result, data and weight.
inline void add_product(const std::string& name, const Compute& compute, const InferShape& infer,
                        const Compute& compute_grad) {
  nnvm::Op* op = add_op(name, product_inputs, 1, compute, infer, infer_product_type);
  add_gradient(op, 3, compute_grad, and_inputs<2>);
}

}  // namespace gluon_amp
