#include <hip/hip_runtime_api.h>

#define __global__ __attribute__((global))

__global__ void norms(double* data, unsigned count) {
  unsigned i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
  if (i < count) data[i] = __builtin_sqrt(data[i] * data[i] + 1.0);
}

extern "C" int JaxLaunch(void* data, unsigned count, void* stream) {
  norms<<<(count + 255) / 256, 256, 0, static_cast<hipStream_t>(stream)>>>(static_cast<double*>(data), count);
  return hipGetLastError();
}
