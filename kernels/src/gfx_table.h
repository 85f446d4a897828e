// The gfx targets, from ci_build/targets.toml, and their variants that AITER has code of its own for, from
// kernels/modules.toml; tests/unit/test_kernel_sources.py keeps both tables in step.
#pragma once

#include <string_view>

namespace jax_aiter {

struct Gfx {
  std::string_view processor;
  unsigned mach;             // EF_AMDGPU_MACH of its code objects
  std::string_view generic;  // the generic target whose code runs on it too, or nothing
};

inline constexpr Gfx kGfxTable[] = {
#define JAX_AITER_GFX(processor, mach, generic) {processor, mach, generic},
#include "gfx_table.inc"
#undef JAX_AITER_GFX
};

// The row of a processor or generic target; null for one that is not known.
constexpr const Gfx* find_gfx(std::string_view processor) {
  for (const Gfx& gfx : kGfxTable) {
    if (gfx.processor == processor) return &gfx;
  }
  return nullptr;
}

// A GPU of a processor, told by its compute units: MI300 and MI308 are both gfx942.
struct Variant {
  std::string_view processor;
  int compute_units;
  std::string_view folder;
};

inline constexpr Variant kVariants[] = {
#define JAX_AITER_VARIANT(processor, compute_units, folder) {processor, compute_units, folder},
#include "variants.inc"
#undef JAX_AITER_VARIANT
};

}  // namespace jax_aiter
