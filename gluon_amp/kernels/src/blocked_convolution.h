// Two-dimensional convolutions of images in the blocked layout, which the operators of convolutions,
// deconvolutions and depthwise convolutions share.
#pragma once

#include <functional>

#include "blocked.h"
#include "operators.h"
#include "packed_weights.h"
#include "products.h"

namespace gluon_amp {
namespace blocked_convolution {

struct Convolution {
  int64_t images, channels, height, width;  // of the data
  int64_t filters, out_height, out_width, groups;
  Sizes kernel, stride, pad, dilate;
  int64_t lanes;       // of the result
  bool nhwc;           // the channels of an image have one group, as AMX's kernels read them
  int64_t data_lanes;  // 0 if the data has the plain layout
  bool plain_data, bias;
  bool in_plain;      // computed in the plain layout
  bool plain_result;  // the result is stored in the plain layout, or the data of a deconvolution

  bool reads_plain() const { return in_plain || data_lanes == 0; }
  Blocked data_with(int64_t lanes) const {
    return Blocked(blocked_shape(images, channels, height, width, lanes));
  }
  Blocked result_with(int64_t lanes) const {
    return Blocked(blocked_shape(images, filters, out_height, out_width, lanes));
  }
  // As they are stored, and as the primitive reads and writes them; 1 lane is the plain layout
  Blocked stored_data() const { return data_with(plain_data ? 1 : data_lanes); }
  Blocked stored_result() const { return result_with(plain_result ? 1 : lanes); }
  Blocked computed_data() const { return data_with(reads_plain() ? 1 : data_lanes); }
  Blocked computed_result() const { return result_with(in_plain ? 1 : lanes); }
};

// oneDNN's kernels read 8 or 16 lanes, or all channels.
void expect_lanes(const NodeAttrs& attrs, int64_t lanes, int64_t channels);

// Reads a node's attributes. The sizes of the data follow from its shape, and those of the result from them.
Convolution parse(const NodeAttrs& attrs);
void read_images(const NodeAttrs& attrs, const mxnet::TShape& shape, Convolution* c);
void set_data(const NodeAttrs& attrs, const mxnet::TShape& shape, Convolution* c);

// The same convolution of data in the blocked layout
Convolution blocked(Convolution c);

// The weight of a node, and how long it is kept
struct Weight {
  const NDArray& array;
  Kept kept;
};

// Computes the result. Without `rounds`, the reader of the result rounds it to float16.
void write_result(const Convolution& c, const Precision& p, dnnl_prop_kind_t kind, const NDArray& images,
                  const Weight& weight, const float* bias, OpReqType req, const NDArray& output,
                  bool rounds = true);

// Computes the gradient of the data from that of the result, and calls finish(values, shape) before it is
// rounded.
using Finish = std::function<void(void*, const Blocked&)>;
void write_data_grad(const Convolution& c, const Precision& p, const NDArray& grad, const Weight& weight,
                     OpReqType req, const NDArray& output, const Finish& finish = nullptr);

// Computes the gradients of weight and bias, the second and third output.
void weight_grad(const Convolution& c, const Precision& p, const NDArray& grad, const NDArray& data,
                 const Requests& req, const Arrays& outputs);

// Infers the shapes of weight and bias, which has a value for each of `channels`, and of the result.
bool unify_parameters(const NodeAttrs& attrs, const Convolution& c, int64_t channels, mxnet::TShape result,
                      mxnet::ShapeVector& in, mxnet::ShapeVector& out);

// The shapes of weight and bias, and of the result if the data's is known
bool infer_shape(const NodeAttrs& attrs, mxnet::ShapeVector& in, mxnet::ShapeVector& out);

}  // namespace blocked_convolution
}  // namespace gluon_amp
