// Optimizers' updates and the check for overflow, each in one pass over the memory of all parameters.
//
// These are operators, too, so that MXNet's engine orders them among all others. They take any number
// of arrays. Numbers are passed as the bits of float32s, which no text can spoil.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "nnvm_binary.h"
#include "parallel.h"

namespace gluon_amp {
namespace {

using mxnet::DispatchMode;
using mxnet::NDArray;
using mxnet::OpContext;

// ------------------------------------------------------------------------------ the operator's text

std::vector<uint32_t> numbers(const NodeAttrs& attrs, const std::string& name) {
  std::vector<uint32_t> found;
  // not dict.find(): its class has changed (nnvm_binary.h), but not how it is walked through
  for (const auto& item : attrs.dict) {
    if (item.first != name) continue;
    const char* text = item.second.c_str();
    while (*text) {
      char* end;
      found.push_back(std::strtoul(text, &end, 10));
      text = *end ? end + 1 : end;
    }
    return found;
  }
  LOG(FATAL) << attrs.op->name << " needs " << name;
  return found;
}

std::vector<float> floats(const NodeAttrs& attrs, const std::string& name) {
  std::vector<float> found;
  for (const uint32_t bits : numbers(attrs, name)) {
    found.emplace_back();
    std::memcpy(&found.back(), &bits, sizeof bits);
  }
  return found;
}

// -------------------------------------------------------------------------------------- the work

// Calls body(array, first, count) for pieces of many arrays of these sizes.
template <typename Body>
void over_all(const std::vector<int64_t>& sizes, Body body) {
  struct Piece {
    size_t array;
    int64_t first, count;
  };
  std::vector<Piece> pieces;
  int64_t total = 0;
  for (size_t k = 0; k < sizes.size(); ++k) {
    total += sizes[k];
    for (int64_t first = 0; first < sizes[k]; first += kBlock) {
      pieces.push_back({k, first, std::min(kBlock, sizes[k] - first)});
    }
  }
  const int64_t n = pieces.size();
#pragma omp parallel for schedule(dynamic, 4) if (total > 2 * kBlock)
  for (int64_t i = 0; i < n; ++i) body(pieces[i].array, pieces[i].first, pieces[i].count);
}

// Where an array's elements are; null for none.
struct Memory {
  void* data = nullptr;
  int64_t size = 0;
  bool half = false;
  Memory() = default;
  explicit Memory(const NDArray& array)
      : size(array.shape().Size()), half(array.dtype() == mshadow::kFloat16) {
    if (size) data = array.data().dptr_;
  }
  template <typename T>
  T* at(int64_t first) const {
    return data ? static_cast<T*>(data) + first : nullptr;
  }
};

// Output: for each input 1 if all of it is finite, else 0.
void all_finite(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests&,
                const Arrays& outputs) {
  Arrays arrays;  // keeps copies of blocked ones
  std::vector<Memory> memories;
  std::vector<int64_t> sizes;
  for (const auto& input : inputs) {
    arrays.push_back(plain_copy(input));
    memories.emplace_back(arrays.back());
    sizes.push_back(memories.back().size);
  }
  std::vector<char> answers(arrays.size(), 1);
  over_all(sizes, [&](size_t k, int64_t first, int64_t count) {
    const Memory& memory = memories[k];
    const bool finite = memory.half ? kernels().finite_half(memory.at<half_bits>(first), count)
                                    : kernels().finite(memory.at<float>(first), count);
    if (finite) return;
#pragma omp atomic write
    answers[k] = 0;
  });
  std::copy(answers.begin(), answers.end(), plain_data<float>(outputs[0]));
}

// One weight and what belongs to it, in the order of MXNet's update operators: weight, gradient,
// states, and for a float16 weight its master. A float32 weight is its own.
struct Slot {
  NDArray keeps_grad;
  Memory grad, state[2], master, weight;
};

std::vector<Slot> slots_of(const NodeAttrs& attrs, const Arrays& inputs) {
  const size_t stride = numbers(attrs, "arrays_per_weight").at(0);
  std::vector<Slot> slots(inputs.size() / stride);
  for (size_t k = 0; k < slots.size(); ++k) {
    const NDArray* own = &inputs[k * stride];
    for (size_t i = 0; i < stride; ++i) {
      CHECK_EQ(own[i].shape().Size(), own[0].shape().Size()) << attrs.op->name << ": sizes differ";
      if (i != 1) make_plain(own[i]);
    }
    Slot& slot = slots[k];
    slot.keeps_grad = plain_copy(own[1]);
    slot.grad = Memory(slot.keeps_grad);
    const bool half = own[0].dtype() == mshadow::kFloat16;
    if (half) slot.weight = Memory(own[0]);
    slot.master = Memory(half ? own[stride - 1] : own[0]);
    for (size_t i = 2; i < stride - half; ++i) slot.state[i - 2] = Memory(own[i]);
  }
  return slots;
}

// Calls body(slot, number of the slot, first, count) for pieces of all of them.
template <typename Body>
void over_slots(const std::vector<Slot>& slots, Body body) {
  std::vector<int64_t> sizes;
  for (const auto& slot : slots) sizes.push_back(slot.master.size);
  over_all(sizes,
           [&](size_t k, int64_t first, int64_t count) { body(slots[k], k, first, count); });
}

// "constants": momentum, rescale_grad, clip_gradient
void sgd_update(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests&,
                const Arrays&) {
  const std::vector<Slot> slots = slots_of(attrs, inputs);
  const auto lrs = floats(attrs, "lrs"), wds = floats(attrs, "wds");
  const auto c = floats(attrs, "constants");
  const auto run = [&](const Slot& slot, size_t k, int64_t i, int64_t count, auto* grad, auto sgd) {
    sgd(grad, slot.state[0].at<float>(i), slot.master.at<float>(i), slot.weight.at<half_bits>(i),
        count, SgdConstants{lrs.at(k), wds.at(k), c.at(0), c.at(1), c.at(2)});
  };
  over_slots(slots, [&](const Slot& slot, size_t k, int64_t i, int64_t count) {
    if (slot.grad.half) {
      run(slot, k, i, count, slot.grad.at<const half_bits>(i), kernels().sgd_half);
    } else {
      run(slot, k, i, count, slot.grad.at<const float>(i), kernels().sgd);
    }
  });
}

// "constants": beta1, beta2, epsilon, rescale_grad, clip_gradient; "decays": shares of the weights
void adam_update(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests&,
                 const Arrays&) {
  const std::vector<Slot> slots = slots_of(attrs, inputs);
  const auto lrs = floats(attrs, "lrs"), wds = floats(attrs, "wds");
  const auto decays = floats(attrs, "decays"), c = floats(attrs, "constants");
  const auto run = [&](const Slot& slot, size_t k, int64_t i, int64_t count, auto* grad, auto adam) {
    adam(grad, slot.state[0].at<float>(i), slot.state[1].at<float>(i), slot.master.at<float>(i),
         slot.weight.at<half_bits>(i), count,
         AdamConstants{lrs.at(k), wds.at(k), c.at(0), c.at(1), c.at(2), c.at(3), c.at(4),
                       decays.at(k)});
  };
  over_slots(slots, [&](const Slot& slot, size_t k, int64_t i, int64_t count) {
    if (slot.grad.half) {
      run(slot, k, i, count, slot.grad.at<const half_bits>(i), kernels().adam_half);
    } else {
      run(slot, k, i, count, slot.grad.at<const float>(i), kernels().adam);
    }
  });
}

// ------------------------------------------------------------------------------ what nnvm asks

bool infer_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  for (const int type : in) {
    CHECK(type == mshadow::kFloat32 || type == mshadow::kFloat16)
        << attrs.op->name << " takes float16 and float32";
  }
  for (int& type : out) type = mshadow::kFloat32;
  return true;
}

bool infer_storage(const NodeAttrs& attrs, NotReadable&, DispatchMode& mode, Ints& in, Ints& out) {
  for (const int type : in) {
    CHECK_EQ(type, mxnet::kDefaultStorage) << attrs.op->name << " takes dense arrays";
  }
  for (int& type : out) type = mxnet::kDefaultStorage;
  mode = DispatchMode::kFComputeEx;
  return true;
}

// Any number of inputs, which nnvm has to be told from the operator's text. The result is one number
// for each, or a single one that means nothing.
nnvm::Op* add_op(const std::string& name, const Compute& compute,
                 std::function<uint32_t(const NodeAttrs&)> count_inputs, bool one_per_array) {
  nnvm::Op* op = &register_or_get(dmlc::Registry<nnvm::Op>::Get(), name);
  op->get_num_inputs = count_inputs;
  op->num_outputs = 1;
  const auto infer_shape = [=](const NodeAttrs&, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
    out[0] = mxnet::TShape(1, one_per_array ? in.size() : 1);
    return true;
  };
  set_attr(op, "FInferShape", InferShape(infer_shape), kPriority);
  set_attr(op, "FInferType", InferType(infer_type), kPriority);
  set_attr(op, "FInferStorageType", InferStorage(infer_storage), kPriority);
  set_attr(op, "FComputeEx<cpu>", compute, kPriority);
  set_attr(op, "TIsMKLDNN", true, kPriority);
  return op;
}

uint32_t count_slots(const NodeAttrs& attrs) {
  return numbers(attrs, "arrays_per_weight").at(0) * numbers(attrs, "lrs").size();
}

// All inputs but the gradients are written.
std::vector<uint32_t> all_but_gradients(const NodeAttrs& attrs) {
  const uint32_t stride = numbers(attrs, "arrays_per_weight").at(0);
  const uint32_t arrays = count_slots(attrs);
  std::vector<uint32_t> written;
  for (uint32_t i = 0; i < arrays; ++i) {
    if (i % stride != 1) written.push_back(i);
  }
  return written;
}

}  // namespace

void register_updates() {
  const auto count_arrays = [](const NodeAttrs& attrs) {
    return numbers(attrs, "num_arrays").at(0);
  };
  add_op("_gluon_amp_all_finite", all_finite, count_arrays, true);
  for (nnvm::Op* op : {add_op("_gluon_amp_sgd_update", sgd_update, count_slots, false),
                       add_op("_gluon_amp_adam_update", adam_update, count_slots, false)}) {
    set_attr(op, "FMutateInputs", MutateInputs(all_but_gradients), kPriority);
  }
}

}  // namespace gluon_amp
