#include <hip/hip_runtime.h>

__global__ void mix(unsigned* data, unsigned count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  unsigned x = data[i];
  for (int round = 0; round < 20; ++round) x = ((x << 13) | (x >> 19)) ^ (x + 0x1BD11BDAu);
  data[i] = x;
}

extern "C" int JaxLaunch(void* data, unsigned count, void* stream) {
  mix<<<(count + 255) / 256, 256, 0, static_cast<hipStream_t>(stream)>>>(static_cast<unsigned*>(data), count);
  return hipGetLastError();
}
