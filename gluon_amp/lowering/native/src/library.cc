// All operators in one translation unit, since MXNet's headers take most of the time that each takes
// to compile; and what the library shows to the outside, which is C functions for ctypes.
#include <algorithm>
#include <cstring>
#include <exception>

#include "casts.cc"
#include "convolutions.cc"
#include "layouts.cc"
#include "rounding.cc"
#include "updates.cc"

#define GLUON_AMP_VISIBLE __attribute__((visibility("default")))

extern "C" {

// Registers the operators with MXNet, once in a process. Returns 0 if that fails, and writes the
// reason to `message`, which has room for `size` characters.
GLUON_AMP_VISIBLE int gluon_amp_register(char* message, size_t size) {
  try {
    gluon_amp::register_casts();
    gluon_amp::register_convolutions();
    gluon_amp::register_layouts();
    gluon_amp::register_rounding();
    gluon_amp::register_updates();
    return 1;
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), size - 1);
    return 0;
  }
}

// For tests: 0 the best instruction set, 1 plain, 2 AVX2, 3 AVX512; 0 where that does not run here.
GLUON_AMP_VISIBLE int gluon_amp_select(int set) { return gluon_amp::select_kernels(set); }
}
