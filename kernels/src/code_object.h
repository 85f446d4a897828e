// What an AMDGPU code object says about itself: the processor in its ELF header, the kernels in its metadata.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace jax_aiter {

struct CodeObject {
  unsigned mach;                                      // EF_AMDGPU_MACH
  std::map<std::string, std::uint64_t> kernarg_bytes;  // kernel -> bytes of its arguments
};

// Throws Error (kDataLoss) that names the file and what is wrong with it.
CodeObject read_code_object(std::span<const unsigned char> bytes, const std::string& file);

}  // namespace jax_aiter
