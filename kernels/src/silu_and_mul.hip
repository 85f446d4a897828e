// SwiGLU: gate * sigmoid(gate) * up, and its gradients, for every GPU, in float32 with one rounding.
#include "gpu.h"
#include "silu_and_mul.h"

namespace {

template <typename Number>
constexpr u32 kWide = 16 / sizeof(Number);

// sigmoid(x) and 1 - sigmoid(x), both without cancellation and overflow.
struct Sigmoid {
  float value, rest;
};

GPU_DEVICE Sigmoid sigmoid(float x) {
  const float small = gpu_exp(x < 0 ? x : -x), large = 1.0f / (1.0f + small);
  return x < 0 ? Sigmoid{small * large, large} : Sigmoid{large, small * large};
}

template <typename Number, u32 kCount>
GPU_DEVICE void silu_and_mul(const SiluAndMulArgs& args) {
  for_each_item(args.spread, [&](u64 row, u32 item) {
    const u64 at = row * args.stride + u64{item} * kCount;
    const Pack<Number, kCount> gate = load<Number, kCount>(args.gate, at), up = load<Number, kCount>(args.up, at);
    Pack<Number, kCount> y;
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) {
      const float g = to_float(gate.at[i]);
      y.at[i] = Rounded<Number>::of(g * sigmoid(g).value * to_float(up.at[i]));
    }
    store(args.y, row * args.n + u64{item} * kCount, y);
  });
}

template <typename Number, u32 kCount>
GPU_DEVICE void silu_and_mul_bwd(const SiluAndMulBwdArgs& args) {
  for_each_item(args.spread, [&](u64 row, u32 item) {
    const u64 at = row * args.stride + u64{item} * kCount;
    const Pack<Number, kCount> dy = load<Number, kCount>(args.dy, row * args.n + u64{item} * kCount);
    const Pack<Number, kCount> gate = load<Number, kCount>(args.gate, at), up = load<Number, kCount>(args.up, at);
    Pack<Number, kCount> dgate, dup;
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) {
      const float g = to_float(gate.at[i]), d = to_float(dy.at[i]);
      const Sigmoid s = sigmoid(g);
      dgate.at[i] = Rounded<Number>::of(d * to_float(up.at[i]) * (s.value * (1.0f + g * s.rest)));
      dup.at[i] = Rounded<Number>::of(d * (g * s.value));
    }
    store(args.dgate, at, dgate);
    store(args.dup, at, dup);
  });
}

}  // namespace

#define SILU_AND_MUL_KERNELS(suffix, Number)                                                                       \
  GPU_KERNEL(silu_and_mul_##suffix##_wide, SiluAndMulArgs) { silu_and_mul<Number, kWide<Number>>(args); }          \
  GPU_KERNEL(silu_and_mul_##suffix##_narrow, SiluAndMulArgs) { silu_and_mul<Number, 1>(args); }                    \
  GPU_KERNEL(silu_and_mul_bwd_##suffix##_wide, SiluAndMulBwdArgs) { silu_and_mul_bwd<Number, kWide<Number>>(args); } \
  GPU_KERNEL(silu_and_mul_bwd_##suffix##_narrow, SiluAndMulBwdArgs) { silu_and_mul_bwd<Number, 1>(args); }

SILU_AND_MUL_KERNELS(f32, float)
SILU_AND_MUL_KERNELS(f16, Half)
SILU_AND_MUL_KERNELS(bf16, Bf16)
