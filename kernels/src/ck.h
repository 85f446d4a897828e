// What the handlers that call Composable Kernel share: its functions are in the same library, made from AITER's
// generated sources. They choose a kernel and start it, return -1 where they have none, and throw where HIP refuses.
#pragma once

#include <exception>
#include <string>

#include "handler.h"
#include "hip.h"

namespace jax_aiter {

// For the time of one call: the stream's device is the current one, and HIP may load the library's code objects, which it
// does when the first of their kernels starts, even while XLA records a command buffer.
class CkScope {
 public:
  explicit CkScope(Stream stream) : device_(device_of(stream)), current_(device_.ordinal) {
    Hip::get().check(Hip::get().exchange_capture_mode(&mode_), "allowing loads while work is recorded");
  }
  ~CkScope() { Hip::get().exchange_capture_mode(&mode_); }
  CkScope(const CkScope&) = delete;
  CkScope& operator=(const CkScope&) = delete;

  const Device& device() const { return device_; }

 private:
  const Device& device_;
  DeviceScope current_;
  int mode_ = 2;  // hipStreamCaptureModeRelaxed
};

// Calls one of its functions. Throws Error where there is no kernel or HIP refused.
template <typename Function>
void call_ck(Stream stream, Function&& function) {
  const CkScope scope(stream);
  float answer = -1;
  try {
    answer = function();
  } catch (const std::exception& error) {
    throw Error(Code::kInternal, "Composable Kernel failed on " + scope.device().name + ": " + error.what() +
                                     ". Has this library code for that GPU?");
  }
  if (answer < 0) {
    throw Error(Code::kUnimplemented, "Composable Kernel has no kernel on " + scope.device().name + " for this call.");
  }
}

// Its name of a dtype; throws Error for those that it was not built for.
inline std::string ck_dtype(const Tensor& tensor) {
  if (tensor.dtype == ffi::DataType::F16) return "fp16";
  if (tensor.dtype == ffi::DataType::BF16) return "bf16";
  refuse(tensor, "f16 or bf16");
}

}  // namespace jax_aiter
