#include <hip/hip_runtime_api.h>

#define __global__ __attribute__((global))

__global__ void pivots_to_permutation(const int* pivots, int* permutation, int count) {
  for (int i = 0; i < count; ++i) permutation[i] = i;
  for (int i = 0; i < count; ++i) {
    int other = permutation[pivots[i]];
    permutation[pivots[i]] = permutation[i];
    permutation[i] = other;
  }
}

extern "C" int JaxLaunch(void* data, unsigned count, void* stream) {
  int* numbers = static_cast<int*>(data);
  pivots_to_permutation<<<1, 1, 0, static_cast<hipStream_t>(stream)>>>(numbers, numbers + count, int(count));
  return hipGetLastError();
}
