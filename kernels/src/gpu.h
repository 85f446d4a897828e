// GPU primitives of the kernels for clang, without HIP's headers. Kernels include no other header.
//
// Sums use groups of 32 lanes, which divide wavefronts of 32 and 64, so the order of additions and the result are the
// same on all GPUs.
#pragma once

#define GPU_DEVICE static inline __attribute__((device, always_inline))
#define GPU_KERNEL(name, Args) \
  extern "C" __attribute__((global, visibility("default"), amdgpu_flat_work_group_size(64, 512))) void name(Args args)
#define GPU_DEVICE_MEMBER static __attribute__((device, always_inline))
#define GPU_SHARED __attribute__((shared))

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;
using Half = _Float16;

GPU_DEVICE u32 gpu_thread() { return __builtin_amdgcn_workitem_id_x(); }
GPU_DEVICE u32 gpu_block() { return __builtin_amdgcn_workgroup_id_x(); }

GPU_DEVICE void gpu_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The value of the lane whose number differs by the bits of mask, which is below 32.
GPU_DEVICE float gpu_shuffle_xor(float value, u32 mask) {
  const u32 lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  const int from = __builtin_amdgcn_ds_bpermute(static_cast<int>((lane ^ mask) * 4), __builtin_bit_cast(int, value));
  return __builtin_bit_cast(float, from);
}

GPU_DEVICE float gpu_sqrt(float value) { return __builtin_sqrtf(value); }
GPU_DEVICE float to_float(Half value) { return static_cast<float>(value); }
GPU_DEVICE Half to_half(float value) { return static_cast<Half>(value); }

struct Bf16 {
  u16 bits;
};

GPU_DEVICE u32 bits_of(float value) {
  u32 bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

GPU_DEVICE float float_of(u32 bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

GPU_DEVICE float to_float(float value) { return value; }
GPU_DEVICE float to_float(Bf16 value) { return float_of(static_cast<u32>(value.bits) << 16); }

template <typename Number>
struct Rounded;

template <>
struct Rounded<float> {
  GPU_DEVICE_MEMBER float of(float value) { return value; }
};
template <>
struct Rounded<Half> {
  GPU_DEVICE_MEMBER Half of(float value) { return to_half(value); }
};
template <>
struct Rounded<Bf16> {
  // Round to nearest, ties to even; a NaN stays a NaN.
  GPU_DEVICE_MEMBER Bf16 of(float value) {
    const u32 bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<u16>(bits >> 16 | 0x40u)};
    return Bf16{static_cast<u16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
  }
};

// The numbers of one load or store.
template <typename Number, u32 kCount>
struct alignas(sizeof(Number) * kCount) Pack {
  Number at[kCount];
};

template <typename Number, u32 kCount>
GPU_DEVICE Pack<Number, kCount> load(const void* from, u64 index) {
  return *reinterpret_cast<const Pack<Number, kCount>*>(static_cast<const Number*>(from) + index);
}

template <typename Number, u32 kCount>
GPU_DEVICE void store(void* to, u64 index, const Pack<Number, kCount>& pack) {
  *reinterpret_cast<Pack<Number, kCount>*>(static_cast<Number*>(to) + index) = pack;
}

// The sum over all threads of a block, the same in each; `threads` is a multiple of 32, at most 512.
GPU_DEVICE float block_sum(float value, u32 threads) {
  GPU_SHARED float sums[16];
  for (u32 mask = 16; mask > 0; mask /= 2) value += gpu_shuffle_xor(value, mask);
  if (gpu_thread() % 32 == 0) sums[gpu_thread() / 32] = value;
  gpu_barrier();
  float total = 0;
  for (u32 group = 0; group < threads / 32; ++group) total += sums[group];
  gpu_barrier();  // the next sum overwrites sums
  return total;
}
