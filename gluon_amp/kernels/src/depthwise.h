// Convolutions with few channels in a group, of images in the blocked layout. In depthwise convolutions,
// each channel is a group. Products and sums are in float32; results are rounded once. No result depends on
// the number of threads.
#pragma once

#include <cstdint>

namespace gluon_amp {

struct DepthwiseShape {
  int64_t images, groups, lanes, channels;  // of the data in the blocked layout
  int64_t in_height, in_width, out_height, out_width;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilate_h, dilate_w;
  int64_t group_in = 1, group_out = 1;  // channels of data and result in each group of the convolution
};

// T is Bfloat or HalfValue. Weights are float32 (channels of the result, group_in, kernel_h, kernel_w), and
// the bias is float32 (channels of the result) or null; both are rounded to T. The padding of data and
// gradients may hold any values, that of results is 0. Results may not share memory with arguments.
template <typename T>
void depthwise_forward(const DepthwiseShape&, const T* data, const float* weights, const float* bias,
                       T* result);

template <typename T>
void depthwise_data_grad(const DepthwiseShape&, const T* grad, const float* weights, T* data_grad);

// Writes both gradients in float32, not rounded; `bias_grad` may be null.
template <typename T>
void depthwise_weight_grad(const DepthwiseShape&, const T* data, const T* grad, float* weight_grad,
                           float* bias_grad);

}  // namespace gluon_amp
