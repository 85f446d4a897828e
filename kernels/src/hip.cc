#include "hip.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "error.h"
#include "hip_layout.h"

namespace jax_aiter {
namespace {

// Known versions first, then future ones; the probe, not the number, refuses a different ABI.
constexpr std::array kMajors = {7, 6, 8, 9, 10, 11, 12};

constexpr unsigned char kUntouched = 0xa5;

void* open_hip(std::string& soname) {
  for (const int mode : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY}) {
    for (const int major : kMajors) {
      soname = "libamdhip64.so." + std::to_string(major);
      if (void* handle = dlopen(soname.c_str(), mode)) return handle;
    }
  }
  throw Error(Code::kUnavailable,
              "There is no HIP: neither loaded nor found as libamdhip64.so.7 (nor .6, .8 to .12). Install ROCm, or "
              "JAX's ROCm plugin with its ROCm.");
}

std::unique_ptr<Hip> load_hip() {
  auto hip = std::make_unique<Hip>();
  hip->handle = open_hip(hip->library);
  const auto take = [&]<typename Pointer>(const char* name, Pointer& to) {
    to = reinterpret_cast<Pointer>(hip->symbol(name));
  };
  take("hipRuntimeGetVersion", hip->get_version);
  take("hipGetDevice", hip->get_device);
  take("hipSetDevice", hip->set_device);
  take("hipDeviceGetAttribute", hip->get_attribute);
  take("hipGetDevicePropertiesR0600", hip->get_properties);
  take("hipStreamGetDevice", hip->stream_get_device);
  take("hipThreadExchangeStreamCaptureMode", hip->exchange_capture_mode);
  take("hipModuleLoadData", hip->module_load_data);
  take("hipModuleGetFunction", hip->module_get_function);
  take("hipModuleLaunchKernel", hip->launch);
  take("hipMemsetAsync", hip->memset_async);
  take("hipGetErrorName", hip->error_name);
  hip->check(hip->get_version(&hip->version), "asking " + hip->library + " for its version");
  return hip;
}

std::int32_t read_int(const unsigned char* from) {
  std::int32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool is_arch_name(std::string_view name) {
  const std::string_view processor = name.substr(0, name.find(':'));
  return processor.size() > 3 && processor.starts_with("gfx") &&
         processor.find_first_not_of("0123456789abcdef", 3) == std::string_view::npos;
}

Device read_device(const Hip& hip, int ordinal) {
  std::array<unsigned char, 4 * kPropertiesBytes> bytes;
  bytes.fill(kUntouched);
  hip.check(hip.get_properties(bytes.data(), ordinal), "reading device " + std::to_string(ordinal));
  int compute_units = 0, warp = 0;
  hip.check(hip.get_attribute(&compute_units, kMultiprocessorCount, ordinal), "reading the compute units");
  hip.check(hip.get_attribute(&warp, kWarpSize, ordinal), "reading the wavefront's size");

  const char* name = reinterpret_cast<const char*>(bytes.data() + kArchNameAt);
  const std::string_view arch(name, strnlen(name, kArchNameBytes));
  bool longer = false;
  for (std::size_t at = kPropertiesBytes; at < bytes.size(); ++at) longer |= bytes[at] != kUntouched;
  if (longer || arch.size() == kArchNameBytes || !is_arch_name(arch) || compute_units < 1 ||
      read_int(&bytes[kComputeUnitsAt]) != compute_units || read_int(&bytes[kWarpSizeAt]) != warp) {
    throw Error(Code::kFailedPrecondition,
                hip.library + " (version " + std::to_string(hip.version) +
                    ") has another device structure than ROCm 6 and 7: its fields do not agree with the device's "
                    "attributes. These kernels do not fit this HIP; use those made for it.");
  }
  return Device{ordinal, std::string(arch), std::string(arch.substr(0, arch.find(':'))), compute_units};
}

}  // namespace

const Hip& Hip::get() {
  static std::mutex lock;
  static std::unique_ptr<Hip> loaded;
  const std::lock_guard guard(lock);
  if (!loaded) loaded = load_hip();
  return *loaded;
}

void* Hip::symbol(const char* name) const {
  if (void* found = dlsym(handle, name)) return found;
  throw Error(Code::kFailedPrecondition,
              library + " has no " + name + ": it is no HIP that these kernels know (ROCm 6, 7 or later).");
}

void Hip::check(int error, const std::string& doing) const {
  if (error == 0) return;
  const char* name = error_name(error);
  throw Error(Code::kInternal,
              "HIP failed at " + doing + ": " + (name ? name : "error") + " (" + std::to_string(error) + ").");
}

const Device& device_of(Stream stream) {
  static std::mutex lock;
  static std::map<int, Device> known;
  const Hip& hip = Hip::get();
  int ordinal = -1;
  hip.check(hip.stream_get_device(stream, &ordinal), "asking for the stream's device");
  const std::lock_guard guard(lock);
  auto found = known.find(ordinal);
  if (found == known.end()) found = known.emplace(ordinal, read_device(hip, ordinal)).first;
  return found->second;
}

DeviceScope::DeviceScope(int ordinal) {
  const Hip& hip = Hip::get();
  hip.check(hip.get_device(&before_), "asking for the current device");
  if (before_ == ordinal) return;
  hip.check(hip.set_device(ordinal), "choosing device " + std::to_string(ordinal));
  changed_ = true;
}

DeviceScope::~DeviceScope() {
  if (changed_) Hip::get().set_device(before_);
}

}  // namespace jax_aiter
