#include "module.h"

#include <mutex>
#include <string>

#include "error.h"
#include "xla/ffi/api/c_api.h"

namespace jax_aiter {
namespace {

std::mutex root_lock;
std::string root;

}  // namespace

const char* const kModule = JAX_AITER_MODULE;

std::string hsa_folder() {
  const std::lock_guard guard(root_lock);
  if (root.empty()) {
    throw Error(Code::kFailedPrecondition, std::string("lib") + kModule +
                                               ".so was not told where its code objects are: load it through the "
                                               "jax_aiter package, which calls jax_aiter_set_root.");
  }
  return root;
}

}  // namespace jax_aiter

extern "C" void jax_aiter_set_root(const char* hsa_folder) {
  const std::lock_guard guard(jax_aiter::root_lock);
  jax_aiter::root = hsa_folder ? hsa_folder : "";
}

extern "C" const char* jax_aiter_build_info() {
  static const std::string info = std::string("{\"module\": \"") + jax_aiter::kModule + "\", \"source\": \"" +
                                  JAX_AITER_SOURCE_DIGEST + "\", \"ffi_api\": [" + std::to_string(XLA_FFI_API_MAJOR) +
                                  ", " + std::to_string(XLA_FFI_API_MINOR) + "]}";
  return info.c_str();
}
