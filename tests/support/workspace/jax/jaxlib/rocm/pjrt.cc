// Exports what a PJRT plugin has to export.
#include "xla/pjrt_c_api.h"

extern "C" int JaxScale(float* data, float factor, unsigned count, void* stream);

static int (*const kernels[])(float*, float, unsigned, void*) = {JaxScale};

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api api = {sizeof(PJRT_Api), (void*)kernels, {sizeof(PJRT_Api_Version), nullptr, 0, 112}};
  return &api;
}
