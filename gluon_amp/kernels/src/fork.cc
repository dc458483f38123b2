// A tensor with several readers as several tensors in the same memory, so that this library adds their
// gradients.
//
// nnvm inserts an ElementWiseSum for the gradients of a tensor with several readers. In bfloat16 MXNet adds
// them one by one, with conversions. The operator fork has as many inputs, all of them the tensor, as it
// has outputs, one for each reader. Its gradient for the first input is the sum. Those for the others are
// zeros, which nnvm omits from the tensor's sum.
#include <cstring>
#include <string>
#include <vector>

#include "blocked.h"
#include "kernels.h"
#include "operators.h"
#include "parallel.h"
#include "shapes.h"

namespace gluon_amp {
namespace {

uint32_t readers_of(const NodeAttrs& attrs) { return count_of(attrs, "num_outputs"); }

void fork(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
          const Arrays& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (req[i] == mxnet::kNullOp) continue;
    CHECK_NE(req[i], mxnet::kAddTo);
    const NDArray plain = plain_copy(inputs[i]);
    const char* in = values_of<char>(plain);
    char* out = result_of<char>(outputs[i]);
    if (in == out) continue;
    const int64_t bytes = plain.shape().Size() * mshadow::mshadow_sizeof(plain.dtype());
    in_parallel(bytes, [&](int64_t first, int64_t count) {
      std::memcpy(out + first, in + first, count);
    });
  }
}

void sum_all(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
         const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  Arrays plain;
  for (const auto& input : inputs) plain.push_back(plain_copy(input));
  if (req[0] == mxnet::kAddTo) {
    make_plain(outputs[0]);
    plain.push_back(outputs[0]);
  }
  with_elements(element_of(attrs, outputs[0]), [&](auto value) {
    using T = decltype(value);
    std::vector<const T*> values;
    for (const auto& array : plain) values.push_back(values_of<T>(array));
    T* out = result_of<T>(outputs[0]);
    const Sum<T> sum = kernels().moves->sum.of(value);
    in_parallel(outputs[0].shape().Size(), [&](int64_t first, int64_t count) {
      sum(values.data(), values.size(), out, first, first + count);
    });
  });
}

}  // namespace

void register_fork() {
  // Each output shares the memory of one input, and the sum that of any of its inputs.
  const auto in_place = [](int step) {
    return InplaceOption([step](const NodeAttrs& attrs) {
      std::vector<std::pair<int, int>> pairs;
      for (uint32_t i = 0; i < readers_of(attrs); ++i) pairs.emplace_back(i, i * step);
      return pairs;
    });
  };
  const auto identical = [](const NodeAttrs& attrs) {
    return std::vector<bool>(readers_of(attrs), true);
  };
  nnvm::Op* op = add_op("_gluon_amp_fork", readers_of, readers_of, fork, infer_one_shape, infer_one_dtype);
  set_attr(op, "FInplaceOption", in_place(1), kPriority);
  set_attr(op, "FInplaceIdentity", InplaceIdentity(identical), kPriority);
  const auto and_zeros = [](const ObjectPtr& node, const Entries& sum) {
    Entries gradients = sum;
    const Entries& inputs = inputs_of(node);
    for (size_t i = 1; i < inputs.size(); ++i) {
      gradients.push_back(make_grad_node("zeros_like", node, {inputs[i]}, {})[0]);
    }
    return gradients;
  };
  nnvm::Op* grad = add_gradient(op, readers_of, sum_all, only_gradients, and_zeros);
  grad->get_num_outputs = Arity(1).count();
  set_attr(grad, "FInplaceOption", in_place(0), kPriority);
}

}  // namespace gluon_amp
