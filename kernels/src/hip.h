// HIP, loaded at first use. The library does not link libamdhip64, so one binary works with every ROCm of the same ABI;
// the probe in hip.cc refuses others.
#pragma once

#include <cstddef>
#include <string>

namespace jax_aiter {

using Stream = void*;    // hipStream_t
using Module = void*;    // hipModule_t
using Function = void*;  // hipFunction_t

// The functions of HIP that handlers call; types as in hip_runtime_api.h, where each enumeration is an int.
struct Hip {
  int (*get_version)(int* version);
  int (*get_device)(int* ordinal);
  int (*set_device)(int ordinal);
  int (*get_attribute)(int* value, int attribute, int ordinal);
  int (*get_properties)(void* properties, int ordinal);
  int (*stream_get_device)(Stream stream, int* ordinal);
  int (*exchange_capture_mode)(int* mode);
  int (*module_load_data)(Module* module, const void* image);
  int (*module_get_function)(Function* function, Module module, const char* name);
  int (*launch)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters,
                void** extra);
  int (*memset_async)(void* to, int value, std::size_t bytes, Stream stream);
  const char* (*error_name)(int error);

  // Any other function of HIP; throws Error if it does not exist.
  void* symbol(const char* name) const;

  void* handle = nullptr;
  std::string library;  // its soname
  int version = 0;      // major * 10'000'000 + minor * 100'000 + patch

  // The HIP of this process: one that is already loaded (JAX's plugin loads one), else the newest known. Throws Error
  // with the names that were tried; a later call tries again.
  static const Hip& get();

  // Throws Error with the operation and the name of HIP's error.
  void check(int error, const std::string& doing) const;
};

struct Device {
  int ordinal;
  std::string name;       // as HIP says it: gfx942:sramecc+:xnack-
  std::string processor;  // gfx942
  int compute_units;
};

// The device of a stream. The first call for each device verifies the layout of HIP's device structure.
const Device& device_of(Stream stream);

// Makes a device the current one, and restores the previous one.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
  bool changed_ = false;
};

}  // namespace jax_aiter
