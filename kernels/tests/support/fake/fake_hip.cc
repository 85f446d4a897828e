// FakeHip: a libamdhip64 that has no GPU and writes down what it is asked to do. Tests only. Structures, enumerations and
// signatures are those of HIP's own headers, so that a caller with another idea of them fails.
#include <hip/hip_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

struct FakeModule {
  int device;
  std::vector<unsigned char> image;
};

struct FakeFunction {
  FakeModule* module;
  std::string name;
};

struct FakeDevice {
  std::string arch = "gfx942:sramecc+:xnack-";
  int compute_units = 304, warp = 64;
};

// Which kind of device structure a call answers with.
enum Layout { kKnown = 0, kLonger = 1, kMoved = 2, kNoName = 3 };

}  // namespace

// Read by ctypes; see calls.py.
struct FakeRecord {
  int what;  // 0: load, 1: memset, 2: launch
  int device;
  int capture_mode;  // of the thread
  unsigned grid[3], block[3], shared;
  const unsigned char* image;
  std::uint64_t image_size;
  const char* kernel;
  std::uint64_t argument_bytes;
  unsigned char arguments[1024];
  void* to;
  int value;
  std::uint64_t bytes;
};

namespace {

std::mutex lock;
FakeDevice devices[8];
int device_count = 8;
int version = 70'051'831;
Layout layout = kKnown;
std::map<std::string, int> failing;
std::deque<FakeRecord> records;
std::vector<std::unique_ptr<FakeModule>> modules;
std::vector<std::unique_ptr<FakeFunction>> functions;
int streams[8] = {0, 1, 2, 3, 4, 5, 6, 7};
thread_local int current = 0;
thread_local hipStreamCaptureMode capture_mode = hipStreamCaptureModeThreadLocal;

hipError_t failure(const char* function) {
  const auto found = failing.find(function);
  return found == failing.end() ? hipSuccess : static_cast<hipError_t>(found->second);
}

int device_of(hipStream_t stream) { return stream ? *reinterpret_cast<int*>(stream) : current; }

std::uint64_t elf_size(const unsigned char* image) {
  std::uint64_t headers;
  std::uint16_t entry, count;
  std::memcpy(&headers, image + 40, sizeof headers);
  std::memcpy(&entry, image + 58, sizeof entry);
  std::memcpy(&count, image + 60, sizeof count);
  return headers + std::uint64_t{entry} * count;
}

}  // namespace

#define OR_FAIL(name)                          \
  const std::lock_guard guard(lock);           \
  if (const hipError_t error = failure(name)) return error

PUBLIC hipError_t hipRuntimeGetVersion(int* to) {
  OR_FAIL("hipRuntimeGetVersion");
  *to = version;
  return hipSuccess;
}

PUBLIC hipError_t hipGetDevice(int* to) {
  *to = current;
  return hipSuccess;
}

PUBLIC hipError_t hipSetDevice(int ordinal) {
  OR_FAIL("hipSetDevice");
  if (ordinal < 0 || ordinal >= device_count) return hipErrorInvalidDevice;
  current = ordinal;
  return hipSuccess;
}

PUBLIC hipError_t hipDeviceGetAttribute(int* to, hipDeviceAttribute_t attribute, int ordinal) {
  OR_FAIL("hipDeviceGetAttribute");
  if (attribute == hipDeviceAttributeMultiprocessorCount) {
    *to = devices[ordinal].compute_units;
  } else if (attribute == hipDeviceAttributeWarpSize) {
    *to = devices[ordinal].warp;
  } else {
    return hipErrorInvalidValue;
  }
  return hipSuccess;
}

PUBLIC hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* to, int ordinal) {
  OR_FAIL("hipGetDevicePropertiesR0600");
  constexpr std::size_t kLongerBy = 64, kMovedBy = 16;
  const FakeDevice& device = devices[ordinal];
  hipDeviceProp_tR0600 properties{};
  properties.warpSize = device.warp;
  properties.multiProcessorCount = device.compute_units;
  if (layout != kNoName) device.arch.copy(properties.gcnArchName, sizeof properties.gcnArchName - 1);
  std::memset(static_cast<void*>(to), 0, sizeof properties + (layout == kLonger ? kLongerBy : 0));
  const std::size_t moved = layout == kMoved ? kMovedBy : 0;
  std::memcpy(reinterpret_cast<unsigned char*>(to) + moved, &properties, sizeof properties - moved);
  return hipSuccess;
}

PUBLIC hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t* to) {
  OR_FAIL("hipStreamGetDevice");
  *to = device_of(stream);
  return hipSuccess;
}

PUBLIC hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return hipSuccess;
}

PUBLIC hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  OR_FAIL("hipModuleLoadData");
  const auto* bytes = static_cast<const unsigned char*>(image);
  if (std::memcmp(bytes, "\x7f" "ELF", 4) != 0) return hipErrorInvalidImage;
  modules.push_back(std::make_unique<FakeModule>(FakeModule{current, {bytes, bytes + elf_size(bytes)}}));
  FakeModule& loaded = *modules.back();
  *module = reinterpret_cast<hipModule_t>(&loaded);
  FakeRecord record{};
  record.device = current;
  record.capture_mode = capture_mode;
  record.image = loaded.image.data();
  record.image_size = loaded.image.size();
  records.push_back(record);
  return hipSuccess;
}

PUBLIC hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
  OR_FAIL("hipModuleGetFunction");
  auto* loaded = reinterpret_cast<FakeModule*>(module);
  const std::string descriptor = std::string(name) + ".kd";
  const auto& image = loaded->image;
  if (std::search(image.begin(), image.end(), descriptor.c_str(), descriptor.c_str() + descriptor.size() + 1) ==
      image.end()) {
    return hipErrorNotFound;
  }
  functions.push_back(std::make_unique<FakeFunction>(FakeFunction{loaded, name}));
  *function = reinterpret_cast<hipFunction_t>(functions.back().get());
  return hipSuccess;
}

PUBLIC hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared, hipStream_t stream, void** parameters,
                                 void** extra) {
  OR_FAIL("hipModuleLaunchKernel");
  auto* called = reinterpret_cast<FakeFunction*>(function);
  const int device = device_of(stream);
  if (parameters || !extra || called->module->device != device) return hipErrorInvalidValue;
  if (!grid_x || !grid_y || !grid_z || std::uint64_t{grid_x} * block_x >> 32) return hipErrorInvalidValue;
  if (extra[0] != HIP_LAUNCH_PARAM_BUFFER_POINTER || extra[2] != HIP_LAUNCH_PARAM_BUFFER_SIZE ||
      extra[4] != HIP_LAUNCH_PARAM_END) {
    return hipErrorInvalidValue;
  }
  FakeRecord record{};
  record.what = 2;
  record.device = device;
  record.capture_mode = capture_mode;
  const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
  std::copy_n(grid, 3, record.grid);
  std::copy_n(block, 3, record.block);
  record.shared = shared;
  record.image = called->module->image.data();
  record.image_size = called->module->image.size();
  record.kernel = called->name.c_str();
  record.argument_bytes = *static_cast<std::size_t*>(extra[3]);
  if (record.argument_bytes > sizeof record.arguments) return hipErrorInvalidValue;
  std::memcpy(record.arguments, extra[1], record.argument_bytes);
  records.push_back(record);
  return hipSuccess;
}

PUBLIC hipError_t hipMemsetAsync(void* to, int value, std::size_t bytes, hipStream_t stream) {
  OR_FAIL("hipMemsetAsync");
  FakeRecord record{};
  record.what = 1;
  record.device = device_of(stream);
  record.capture_mode = capture_mode;
  record.to = to;
  record.value = value;
  record.bytes = bytes;
  records.push_back(record);
  return hipSuccess;
}

PUBLIC const char* hipGetErrorName(hipError_t error) {
  switch (error) {
    case hipErrorInvalidValue: return "hipErrorInvalidValue";
    case hipErrorInvalidDevice: return "hipErrorInvalidDevice";
    case hipErrorInvalidImage: return "hipErrorInvalidImage";
    case hipErrorNotFound: return "hipErrorNotFound";
    default: return "hipErrorUnknown";
  }
}

// What tests say.

PUBLIC void fake_hip_device(int ordinal, const char* arch, int compute_units, int warp) {
  const std::lock_guard guard(lock);
  devices[ordinal] = {arch, compute_units, warp};
}

PUBLIC void fake_hip_layout(int kind) {
  const std::lock_guard guard(lock);
  layout = static_cast<Layout>(kind);
}

PUBLIC void fake_hip_fail(const char* function, int error) {
  const std::lock_guard guard(lock);
  if (error) {
    failing[function] = error;
  } else {
    failing.erase(function);
  }
}

PUBLIC void* fake_hip_stream(int ordinal) { return &streams[ordinal]; }

PUBLIC void fake_hip_forget() {
  const std::lock_guard guard(lock);
  records.clear();
}

PUBLIC int fake_hip_count() {
  const std::lock_guard guard(lock);
  return static_cast<int>(records.size());
}

PUBLIC const FakeRecord* fake_hip_record(int at) {
  const std::lock_guard guard(lock);
  return &records[at];
}
