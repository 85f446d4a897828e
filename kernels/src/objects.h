// Code objects of this module: found, checked, loaded once for each device, launched.
#pragma once

#include <cstddef>
#include <string>

#include "hip.h"

namespace jax_aiter {

struct Kernel {
  Function function;
  std::size_t argument_bytes;  // what the object's metadata says
};

struct Grid {
  unsigned x, y, z;
};

// Arguments in slots of 16 bytes, as AITER's assembly kernels take them.
template <typename T>
struct alignas(16) Slot {
  T value;
};

// The module's folder for the device: <hsa>/<gfx>/<variant>/<module> where its compute units tell a variant that the
// module has, else <hsa>/<gfx>/<module> of its own processor, or of the generic target that covers it. Throws Error naming
// the compute units and the folders that were looked for.
std::string module_folder(const Device& device);

// The kernel of a file in the module's folder. The file is read, checked (whole, for this processor, with that kernel
// and no more arguments than `most_bytes`) and loaded at the first call for each device; other threads wait for it, other
// devices and files do not. What failed is tried again at the next call.
Kernel load_kernel(const Device& device, const std::string& path, const std::string& kernel, std::size_t most_bytes);

// Puts the kernel on the stream. `bytes` is the size of the packed arguments; the kernel takes the first
// `kernel.argument_bytes` of them.
void launch(const Kernel& kernel, Grid grid, unsigned block, const void* arguments, std::size_t bytes, Stream stream);

// Contents of a file; throws Error (kNotFound, with what to do) when it cannot be read.
std::string read_file(const std::string& path);

}  // namespace jax_aiter
