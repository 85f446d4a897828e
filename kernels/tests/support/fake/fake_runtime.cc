// What libraries with kernels of their own ask of HIP besides: they register them and launch by host function. A part of
// FakeHip; it writes launches down.
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#define PUBLIC extern "C" __attribute__((visibility("default")))

struct FakeDim {
  unsigned x, y, z;
};

// Read by ctypes; see drive_ck.py.
struct FakeLaunch {
  const char* kernel;
  unsigned grid[3], block[3];
  unsigned char arguments[100];  // the structure of Composable Kernel's RMSNorm
};

namespace {

struct Configuration {
  FakeDim grid, block;
  std::size_t shared;
  void* stream;
};

std::mutex lock;
std::map<const void*, std::string> kernels;
std::deque<FakeLaunch> launches;
thread_local Configuration configuration;
int failing = 0;
void* bundle = nullptr;

}  // namespace

PUBLIC void** __hipRegisterFatBinary(const void*) { return &bundle; }
PUBLIC void __hipUnregisterFatBinary(void**) {}
PUBLIC void __hipRegisterFunction(void**, const void* host, char*, const char* name, unsigned, void*, void*, FakeDim*,
                                  FakeDim*, int*) {
  const std::lock_guard guard(lock);
  kernels[host] = name;
}
PUBLIC int __hipPushCallConfiguration(FakeDim grid, FakeDim block, std::size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
PUBLIC int __hipPopCallConfiguration(FakeDim* grid, FakeDim* block, std::size_t* shared, void** stream) {
  *grid = configuration.grid, *block = configuration.block;
  *shared = configuration.shared, *stream = configuration.stream;
  return 0;
}
PUBLIC int hipLaunchKernel(const void* host, FakeDim grid, FakeDim block, void** arguments, std::size_t, void*) {
  const std::lock_guard guard(lock);
  FakeLaunch& made = launches.emplace_back();
  made = {kernels.at(host).c_str(), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {}};
  std::memcpy(made.arguments, arguments[0], sizeof made.arguments);
  return failing;
}
PUBLIC int hipPeekAtLastError() { return failing; }
PUBLIC int hipGetLastError() { return failing; }
PUBLIC const char* hipGetErrorString(int) { return "no code object for this device"; }

// Asked for by code that measures, which is never reached.
PUBLIC int hipEventCreate(void**) { return 1; }
PUBLIC int hipEventDestroy(void*) { return 1; }
PUBLIC int hipEventElapsedTime(float*, void*, void*) { return 1; }
PUBLIC int hipEventRecord(void*, void*) { return 1; }
PUBLIC int hipEventSynchronize(void*) { return 1; }
PUBLIC int hipStreamSynchronize(void*) { return 1; }

PUBLIC int fake_runtime_count() { return static_cast<int>(launches.size()); }
PUBLIC const FakeLaunch* fake_runtime_launch(int at) { return &launches[static_cast<std::size_t>(at)]; }
PUBLIC void fake_runtime_forget() { launches.clear(); }
PUBLIC void fake_runtime_fail(int error) { failing = error; }
