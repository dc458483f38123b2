// Convolutions with few channels in a group, of images in the blocked layout.
#pragma once

#include "blocked_convolution.h"
#include "formats.h"

namespace gluon_amp {
namespace depthwise {

using blocked_convolution::Convolution;

// Data, gradients and results hold the values of an element. Weights are float32 (filters, channels of a
// group, kernel), and the bias is float32 (filters) or null; both are rounded to the element. The padding of
// data and gradients may hold any values, that of results is 0. Results may not share memory with arguments.
void forward(const Convolution& c, Element element, const void* data, const float* weights, const float* bias,
             void* result);
void data_grad(const Convolution& c, Element element, const void* grad, const float* weights, void* result);

// Writes both gradients in float32, not rounded; `bias_grad` may be null. Without images, they stay.
void weight_grad(const Convolution& c, Element element, const void* data, const void* grad, float* weight_grad,
                 float* bias_grad);

}  // namespace depthwise
}  // namespace gluon_amp
