// All operators in one translation unit, since most of its compile time is MXNet's headers; and the
// library's interface, C functions for ctypes.
#include <algorithm>
#include <cstring>
#include <exception>

#include "blocked_convolution.cc"
#include "blocked_deconvolution.cc"
#include "blocking.cc"
#include "casts.cc"
#include "concat.cc"
#include "convolutions.cc"
#include "dense.cc"
#include "fork.cc"
#include "depthwise.cc"
#include "depthwise_convolution.cc"
#include "norm.cc"
#include "packed_weights.cc"
#include "pooling.cc"
#include "pointwise.cc"
#include "rounding.cc"
#include "study.cc"
#include "updates.cc"

#define GLUON_AMP_VISIBLE __attribute__((visibility("default")))

extern "C" {

// Registers the operators with MXNet, once per process. Returns 1, or if it fails 0; then it writes
// the reason to `message`, which has room for `size` characters.
GLUON_AMP_VISIBLE int gluon_amp_register(char* message, size_t size) {
  try {
    gluon_amp::register_blocked_convolution();
    gluon_amp::register_blocked_deconvolution();
    gluon_amp::register_blocking();
    gluon_amp::register_casts();
    gluon_amp::register_concat();
    gluon_amp::register_convolutions();
    gluon_amp::register_dense();
    gluon_amp::register_fork();
    gluon_amp::register_depthwise();
    gluon_amp::register_pooling();
    gluon_amp::register_norm();
    gluon_amp::register_pointwise();
    gluon_amp::register_rounding();
    gluon_amp::register_study();
    gluon_amp::register_updates();
    return 1;
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), size - 1);
    return 0;
  }
}

// The scale of a tensor (study.cc): adds one and returns its number, sets its exponent, and returns the
// largest magnitude that training passes have recorded since the last call.
GLUON_AMP_VISIBLE int gluon_amp_add_scale() { return gluon_amp::add_scale(); }
GLUON_AMP_VISIBLE void gluon_amp_set_exponent(int scale, int exponent) {
  gluon_amp::scale_at(scale)->exponent = exponent;
}
GLUON_AMP_VISIBLE float gluon_amp_take_largest(int scale) {
  return gluon_amp::scale_at(scale)->largest.exchange(0);
}

// For tests: selects an instruction set as select_kernels does, and returns 1 or 0.
GLUON_AMP_VISIBLE int gluon_amp_select(int set) { return gluon_amp::select_kernels(set); }
}
