// The parts of HIP's binary interface that the handlers rely on: hipDeviceProp_tR0600, the device structure since ROCm 6,
// hipDeviceAttribute_t and dim3. A HIP that changes the structure renames its symbol; if a HIP does not, the comparisons in
// read_device (hip.cc) detect the change. Tests compare these numbers with HIP's own headers.
#pragma once

#include <cstddef>

namespace jax_aiter {

constexpr std::size_t kPropertiesBytes = 1472;
constexpr std::size_t kWarpSizeAt = 308;
constexpr std::size_t kComputeUnitsAt = 388;
constexpr std::size_t kArchNameAt = 1160;
constexpr std::size_t kArchNameBytes = 256;

// dim3
struct Dim {
  unsigned x, y, z;
};

constexpr int kMultiprocessorCount = 63;
constexpr int kWarpSize = 87;

}  // namespace jax_aiter
