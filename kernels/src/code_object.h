// Contents of an AMDGPU code object: the processor from its ELF header, the kernels from its metadata.
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

// Throws Error (kDataLoss) with the file and the defect.
CodeObject read_code_object(std::span<const unsigned char> bytes, const std::string& file);

}  // namespace jax_aiter
