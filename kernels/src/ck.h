// Shared by the handlers that call Composable Kernel. Its functions are in the same library, compiled from sources that
// AITER generates. They choose and launch a kernel, return -1 if no kernel fits, and throw on errors of HIP.
#pragma once

#include <exception>
#include <string>

#include "handler.h"
#include "hip.h"

namespace jax_aiter {

// During one call, makes the stream's device the current one and allows HIP to load the library's code objects. HIP
// loads them at the first launch, even while XLA records a command buffer.
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

// Calls a function of Composable Kernel. Throws Error if no kernel fits or HIP fails.
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

// Composable Kernel's name of a dtype; throws Error for dtypes that were not compiled.
inline std::string ck_dtype(const Tensor& tensor) {
  if (tensor.dtype == ffi::DataType::F16) return "fp16";
  if (tensor.dtype == ffi::DataType::BF16) return "bf16";
  refuse(tensor, "f16 or bf16");
}

}  // namespace jax_aiter
