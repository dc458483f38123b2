// What the library shows to the outside: MXNet's entry point and C functions for ctypes.
#include <mxnet/lib_api.h>

#include <exception>

#include "kernels.h"

namespace gluon_amp {
void register_casts();
void register_layouts();
void register_rounding();
void register_updates();
}

#define GLUON_AMP_VISIBLE __attribute__((visibility("default")))

// Called by mx.library.load.
GLUON_AMP_VISIBLE mxnet::ext::MXReturnValue initialize(int version) {
  if (version != 10901) {
    MX_ERROR_MSG << "built for MXNet 1.9.1";
    return mxnet::ext::MX_FAIL;
  }
  try {
    gluon_amp::register_casts();
    gluon_amp::register_layouts();
    gluon_amp::register_rounding();
    gluon_amp::register_updates();
  } catch (const std::exception& error) {
    MX_ERROR_MSG << error.what();
    return mxnet::ext::MX_FAIL;
  }
  return mxnet::ext::MX_SUCCESS;
}

extern "C" {

// For tests: 0 the best instruction set, 1 plain, 2 AVX2, 3 AVX512; 0 where that does not run here.
GLUON_AMP_VISIBLE int gluon_amp_select(int set) { return gluon_amp::select_kernels(set); }
}
