// The gates of recurrent layers, for three instruction sets. Each function is serial and processes one
// sequence's time step.
#pragma once

#include <cstdint>

namespace gluon_amp {

// `gates` are `size` floats for each gate, in MXNet's order: the products with the input, which become the
// values of the gates. `carried` is what a step hands on in float32 beside the state: the cells of an
// LSTM, or the state itself of a GRU. `kept` is the GRU's product of the state for its third gate.
struct CellStep {
  int64_t size;
  float* gates;
  const float* products;  // with the state before
  const float* before;    // carried
  float *after, *kept;
  void* state;
};

struct CellGrad {
  int64_t size;
  const float *gates, *before, *after, *kept;
  const float *grad, *later;  // of the state: from its readers, and from the later time steps' products
  float* carried;             // the gradient of what is carried: of `after`, which becomes that of `before`
  void *inputs, *products;    // the gradients of the products; they differ for a GRU only
};

// A product of `rows` rows of data with kPanel columns of a matrix, of which the first `width` are written.
// oneDNN 2.4 has no fast kernel of few rows for AVX2. `bias` may be null.
struct PanelProduct {
  const float* data;
  const void* panel;  // of Bfloat, half_bits or float
  const float* bias;
  int64_t rows, columns, width, stride;  // columns of the data, stride of the result
  float* out;
};
constexpr int kPanel = 16;

// By mode (rnn_relu, rnn_tanh, lstm, gru); those of Bfloat and those of float. They are the types of
// the states, and of the gradients of products.
struct RecurrentKernels {
  void (*forward[4][2])(const CellStep&);
  void (*backward[4][2])(const CellGrad&);
  void (*multiply[3])(const PanelProduct&);  // by the Element of the panel
};

}  // namespace gluon_amp
