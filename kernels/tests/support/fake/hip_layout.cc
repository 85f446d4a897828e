// Comparison of the handlers' idea of HIP with HIP's own headers; it compiles only if they agree.
#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <type_traits>

#include "hip.h"
#include "hip_layout.h"

namespace jax_aiter {

using Properties = hipDeviceProp_tR0600;
static_assert(sizeof(Properties) == kPropertiesBytes);
static_assert(offsetof(Properties, warpSize) == kWarpSizeAt && sizeof(Properties::warpSize) == 4);
static_assert(offsetof(Properties, multiProcessorCount) == kComputeUnitsAt);
static_assert(sizeof(Properties::multiProcessorCount) == 4);
static_assert(offsetof(Properties, gcnArchName) == kArchNameAt);
static_assert(sizeof(Properties::gcnArchName) == kArchNameBytes);
static_assert(hipDeviceAttributeMultiprocessorCount == kMultiprocessorCount);
static_assert(hipDeviceAttributeWarpSize == kWarpSize);
static_assert(sizeof(dim3) == sizeof(Dim) && offsetof(dim3, y) == offsetof(Dim, y) && offsetof(dim3, z) == offsetof(Dim, z));

// Whether two functions take and return the same number of values of the same sizes, pointers in the same places.
template <typename Ours, typename Theirs>
constexpr bool kSame = false;
template <typename A, typename... As, typename B, typename... Bs>
  requires(sizeof...(As) == sizeof...(Bs))
constexpr bool kSame<A (*)(As...), B (*)(Bs...)> =
    sizeof(A) == sizeof(B) && ((sizeof(As) == sizeof(Bs) && std::is_pointer_v<As> == std::is_pointer_v<Bs>) && ...);

static_assert(kSame<decltype(Hip::get_version), decltype(&hipRuntimeGetVersion)>);
static_assert(kSame<decltype(Hip::get_device), decltype(&hipGetDevice)>);
static_assert(kSame<decltype(Hip::set_device), decltype(&hipSetDevice)>);
static_assert(kSame<decltype(Hip::get_attribute), decltype(&hipDeviceGetAttribute)>);
static_assert(kSame<decltype(Hip::get_properties), hipError_t (*)(Properties*, int)>);
static_assert(kSame<decltype(Hip::stream_get_device), decltype(&hipStreamGetDevice)>);
static_assert(kSame<decltype(Hip::exchange_capture_mode), decltype(&hipThreadExchangeStreamCaptureMode)>);
static_assert(kSame<decltype(Hip::module_load_data), decltype(&hipModuleLoadData)>);
static_assert(kSame<decltype(Hip::module_get_function), decltype(&hipModuleGetFunction)>);
static_assert(kSame<decltype(Hip::launch), decltype(&hipModuleLaunchKernel)>);
static_assert(kSame<decltype(Hip::memset_async), decltype(&hipMemsetAsync)>);
static_assert(kSame<decltype(Hip::error_name), decltype(&hipGetErrorName)>);

}  // namespace jax_aiter
