// Code objects of this module: search, verification, one load for each device, launch.
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

// The module's folder for the device: <hsa>/<gfx>/<variant>/<module> if the number of compute units selects a variant
// of the module, else <hsa>/<gfx>/<module> of its processor or of the generic target that covers it. Throws Error with
// the compute units and the searched folders.
std::string module_folder(const Device& device);

// The kernel of a file in the module's folder. The first call for each device reads, checks (complete, for this
// processor, with that kernel and at most `most_bytes` of arguments) and loads the file; other threads wait for it,
// other devices and files do not. The next call repeats a failed load.
Kernel load_kernel(const Device& device, const std::string& path, const std::string& kernel, std::size_t most_bytes);

// Launches the kernel on the stream. `bytes` is the size of the packed arguments; the kernel reads the first
// `kernel.argument_bytes` of them.
void launch(const Kernel& kernel, Grid grid, unsigned block, const void* arguments, std::size_t bytes, Stream stream);

// Contents of a file; throws Error (kNotFound, with a hint) if it cannot be read.
std::string read_file(const std::string& path);

}  // namespace jax_aiter
