// HIP's functions that Composable Kernel and its compiled kernels call, defined under HIP's names and forwarded, so
// that these libraries do not link libamdhip64 either (see hip.h). Types as in hip_runtime_api.h, where each
// enumeration is an int. Without HIP, kernels stay unregistered, and handlers report that before they call any.
#include <dlfcn.h>

#include <cstddef>

#include "error.h"
#include "hip.h"
#include "hip_layout.h"

namespace jax_aiter {
namespace {

constexpr int kNotInitialized = 3;  // hipErrorNotInitialized

// Throws nothing: the compiler's own code calls these while the library is loaded.
void* symbol(const char* name) noexcept {
  try {
    return Hip::get().symbol(name);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

// Called through the symbol table, as if HIP were linked: the compiler's code registers the library's kernels with
// them.
extern "C" {
[[gnu::visibility("default")]] void** __hipRegisterFatBinary(const void* data);
[[gnu::visibility("default")]] void __hipRegisterFunction(void** modules, const void* host, char* device,
                                                          const char* name, unsigned threads, void* thread, void* block,
                                                          Dim* block_size, Dim* grid_size, int* warp);
}

#define JAX_AITER_HAND_ON(type, name, otherwise, parameters, ...)                \
  extern "C" type name parameters {                                              \
    static const auto function = reinterpret_cast<type(*) parameters>(symbol(#name)); \
    return function ? function(__VA_ARGS__) : otherwise;                         \
  }

JAX_AITER_HAND_ON(void**, __hipRegisterFatBinary, nullptr, (const void* data), data)
JAX_AITER_HAND_ON(void, __hipUnregisterFatBinary, void(), (void** modules), modules)
JAX_AITER_HAND_ON(void, __hipRegisterFunction, void(),
                  (void** modules, const void* host, char* device, const char* name, unsigned threads, void* thread,
                   void* block, Dim* block_size, Dim* grid_size, int* warp),
                  modules, host, device, name, threads, thread, block, block_size, grid_size, warp)
JAX_AITER_HAND_ON(int, __hipPushCallConfiguration, kNotInitialized,
                  (Dim grid, Dim block, std::size_t shared, void* stream), grid, block, shared, stream)
JAX_AITER_HAND_ON(int, __hipPopCallConfiguration, kNotInitialized,
                  (Dim * grid, Dim* block, std::size_t* shared, void** stream), grid, block, shared, stream)
JAX_AITER_HAND_ON(int, hipLaunchKernel, kNotInitialized,
                  (const void* host, Dim grid, Dim block, void** arguments, std::size_t shared, void* stream), host,
                  grid, block, arguments, shared, stream)
JAX_AITER_HAND_ON(int, hipGetDevice, kNotInitialized, (int* ordinal), ordinal)
JAX_AITER_HAND_ON(int, hipGetDevicePropertiesR0600, kNotInitialized, (void* properties, int ordinal), properties,
                  ordinal)
JAX_AITER_HAND_ON(int, hipStreamSynchronize, kNotInitialized, (void* stream), stream)
JAX_AITER_HAND_ON(int, hipEventCreate, kNotInitialized, (void** event), event)
JAX_AITER_HAND_ON(int, hipEventDestroy, kNotInitialized, (void* event), event)
JAX_AITER_HAND_ON(int, hipEventRecord, kNotInitialized, (void* event, void* stream), event, stream)
JAX_AITER_HAND_ON(int, hipEventSynchronize, kNotInitialized, (void* event), event)
JAX_AITER_HAND_ON(int, hipEventElapsedTime, kNotInitialized, (float* milliseconds, void* start, void* stop),
                  milliseconds, start, stop)
JAX_AITER_HAND_ON(int, hipGetLastError, kNotInitialized, ())
JAX_AITER_HAND_ON(int, hipPeekAtLastError, kNotInitialized, ())
JAX_AITER_HAND_ON(const char*, hipGetErrorString, "there is no HIP", (int error), error)

}  // namespace jax_aiter
