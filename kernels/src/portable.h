// Parts that the handlers of the portable kernels share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "handler.h"
#include "module.h"
#include "objects.h"
#include "spread.h"

namespace jax_aiter {

// The suffix of kernels for a tensor's numbers; nullptr if there are none.
inline const char* number_of(const Tensor& tensor) {
  switch (tensor.dtype) {
    case ffi::DataType::F32: return "f32";
    case ffi::DataType::F16: return "f16";
    case ffi::DataType::BF16: return "bf16";
    default: return nullptr;
  }
}

inline unsigned numbers_in_16_bytes(const Tensor& tensor) { return tensor.dtype == ffi::DataType::F32 ? 4 : 8; }

inline bool are_aligned(std::initializer_list<Tensor> tensors) {
  bool aligned = true;
  for (const Tensor& tensor : tensors) aligned = aligned && reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
  return aligned;
}

// Launches a kernel of the module's own code object of that name.
template <typename Args>
void launch_portable(Stream stream, const char* object, const std::string& name, const Spread& spread,
                     const Args& args) {
  const Device& device = device_of(stream);
  const Kernel kernel = load_kernel(device, module_folder(device) + "/" + object + ".co", name, sizeof args);
  launch(kernel, {spread.blocks, 1, 1}, spread.threads, &args, sizeof args, stream);
}

}  // namespace jax_aiter
