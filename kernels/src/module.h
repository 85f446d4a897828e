// Identity of a library, and the location of its code objects.
#pragma once

#include <string>

namespace jax_aiter {

// The name of the module, set by the build; also the name of its folder below hsa/<gfx>. Only module.cc is compiled for
// each library: libraries share the object files of all other sources.
extern const char* const kModule;

// The folder hsa of the installed package, as set by the loader. Throws Error if it was not set.
std::string hsa_folder();

}  // namespace jax_aiter

extern "C" {
// Called by the loader right after dlopen.
__attribute__((visibility("default"))) void jax_aiter_set_root(const char* hsa_folder);
// JSON: module, digest of its sources, XLA FFI API version.
__attribute__((visibility("default"))) const char* jax_aiter_build_info();
}
