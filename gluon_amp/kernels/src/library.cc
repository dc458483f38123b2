// All operators in one translation unit, since most of its compile time is MXNet's headers; and the
// library's interface, C functions for ctypes.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include <mxnet/c_api.h>

#include "blocked_convolution.cc"
#include "blocked_deconvolution.cc"
#include "blocking.cc"
#include "casts.cc"
#include "concat.cc"
#include "convolutions.cc"
#include "dense.cc"
#include "fork.cc"
#include "depthwise.cc"
#include "norm.cc"
#include "packed_weights.cc"
#include "packing.cc"
#include "pooling.cc"
#include "pointwise.cc"
#include "recurrent.cc"
#include "rounding.cc"
#include "sequences.cc"
#include "study.cc"
#include "updates.cc"

#define GLUON_AMP_VISIBLE __attribute__((visibility("default")))

namespace {

constexpr std::chrono::milliseconds kPatience(200), kPause(1);

// Waits until MXNet's engine is idle, and returns whether it is; writes the error of an operator of
// the user that failed. The engine may need the caller's GIL for a custom operator, so another
// thread waits, and a later call goes on waiting for it.
bool engine_is_idle(std::string* error) {
  const auto wait = [] { return std::string(MXNDArrayWaitAll() ? MXGetLastError() : ""); };
  // Never destroyed, as the end of the process would wait for the engine
  static std::future<std::string>& waiting = *new std::future<std::string>;
  const auto ends = [error] {
    if (waiting.wait_for(kPatience) != std::future_status::ready) return false;
    *error += waiting.get();
    return true;
  };
  if (waiting.valid() && !ends()) return false;  // that of an earlier call tells nothing of now
  waiting = std::async(std::launch::async, wait);
  return ends();
}

// Waits until none of these threads runs, and returns whether that is so. One that waits for the
// caller's GIL sleeps (`state` in /proc/pid/stat; see man 5 proc).
bool threads_sleep(const int* threads, int count) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto runs = [](int thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string line;
    std::getline(file, line);
    const size_t name = line.rfind(')');
    return name != std::string::npos && line.compare(name + 2, 1, "S") != 0;
  };
  // One that waits for a lock of MXNet sleeps for an instant only.
  for (int asleep = 0; asleep < 5;) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
    asleep = std::any_of(threads, threads + count, runs) ? 0 : asleep + 1;
  }
  return true;
}

}  // namespace

extern "C" {

// Registers the operators with MXNet, once per process, while it runs no operator. The caller holds
// the GIL, and names the threads that may be inside a call of MXNet. Returns 1, or registers nothing:
// 0 if it fails; 2 if an operator still runs; 3 if an operator of the user had failed. Then it writes
// the reason to `message`, which has room for `size` characters.
GLUON_AMP_VISIBLE int gluon_amp_register(char* message, size_t size, const int* threads, int count) {
  static bool registered = false;
  if (registered) return 1;
  // A thread that ends its call may have pushed operators, so the engine comes last.
  if (count > 0 && !threads_sleep(threads, count)) return 2;
  std::string error;
  if (!engine_is_idle(&error)) return 2;
  if (!error.empty()) {
    std::strncpy(message, error.c_str(), size - 1);
    return 3;
  }
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
    gluon_amp::register_recurrent();
    gluon_amp::register_rounding();
    gluon_amp::register_sequences();
    gluon_amp::register_study();
    gluon_amp::register_updates();
    registered = true;
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

// Frees all packed weights (packed_weights.h).
GLUON_AMP_VISIBLE void gluon_amp_forget_weights() { gluon_amp::forget_weights(); }

// For tests: selects an instruction set as select_kernels does, and returns 1 or 0.
GLUON_AMP_VISIBLE int gluon_amp_select(int set) { return gluon_amp::select_kernels(set); }
}
