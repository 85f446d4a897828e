#include <hip/hip_runtime_api.h>

#define __global__ __attribute__((global))

__global__ void mix(unsigned* data, unsigned count) {
  unsigned i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
  if (i >= count) return;
  unsigned x = data[i];
  for (int round = 0; round < 20; ++round) x = ((x << 13) | (x >> 19)) ^ (x + 0x1BD11BDAu);
  data[i] = x;
}

extern "C" int JaxLaunch(void* data, unsigned count, void* stream) {
  mix<<<(count + 255) / 256, 256, 0, static_cast<hipStream_t>(stream)>>>(static_cast<unsigned*>(data), count);
  return hipGetLastError();
}
