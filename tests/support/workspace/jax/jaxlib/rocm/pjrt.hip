#include <hip/hip_runtime_api.h>

#define __global__ __attribute__((global))

// Of the device libraries.
extern "C" __attribute__((device)) float __ocml_fma_f32(float, float, float);

__global__ void scale(float* data, float factor, unsigned count) {
  unsigned i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
  if (i < count) data[i] = __ocml_fma_f32(data[i], factor, 1.0f);
}

extern "C" int JaxScale(float* data, float factor, unsigned count, void* stream) {
  scale<<<(count + 255) / 256, 256, 0, static_cast<hipStream_t>(stream)>>>(data, factor, count);
  return hipGetLastError();
}
