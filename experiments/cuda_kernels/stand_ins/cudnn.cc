// Stand-ins for cuDNN: one algorithm for each convolution, no workspace, sizes that MXNet checks.

#include <cstring>
#include <string>

typedef void* Handle;

struct Performance {  // cudnnConvolution*AlgoPerf_t
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math_type, reserved[3];
};

struct Tensor {  // what cudnnSetTensorNdDescriptor was given
  int dtype, dims, sizes[8];
};

struct Rnn {  // what cudnnSetRNNDescriptor_v6 was given
  int hidden, layers, bidirectional, mode;
};

extern "C" {

void stand_in_note(const char* line);

size_t cudnnGetVersion() { return 8101; }

#define ALGORITHM(name)                                                                    \
  int name(Handle, Handle, Handle, Handle, Handle, int, int* count, Performance* result) { \
    memset(result, 0, sizeof *result);                                                     \
    result->algorithm = result->math_type = 1;                                             \
    *count = 1;                                                                            \
    return 0;                                                                              \
  }
ALGORITHM(cudnnFindConvolutionForwardAlgorithm)
ALGORITHM(cudnnFindConvolutionBackwardDataAlgorithm)
ALGORITHM(cudnnFindConvolutionBackwardFilterAlgorithm)
ALGORITHM(cudnnGetConvolutionForwardAlgorithm_v7)
ALGORITHM(cudnnGetConvolutionBackwardDataAlgorithm_v7)
ALGORITHM(cudnnGetConvolutionBackwardFilterAlgorithm_v7)

static void note(const char* what, int dtype) {  // cudnnDataType_t
  const char* name = dtype == 0 ? "float32" : dtype == 2 ? "float16" : "another dtype";
  stand_in_note((std::string(what) + " computes in " + name).c_str());
}

int cudnnSetConvolutionNdDescriptor(Handle, int, const int*, const int*, const int*, int,
                                    int dtype) {
  note("Convolution", dtype);
  return 0;
}

int cudnnSetConvolution2dDescriptor(Handle, int, int, int, int, int, int, int, int dtype) {
  note("Convolution", dtype);
  return 0;
}

int cudnnSetTensorNdDescriptor(Handle handle, int dtype, int dims, const int* sizes, const int*) {
  Tensor* tensor = static_cast<Tensor*>(handle);
  tensor->dtype = dtype;
  tensor->dims = dims;
  for (int k = 0; k < dims && k < 8; ++k) tensor->sizes[k] = sizes[k];
  return 0;
}

int cudnnSetRNNDescriptor_v6(Handle, Handle handle, int hidden, int layers, Handle, int,
                             int direction, int mode, int, int dtype) {
  *static_cast<Rnn*>(handle) = {hidden, layers, direction, mode};
  note("RNN", dtype);
  return 0;
}

int cudnnGetRNNParamsSize(Handle, Handle rnn_handle, Handle data, size_t* bytes, int dtype) {
  const Rnn& rnn = *static_cast<Rnn*>(rnn_handle);
  const size_t gates = rnn.mode == 2 ? 4 : rnn.mode == 3 ? 3 : 1;  // LSTM, GRU, simple
  const size_t directions = rnn.bidirectional + 1;
  size_t input = static_cast<Tensor*>(data)->sizes[1], count = 0;
  for (int layer = 0; layer < rnn.layers; ++layer) {
    count += directions * gates * rnn.hidden * (input + rnn.hidden + 2);
    input = rnn.hidden * directions;
  }
  *bytes = count * (dtype == 2 ? 2 : dtype == 1 ? 8 : 4);
  return 0;
}

}  // extern "C"
