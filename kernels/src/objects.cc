#include "objects.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "code_object.h"
#include "error.h"
#include "gfx_table.h"
#include "module.h"

namespace jax_aiter {
namespace {

constexpr int kRelaxedCapture = 2;  // hipStreamCaptureModeRelaxed

// HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
void* const kArgumentsAre = reinterpret_cast<void*>(1);
void* const kArgumentBytesAre = reinterpret_cast<void*>(2);
void* const kEnd = reinterpret_cast<void*>(3);

// A handler may be called while its stream is captured into a graph. Loading code is not part of the stream's work, so
// capture is relaxed meanwhile.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Hip& hip) : hip_(hip) {
    hip_.check(hip_.exchange_capture_mode(&mode_), "relaxing stream capture");
  }
  ~RelaxedCapture() { hip_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Hip& hip_;
  int mode_ = kRelaxedCapture;
};

// A file on a device.
struct Loaded {
  std::mutex lock;
  std::string image;  // HIP may keep reading it
  CodeObject object;
  Module module = nullptr;
  std::map<std::string, Function> functions;
};

Loaded& entry(int device, const std::string& path) {
  static std::mutex lock;
  static std::map<std::pair<int, std::string>, std::unique_ptr<Loaded>> entries;
  const std::lock_guard guard(lock);
  std::unique_ptr<Loaded>& found = entries[{device, path}];
  if (!found) found = std::make_unique<Loaded>();
  return *found;
}

bool runs_on(unsigned mach, const Device& device) {
  const Gfx* gfx = find_gfx(device.processor);
  if (gfx == nullptr) return false;
  const Gfx* generic = find_gfx(gfx->generic);
  return mach == gfx->mach || (generic != nullptr && mach == generic->mach);
}

std::string name_of(unsigned mach) {
  for (const Gfx& gfx : kGfxTable) {
    if (gfx.mach == mach) return std::string(gfx.processor);
  }
  return "processor " + std::to_string(mach);
}

void load(Loaded& loaded, const Device& device, const std::string& path) {
  std::string image = read_file(path);
  const auto* first = reinterpret_cast<const unsigned char*>(image.data());
  CodeObject object = read_code_object(std::span(first, image.size()), path);
  if (!runs_on(object.mach, device)) {
    throw Error(Code::kFailedPrecondition,
                path + " is code for " + name_of(object.mach) + ", but device " + std::to_string(device.ordinal) +
                    " is a " + device.name + ". Install the wheel again.");
  }
  const Hip& hip = Hip::get();
  const DeviceScope scope(device.ordinal);
  const RelaxedCapture relaxed(hip);
  loaded.image = std::move(image);
  loaded.object = std::move(object);
  hip.check(hip.module_load_data(&loaded.module, loaded.image.data()),
            "loading " + path + " on device " + std::to_string(device.ordinal));
}

Function function_of(Loaded& loaded, const Device& device, const std::string& path, const std::string& kernel) {
  if (const auto known = loaded.functions.find(kernel); known != loaded.functions.end()) return known->second;
  const Hip& hip = Hip::get();
  const DeviceScope scope(device.ordinal);
  Function function = nullptr;
  hip.check(hip.module_get_function(&function, loaded.module, kernel.c_str()), "finding " + kernel + " in " + path);
  return loaded.functions[kernel] = function;
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw Error(Code::kNotFound, path + " is not there or cannot be read. Was jax_aiter built for this GPU?");
  }
  return content;
}

std::string module_folder(const Device& device) {
  const std::string hsa = hsa_folder();
  const Gfx* gfx = find_gfx(device.processor);
  std::string looked, variants;
  const auto holds = [&](const std::string& below) {
    const std::string folder = hsa + "/" + below + "/" + kModule;
    std::error_code ignored;
    if (std::filesystem::is_directory(folder, ignored)) return folder;
    looked += (looked.empty() ? "" : ", ") + folder;
    return std::string();
  };
  for (const Variant& variant : kVariants) {
    if (variant.processor != device.processor) continue;
    const std::string name(variant.folder), units = std::to_string(variant.compute_units);
    if (variant.compute_units == device.compute_units) {
      if (const std::string folder = holds(device.processor + "/" + name); !folder.empty()) return folder;
    } else {
      variants += (variants.empty() ? " (" : ", ") + name + " has " + units;
    }
  }
  for (const std::string& target : {device.processor, std::string(gfx ? gfx->generic : "")}) {
    if (target.empty()) continue;
    if (const std::string folder = holds(target); !folder.empty()) return folder;
  }
  throw Error(Code::kNotFound, std::string("This jax_aiter has no ") + kModule + " kernels for " + device.name +
                                   " with " + std::to_string(device.compute_units) + " compute units" +
                                   (variants.empty() ? "" : variants + ")") + ": there is no " + looked +
                                   ". Install one that was built for it.");
}

Kernel load_kernel(const Device& device, const std::string& path, const std::string& kernel, std::size_t most_bytes) {
  Loaded& loaded = entry(device.ordinal, path);
  const std::lock_guard guard(loaded.lock);
  if (loaded.module == nullptr) load(loaded, device, path);
  const auto found = loaded.object.kernarg_bytes.find(kernel);
  if (found == loaded.object.kernarg_bytes.end()) {
    throw Error(Code::kNotFound, path + " has no kernel " + kernel + ". Install the wheel again.");
  }
  if (found->second > most_bytes) {
    throw Error(Code::kFailedPrecondition, path + ": " + kernel + " takes " + std::to_string(found->second) +
                                               " bytes of arguments, and the handler packs " +
                                               std::to_string(most_bytes) + ". They do not belong together.");
  }
  return Kernel{function_of(loaded, device, path, kernel), static_cast<std::size_t>(found->second)};
}

void launch(const Kernel& kernel, Grid grid, unsigned block, const void* arguments, std::size_t bytes, Stream stream) {
  const Hip& hip = Hip::get();
  std::size_t taken = kernel.argument_bytes < bytes ? kernel.argument_bytes : bytes;
  void* extra[] = {kArgumentsAre, const_cast<void*>(arguments), kArgumentBytesAre, &taken, kEnd};
  hip.check(hip.launch(kernel.function, grid.x, grid.y, grid.z, block, 1, 1, 0, stream, nullptr, extra),
            "launching a kernel of " + std::string(kModule));
}

}  // namespace jax_aiter
