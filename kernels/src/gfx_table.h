// The gfx targets of core/targets.toml, and the variants of kernels/modules.toml for which AITER has separate code;
// kernels/tests/unit/test_kernel_modules.py compares both tables.
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

// The row of a processor or generic target; null if it is unknown.
constexpr const Gfx* find_gfx(std::string_view processor) {
  for (const Gfx& gfx : kGfxTable) {
    if (gfx.processor == processor) return &gfx;
  }
  return nullptr;
}

// A variant of a processor by its number of compute units: MI300 and MI308 are both gfx942.
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
