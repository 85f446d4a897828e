// What each library is and where its code objects lie.
#pragma once

#include <string>

namespace jax_aiter {

// The name of the module, from the build; also of its folder below hsa/<gfx>. module.cc alone is compiled for each library:
// the objects of all other files are shared by those that have them.
extern const char* const kModule;

// The folder hsa of the installed package, as the loader said. Throws Error when it did not.
std::string hsa_folder();

}  // namespace jax_aiter

extern "C" {
// Called by the loader right after dlopen.
__attribute__((visibility("default"))) void jax_aiter_set_root(const char* hsa_folder);
// JSON: module, digest of its sources, XLA FFI API version.
__attribute__((visibility("default"))) const char* jax_aiter_build_info();
}
