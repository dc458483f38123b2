// Optimizers' updates and the check for overflow, each in one pass over the memory of all parameters.
//
// They are operators, so that MXNet's engine orders them among all others, and have any number of
// arrays. Numbers are passed as the bits of float32, so that conversion to text does not change them.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "arrays.h"
#include "attributes.h"
#include "kernels.h"
#include "operators.h"
#include "parallel.h"

namespace gluon_amp {
namespace {

// --------------------------------------------------------------------------- the operator's attributes

// Numbers below 2**32, separated by commas
std::vector<uint32_t> numbers(const NodeAttrs& attrs, const std::string& name) {
  const auto integers = integers_of(attrs, name);
  CHECK(!integers.empty()) << attrs.op->name << " needs " << name;
  for (const int64_t number : integers) {
    CHECK(0 <= number && number <= UINT32_MAX) << attrs.op->name << ": " << name << " has " << number;
  }
  return std::vector<uint32_t>(integers.begin(), integers.end());
}

std::vector<float> floats(const NodeAttrs& attrs, const std::string& name, size_t count) {
  std::vector<float> result;
  for (const uint32_t bits : numbers(attrs, name)) {
    result.emplace_back();
    std::memcpy(&result.back(), &bits, sizeof bits);
  }
  CHECK_EQ(result.size(), count) << attrs.op->name << ": " << name << " has the wrong length";
  return result;
}

// One number from `least` to `most`
uint32_t number(const NodeAttrs& attrs, const std::string& name, uint32_t least, uint32_t most) {
  const auto all = numbers(attrs, name);
  CHECK(all.size() == 1 && least <= all[0] && all[0] <= most)
      << attrs.op->name << ": " << name << " must be " << least << " to " << most;
  return all[0];
}

constexpr uint32_t kMostArrays = 1 << 20;

uint32_t count_arrays(const NodeAttrs& attrs) { return number(attrs, "num_arrays", 1, kMostArrays); }

// How the updates of the optimizers differ. The arrays of each weight, in the order of MXNet's update
// operators, are the weight, its gradient, its states, and its master if the weight is float16.
struct Rule {
  uint32_t fewest_states, most_states;
  size_t constants;  // rescale_grad, clip_gradient, and the last ones of UpdateConstants
  Update<float> Kernels::*update;
  Update<half_bits> Kernels::*update_half;
};

constexpr Rule kSgd{0, 1, 3, &Kernels::sgd, &Kernels::sgd_half};
constexpr Rule kAdam{2, 2, 5, &Kernels::adam, &Kernels::adam_half};
// Its first array is a master, and its gradient is the float16 weight.
constexpr Rule kSync{0, 0, 1, nullptr, &Kernels::sync_half};

uint32_t arrays_per_weight(const NodeAttrs& attrs, const Rule& rule) {
  return number(attrs, "arrays_per_weight", 2 + rule.fewest_states, 3 + rule.most_states);
}

// The attributes of an update, checked: each weight has a learning rate, weight decay and decoupled decay.
struct Numbers {
  uint32_t stride;
  size_t weights;
  std::vector<float> lrs, wds, decays, constants;

  Numbers(const NodeAttrs& attrs, const Rule& rule)
      : stride(arrays_per_weight(attrs, rule)),
        weights(numbers(attrs, "lrs").size()),
        lrs(floats(attrs, "lrs", weights)),
        wds(floats(attrs, "wds", weights)),
        decays(floats(attrs, "decays", weights)),
        constants(floats(attrs, "constants", rule.constants)) {
    constants.resize(5);
  }

  UpdateConstants of(size_t k) const {
    const auto& c = constants;
    return {lrs[k], wds[k], decays[k], c[0], c[1], c[2], c[3], c[4]};
  }
};

// -------------------------------------------------------------------------------------- the work

// Calls body(array, first, count) for pieces of all arrays; `sizes` are their numbers of elements.
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

// The memory of an array's elements; null if there are none.
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

// Output: for each input 1 if all its elements are finite, otherwise 0.
void all_finite(const NodeAttrs&, const OpContext&, const Arrays& inputs, const Requests& req,
                const Arrays& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  Arrays arrays;  // holds the plain copies of blocked arrays
  std::vector<Memory> memories;
  std::vector<int64_t> sizes;
  for (const auto& input : inputs) {
    arrays.push_back(plain_copy(input));
    memories.emplace_back(arrays.back());
    sizes.push_back(memories.back().size);
  }
  std::vector<char> results(arrays.size(), 1);
  over_all(sizes, [&](size_t k, int64_t first, int64_t count) {
    const Memory& memory = memories[k];
    const bool finite = memory.half ? kernels().finite_half(memory.at<half_bits>(first), count)
                                    : kernels().finite(memory.at<float>(first), count);
    if (finite) return;
#pragma omp atomic write
    results[k] = 0;
  });
  std::copy(results.begin(), results.end(), plain_data<float>(outputs[0]));
}

// The memory of one weight and its other arrays; a float32 weight is its own master.
struct Slot {
  NDArray grad_array;  // keeps the memory of `grad` alive
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
    slot.grad_array = plain_copy(own[1]);
    slot.grad = Memory(slot.grad_array);
    const bool half = own[0].dtype() == mshadow::kFloat16;
    if (half) slot.weight = Memory(own[0]);
    slot.master = Memory(half ? own[stride - 1] : own[0]);
    for (size_t i = 2; i < stride - half; ++i) slot.state[i - 2] = Memory(own[i]);
  }
  return slots;
}

void update(const NodeAttrs& attrs, const Arrays& inputs, const Rule& rule) {
  const Numbers parsed(attrs, rule);
  const std::vector<Slot> slots = slots_of(inputs, parsed.stride);
  std::vector<int64_t> sizes;
  for (const auto& slot : slots) sizes.push_back(slot.master.size);
  over_all(sizes, [&](size_t k, int64_t i, int64_t count) {
    const Slot& slot = slots[k];
    const auto run = [&](auto* grad, auto by_optimizer) {
      by_optimizer(grad, slot.state[0].at<float>(i), slot.state[1].at<float>(i), slot.master.at<float>(i),
                   slot.weight.at<half_bits>(i), count, parsed.of(k));
    };
    if (slot.grad.half) {
      run(slot.grad.at<const half_bits>(i), kernels().*rule.update_half);
    } else {
      run(slot.grad.at<const float>(i), kernels().*rule.update);
    }
  });
}

size_t arrays_per_sum(const NodeAttrs& attrs) {
  const uint32_t count = number(attrs, "arrays_per_sum", 1, kMostArrays);
  CHECK_EQ(count_arrays(attrs) % count, 0u) << attrs.op->name << ": arrays_per_sum must divide num_arrays";
  return count;
}

// Sets the arrays of each group to the sum of the group, of which each array is multiplied by a factor before.
void sum(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests&, const Arrays&) {
  const size_t stride = arrays_per_sum(attrs);
  const float factor = floats(attrs, "factor", 1)[0];
  std::vector<half_bits*> arrays;
  std::vector<int64_t> sizes;
  for (const auto& input : inputs) {
    make_plain(input);
    const Memory memory(input);
    if (arrays.size() % stride == 0) sizes.push_back(memory.size);
    arrays.push_back(memory.at<half_bits>(0));
  }
  over_all(sizes, [&](size_t k, int64_t first, int64_t count) {
    kernels().sum_half(&arrays[k * stride], stride, first, first + count, factor);
  });
}

// -------------------------------------------------------------------------------- registering

bool supported(int type) { return type == mshadow::kFloat32 || type == mshadow::kFloat16; }

bool infer_finite_type(const NodeAttrs& attrs, Ints& in, Ints& out) {
  for (const int type : in) CHECK(supported(type)) << attrs.op->name << " expects float16 or float32";
  out.at(0) = mshadow::kFloat32;
  return true;
}

bool infer_finite_shape(const NodeAttrs&, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  out.at(0) = mxnet::TShape(1, in.size());
  return true;
}

// Sets the known sizes of the arrays of each group. The operator returns one meaningless number, since nnvm
// requires an output.
bool unify_groups(const NodeAttrs& attrs, size_t stride, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  bool known = true;
  for (size_t first = 0; first < in.size(); first += stride) {
    std::vector<mxnet::TShape*> shapes;
    for (size_t i = 0; i < stride; ++i) shapes.push_back(&in[first + i]);
    known = unify(attrs, shapes) && known;
  }
  out.at(0) = mxnet::TShape(1, 1);
  return known;
}

bool infer_sum_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  return unify_groups(attrs, arrays_per_sum(attrs), in, out);
}

std::vector<uint32_t> all_arrays(const NodeAttrs& attrs) {
  std::vector<uint32_t> all(count_arrays(attrs));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Adds an update, which writes its arrays in place.
void add_update(const std::string& name, const Rule& rule) {
  const auto compute = [=](const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests&,
                           const Arrays&) { update(attrs, inputs, rule); };
  const auto infer_shape = [=](const NodeAttrs& attrs, mxnet::ShapeVector& in,
                               mxnet::ShapeVector& out) {
    return unify_groups(attrs, Numbers(attrs, rule).stride, in, out);
  };
  const auto infer_type = [=](const NodeAttrs& attrs, Ints& in, Ints& out) {
    const uint32_t stride = arrays_per_weight(attrs, rule);
    for (size_t first = 0; first < in.size(); first += stride) {
      const bool gradient = in[first + 1] == mshadow::kFloat16 || (rule.update && supported(in[first + 1]));
      CHECK(supported(in[first]) && gradient) << attrs.op->name << " expects float16 or float32";
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
  const auto count = [=](const NodeAttrs& attrs) {
    const uint64_t arrays = arrays_per_weight(attrs, rule) * numbers(attrs, "lrs").size();
    CHECK_LE(arrays, kMostArrays) << attrs.op->name << " accepts at most " << kMostArrays << " arrays";
    return static_cast<uint32_t>(arrays);
  };
  const auto all_but_gradients = [=](const NodeAttrs& attrs) {
    const uint32_t stride = arrays_per_weight(attrs, rule), arrays = count(attrs);
    std::vector<uint32_t> written;
    for (uint32_t i = 0; i < arrays; ++i) {
      if (i % stride != 1) written.push_back(i);
    }
    return written;
  };
  nnvm::Op* op = add_op(name, count, 1, compute, infer_shape, infer_type);
  set_attr(op, "FMutateInputs", MutateInputs(all_but_gradients), kPriority);
}

}  // namespace

void register_updates() {
  add_op("_gluon_amp_all_finite", count_arrays, 1, all_finite, infer_finite_shape, infer_finite_type);
  add_update("_gluon_amp_sgd_update", kSgd);
  add_update("_gluon_amp_adam_update", kAdam);
  add_update("_gluon_amp_sync_masters", kSync);
  nnvm::Op* sums = add_op("_gluon_amp_sum", count_arrays, 1, sum, infer_sum_shape,
                          infer_cast<mshadow::kFloat16, mshadow::kFloat32>);
  set_attr(sums, "FMutateInputs", MutateInputs(all_arrays), kPriority);
}

}  // namespace gluon_amp
