// Operators that move images from the plain layout (N, C, H, W) to the blocked one, and back.
//
// Both move bits, whatever their dtype. They work in place if no group is padded.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "blocked.h"
#include "products.h"
#include "shapes.h"

namespace gluon_amp {
namespace {

// ------------------------------------------------------------------------------------- shapes

// Sets what the sizes of images in one layout say about those in the other.
bool relate_layouts(const NodeAttrs& attrs, mxnet::TShape& plain, mxnet::TShape& blocked) {
  for (int common : {0, 2, 3}) share_size(attrs, plain, common, blocked, common);
  if (mxnet::dim_size_is_known(plain, 1)) set_groups(attrs, blocked, plain[1]);
  return mxnet::shape_is_known(plain) && mxnet::shape_is_known(blocked);
}

bool infer_block(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  mxnet::TShape &plain = in[0], &blocked = out.at(0);
  set_rank(attrs, plain, 4);
  set_rank(attrs, blocked, 5);
  const int64_t lanes = lanes_of(attrs);
  if (lanes > 0) {
    set_size(attrs, blocked, 4, lanes);
  } else {
    share_size(attrs, plain, 1, blocked, 4);
  }
  return relate_layouts(attrs, plain, blocked);
}

bool infer_unblock(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  mxnet::TShape &plain = out.at(0), &blocked = in[0];
  set_rank(attrs, plain, 4);
  set_rank(attrs, blocked, 5);
  const int64_t channels = integer_of(attrs, "channels", 0);
  CHECK_GT(channels, 0) << attrs.op->name << ": channels";
  set_size(attrs, plain, 1, channels);
  return relate_layouts(attrs, plain, blocked);
}

// ---------------------------------------------------------------------------------- the work

void transpose(const uint16_t* in, uint16_t* out, const Transposition& t) {
  kernels().moves->transpose2(in, out, t);
}

void transpose(const uint32_t* in, uint32_t* out, const Transposition& t) {
  kernels().moves->transpose4(in, out, t);
}

// Moves images with `channels` channels to the blocked layout if `to_blocked`, otherwise from it. `T` has
// the size of a value. Both arrays may share their memory: they then have the same size, so no group is
// padded, and each group has the same place in both.
template <bool to_blocked, typename T>
void move_groups(const T* in, T* out, int64_t channels, const Blocked& shape) {
  const bool in_place = in == out;
  const int64_t positions = shape.positions(), lanes = shape.lanes, plane = shape.plane();
  if (positions == 1 && channels == shape.groups * lanes) {  // the layouts are the same
    if (!in_place) std::copy(in, in + shape.size(), out);
    return;
  }
  std::vector<T> copies(in_place ? omp_get_max_threads() * plane : 0);
#pragma omp parallel for schedule(static) if (shape.size() > 2 * kBlock)
  for (int64_t i = 0; i < shape.images * shape.groups; ++i) {
    const int64_t first = i % shape.groups * lanes, used = std::min(lanes, channels - first);
    const int64_t plain = (i / shape.groups * channels + first) * positions, blocked = i * plane;
    const T* from = in + (to_blocked ? plain : blocked);
    T* to = out + (to_blocked ? blocked : plain);
    if (in_place) {
      T* copy = copies.data() + omp_get_thread_num() * plane;
      from = std::copy(from, from + plane, copy) - plane;
    }
    if (positions == 1) {
      std::copy(from, from + used, to);
      if (to_blocked) std::fill(to + used, to + lanes, 0);
    } else if (to_blocked) {
      transpose(from, to, {used, positions, positions, lanes, lanes});
    } else {
      transpose(from, to, {positions, used, lanes, positions, positions});
    }
  }
}

template <bool to_blocked>
void move_values(const void* in, void* out, int64_t channels, const Blocked& shape, int bytes) {
  if (bytes == 2) {
    move_groups<to_blocked>(static_cast<const uint16_t*>(in), static_cast<uint16_t*>(out), channels, shape);
  } else {
    move_groups<to_blocked>(static_cast<const uint32_t*>(in), static_cast<uint32_t*>(out), channels, shape);
  }
}

template <bool to_blocked>
void move_images(const NodeAttrs& attrs, const OpContext&, const Arrays& inputs, const Requests& req,
                 const Arrays& outputs) {
  const NDArray &input = inputs[0], &output = outputs[0];
  const mxnet::TShape &plain = to_blocked ? input.shape() : output.shape(),
                      &blocked = to_blocked ? output.shape() : input.shape();
  CHECK_EQ(blocked, blocked_shape(plain[0], plain[1], plain[2], plain[3], blocked[4]));
  if (req[0] == mxnet::kNullOp || plain.Size() == 0) return;
  const NDArray readable = plain_copy(input);
  Result target(output, req[0], Precision(element_of(attrs, output)).rounding());
  const int bytes = size_of_value(input);
  move_values<to_blocked>(values_of<char>(readable), target.data(), plain[1], Blocked(blocked), bytes);
  target.finish(false);
}

// Adds an operator and its gradient, which moves back.
template <bool to_blocked>
void add_move(const std::string& name, const InferShape& infer) {
  nnvm::Op* op = add_op(name, 1, 1, move_images<to_blocked>, infer, infer_one_dtype);
  may_work_in_place(op);
  may_work_in_place(add_gradient(op, 1, move_images<!to_blocked>, only_gradients));
}

}  // namespace

void change_lanes(const void* from, const Blocked& old_shape, void* to, const Blocked& new_shape, int64_t channels,
                  int bytes) {
  if (old_shape.lanes == 1) return move_values<true>(from, to, channels, new_shape, bytes);
  if (new_shape.lanes == 1) return move_values<false>(from, to, channels, old_shape, bytes);
  const int64_t width = old_shape.width, height = old_shape.height;
  const int64_t run = std::min(old_shape.lanes, new_shape.lanes);
  const int64_t old_step = old_shape.lanes * bytes, new_step = new_shape.lanes * bytes;
  const auto start = [&](const Blocked& shape, int64_t row, int64_t channel) {
    const int64_t group = row / height * shape.groups + channel / shape.lanes;
    return ((group * height + row % height) * width * shape.lanes + channel % shape.lanes) * bytes;
  };
#pragma omp parallel for schedule(static) if (old_shape.size() > 2 * kBlock)
  for (int64_t row = 0; row < old_shape.images * height; ++row) {
    for (int64_t channel = 0; channel < channels; channel += run) {
      const int64_t count = std::min(run, channels - channel);
      const int64_t zeros = channel + count == channels ? new_shape.groups * new_shape.lanes - channels : 0;
      const char* source = static_cast<const char*>(from) + start(old_shape, row, channel);
      char* target = static_cast<char*>(to) + start(new_shape, row, channel);
      for (int64_t i = 0; i < width; ++i) {
        std::memcpy(target + i * new_step, source + i * old_step, count * bytes);
        if (zeros > 0) std::memset(target + i * new_step + count * bytes, 0, zeros * bytes);
      }
    }
  }
}

void register_blocking() {
  add_move<true>("_gluon_amp_block", infer_block);
  add_move<false>("_gluon_amp_unblock", infer_unblock);
}

}  // namespace gluon_amp
