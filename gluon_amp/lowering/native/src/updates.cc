// Optimizers' updates and the check for overflow, each in one pass over the memory of all parameters.
//
// These are operators, too, so that MXNet's engine orders them among all others. They take any number
// of arrays. Numbers are passed as the bits of float32s, which no text can spoil.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "operators.h"
#include "parallel.h"

namespace gluon_amp {
namespace {

// ------------------------------------------------------------------------------ the operator's text

// Decimal numbers below 2**32, separated by commas.
std::vector<uint32_t> numbers(const NodeAttrs& attrs, const std::string& name) {
  // not dict.find(): its class has changed (nnvm_binary.h), but not how it is walked through
  for (const auto& item : attrs.dict) {
    if (item.first != name) continue;
    std::vector<uint32_t> found;
    uint64_t number = 0;
    bool digits = false;
    for (const char* next = item.second.c_str();; ++next) {
      if ('0' <= *next && *next <= '9') {
        number = 10 * number + (*next - '0');
        digits = true;
        CHECK_LE(number, UINT32_MAX) << attrs.op->name << ": " << name << " has too large a number";
        continue;
      }
      CHECK(digits && (*next == ',' || *next == 0))
          << attrs.op->name << ": " << name << " must be whole numbers with commas between them";
      found.push_back(static_cast<uint32_t>(number));
      if (*next == 0) return found;
      number = 0;
      digits = false;
    }
  }
  LOG(FATAL) << attrs.op->name << " needs " << name;
  return {};
}

std::vector<float> floats(const NodeAttrs& attrs, const std::string& name, size_t count) {
  std::vector<float> found;
  for (const uint32_t bits : numbers(attrs, name)) {
    found.emplace_back();
    std::memcpy(&found.back(), &bits, sizeof bits);
  }
  CHECK_EQ(found.size(), count) << attrs.op->name << ": " << name << " has the wrong length";
  return found;
}

constexpr size_t kMostArrays = 1 << 20;

uint32_t count_arrays(const NodeAttrs& attrs) {
  const auto count = numbers(attrs, "num_arrays");
  CHECK(count.size() == 1 && 1 <= count[0] && count[0] <= kMostArrays)
      << attrs.op->name << ": num_arrays must be 1 to " << kMostArrays;
  return count[0];
}

// What distinguishes one optimizer's update from another's. Each weight has, in the order of MXNet's
// update operators: itself, its gradient, its states, and if it is float16 its master.
struct Rule {
  uint32_t fewest_states, most_states, constants;
  bool decays;
};

// Constants: momentum, rescale_grad, clip_gradient.
constexpr Rule kSgd{0, 1, 3, false};
// Constants: beta1, beta2, epsilon, rescale_grad, clip_gradient. "decays": shares of the weights.
constexpr Rule kAdam{2, 2, 5, true};

uint32_t arrays_per_weight(const NodeAttrs& attrs, const Rule& rule) {
  const auto found = numbers(attrs, "arrays_per_weight");
  CHECK(found.size() == 1 && 2 + rule.fewest_states <= found[0] && found[0] <= 3 + rule.most_states)
      << attrs.op->name << ": arrays_per_weight must be " << 2 + rule.fewest_states << " to "
      << 3 + rule.most_states;
  return found[0];
}

// The checked text of an update: one learning rate, weight decay and decay for each weight.
struct Numbers {
  uint32_t stride;
  size_t weights;
  std::vector<float> lrs, wds, decays, constants;

  Numbers(const NodeAttrs& attrs, const Rule& rule)
      : stride(arrays_per_weight(attrs, rule)),
        weights(numbers(attrs, "lrs").size()),
        lrs(floats(attrs, "lrs", weights)),
        wds(floats(attrs, "wds", weights)),
        constants(floats(attrs, "constants", rule.constants)) {
    if (rule.decays) decays = floats(attrs, "decays", weights);
  }
};

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
void all_finite(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
                const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
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

// One weight and what belongs to it; a float32 weight is its own master.
struct Slot {
  NDArray keeps_grad;
  Memory grad, state[2], master, weight;
};

std::vector<Slot> slots_of(const Arrays& inputs, size_t stride) {
  std::vector<Slot> slots(inputs.size() / stride);
  for (size_t k = 0; k < slots.size(); ++k) {
    const NDArray* own = &inputs[k * stride];
    for (size_t i = 0; i < stride; ++i) {
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

void sgd_update(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests&,
                const Arrays&) {
  const Numbers given(attrs, kSgd);
  const std::vector<Slot> slots = slots_of(inputs, given.stride);
  const auto& c = given.constants;
  const auto run = [&](const Slot& slot, size_t k, int64_t i, int64_t count, auto* grad, auto sgd) {
    sgd(grad, slot.state[0].at<float>(i), slot.master.at<float>(i), slot.weight.at<half_bits>(i),
        count, SgdConstants{given.lrs[k], given.wds[k], c[0], c[1], c[2]});
  };
  over_slots(slots, [&](const Slot& slot, size_t k, int64_t i, int64_t count) {
    if (slot.grad.half) {
      run(slot, k, i, count, slot.grad.at<const half_bits>(i), kernels().sgd_half);
    } else {
      run(slot, k, i, count, slot.grad.at<const float>(i), kernels().sgd);
    }
  });
}

void adam_update(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests&,
                 const Arrays&) {
  const Numbers given(attrs, kAdam);
  const std::vector<Slot> slots = slots_of(inputs, given.stride);
  const auto& c = given.constants;
  const auto run = [&](const Slot& slot, size_t k, int64_t i, int64_t count, auto* grad, auto adam) {
    adam(grad, slot.state[0].at<float>(i), slot.state[1].at<float>(i), slot.master.at<float>(i),
         slot.weight.at<half_bits>(i), count,
         AdamConstants{given.lrs[k], given.wds[k], c[0], c[1], c[2], c[3], c[4], given.decays[k]});
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

bool takes(int type) { return type == mshadow::kFloat32 || type == mshadow::kFloat16; }

bool infer_finite_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  for (const int type : in) CHECK(takes(type)) << attrs.op->name << " takes float16 and float32";
  out.at(0) = mshadow::kFloat32;
  return true;
}

bool infer_finite_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  expect_inputs(attrs, count_arrays(attrs), in.size());
  out.at(0) = mxnet::TShape(1, in.size());
  return true;
}

// A number that means nothing is the result of an update. Its arrays are written in place.
void add_update(const std::string& name, const Compute& compute, const Rule& rule) {
  const auto infer_shape = [=](const NodeAttrs& attrs, mxnet::ShapeVector& in,
                               mxnet::ShapeVector& out) {
    const Numbers given(attrs, rule);
    expect_inputs(attrs, given.stride * given.weights, in.size());
    bool known = true;
    for (size_t first = 0; first < in.size(); first += given.stride) {
      std::vector<mxnet::TShape*> shapes;
      for (size_t i = 0; i < given.stride; ++i) shapes.push_back(&in[first + i]);
      known = unify(attrs, shapes) && known;
    }
    out.at(0) = mxnet::TShape(1, 1);
    return known;
  };
  const auto infer_type = [=](const NodeAttrs& attrs, Ints& in, Ints& out) {
    const uint32_t stride = arrays_per_weight(attrs, rule);
    CHECK_EQ(in.size() % stride, 0U) << attrs.op->name << " takes " << stride << " arrays a weight";
    for (size_t first = 0; first < in.size(); first += stride) {
      CHECK(takes(in[first]) && takes(in[first + 1]))
          << attrs.op->name << " takes float16 and float32";
      for (size_t i = 2; i < stride; ++i) {
        CHECK_EQ(in[first + i], mshadow::kFloat32)
            << attrs.op->name << ": states and masters are float32";
      }
      const uint32_t states = stride - 2 - (in[first] == mshadow::kFloat16);
      CHECK(rule.fewest_states <= states && states <= rule.most_states)
          << attrs.op->name << ": arrays_per_weight does not suit the weight's dtype";
    }
    out.at(0) = mshadow::kFloat32;
    return true;
  };
  nnvm::Op* op = add_op(name, compute, infer_shape, infer_type);
  op->get_num_inputs = [=](const NodeAttrs& attrs) {
    const uint64_t arrays = arrays_per_weight(attrs, rule) * numbers(attrs, "lrs").size();
    CHECK_LE(arrays, kMostArrays) << attrs.op->name << " takes at most " << kMostArrays << " arrays";
    return static_cast<uint32_t>(arrays);
  };
  const auto all_but_gradients = [=](const NodeAttrs& attrs) {
    const uint32_t stride = arrays_per_weight(attrs, rule);
    const uint32_t arrays = stride * numbers(attrs, "lrs").size();
    std::vector<uint32_t> written;
    for (uint32_t i = 0; i < arrays; ++i) {
      if (i % stride != 1) written.push_back(i);
    }
    return written;
  };
  set_attr(op, "FMutateInputs", MutateInputs(all_but_gradients), kPriority);
}

}  // namespace

void register_updates() {
  add_op("_gluon_amp_all_finite", all_finite, infer_finite_shape, infer_finite_type)
      ->get_num_inputs = count_arrays;
  add_update("_gluon_amp_sgd_update", sgd_update, kSgd);
  add_update("_gluon_amp_adam_update", adam_update, kAdam);
}

}  // namespace gluon_amp
