// Operators that move images from the plain layout (N, C, H, W) to the blocked one, and back.
//
// Both move bits, whatever their dtype. They work in place if no group is padded.
#include <omp.h>

#include <algorithm>
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
  const int images_height_width[][2] = {{0, 0}, {2, 2}, {3, 3}};
  for (const auto& i : images_height_width) share_size(attrs, plain, i[0], blocked, i[1]);
  if (mxnet::dim_size_is_known(plain, 1) && mxnet::dim_size_is_known(blocked, 4)) {
    const int64_t channels = plain[1], lanes = blocked[4];
    CHECK(channels > 0 && lanes > 0) << attrs.op->name << " expects at least one channel and lane";
    set_size(attrs, blocked, 1, (channels - 1) / lanes + 1);
  }
  return mxnet::shape_is_known(plain) && mxnet::shape_is_known(blocked);
}

bool infer_block(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out) {
  expect_inputs(attrs, 1, in.size());
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
  expect_inputs(attrs, 1, in.size());
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
  Result target(element_of(attrs, output), output, req[0]);
  const int bytes = size_of_value(input);
  move_values<to_blocked>(values_of<char>(readable), target.data(), plain[1], Blocked(blocked), bytes);
  target.add();
}

// Adds an operator and its gradient, which moves back.
template <bool to_blocked>
void add_move(const std::string& name, const InferShape& infer) {
  nnvm::Op* op = add_op(name, move_images<to_blocked>, infer, infer_one_dtype);
  op->num_inputs = 1;
  may_work_in_place(op);
  may_work_in_place(add_gradient(op, move_images<!to_blocked>, only_gradients));
}

}  // namespace

void to_blocked(const void* plain, void* blocked, int64_t channels, const Blocked& shape, int bytes) {
  move_values<true>(plain, blocked, channels, shape, bytes);
}

void to_plain(const void* blocked, void* plain, int64_t channels, const Blocked& shape, int bytes) {
  move_values<false>(blocked, plain, channels, shape, bytes);
}

float* change_lanes(const float* from, const Blocked& old_shape, float* to, const Blocked& new_shape) {
  const bool joins = new_shape.groups == 1 && new_shape.size() <= old_shape.size();
  const Blocked &joined = joins ? new_shape : old_shape, &split = joins ? old_shape : new_shape;
  const int64_t positions = split.positions(), lanes = split.lanes, channels = joined.lanes;
#pragma omp parallel for schedule(static) if (split.size() > 2 * kBlock)
  for (int64_t row = 0; row < split.images * split.height; ++row) {
    const int64_t image = row / split.height, first = row % split.height * split.width;
    for (int64_t group = 0; group < split.groups; ++group) {
      const int64_t used = std::min(lanes, channels - group * lanes);
      int64_t of_joined = (image * positions + first) * channels + group * lanes;
      int64_t of_split = ((image * split.groups + group) * positions + first) * lanes;
      for (int64_t i = 0; i < split.width; ++i, of_joined += channels, of_split += lanes) {
        const float* source = from + (joins ? of_split : of_joined);
        float* target = to + (joins ? of_joined : of_split);
        std::copy(source, source + used, target);
        if (!joins) std::fill(target + used, target + lanes, 0.f);
      }
    }
  }
  return to;
}

void register_blocking() {
  add_move<true>("_gluon_amp_block", infer_block);
  add_move<false>("_gluon_amp_unblock", infer_unblock);
}

}  // namespace gluon_amp
