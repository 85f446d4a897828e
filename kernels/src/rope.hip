// Rotary position embedding, and its gradient, for every GPU. Angles and products are in float32.
#include "gpu.h"
#include "rope.h"

namespace {

template <typename Number>
constexpr u32 kWide = 16 / sizeof(Number);

// Number `at` of two packs, one after the other.
template <typename Number, u32 kCount>
GPU_DEVICE Number& of_both(Pack<Number, kCount> (&both)[2], u32 at) {
  return both[at / kCount].at[at % kCount];
}

template <u32 kCount>
GPU_DEVICE void load_floats(const float* from, float (&to)[kCount]) {
  constexpr u32 kPart = kCount < 4 ? kCount : 4;
#pragma unroll
  for (u32 part = 0; part < kCount; part += kPart) {
    const Pack<float, kPart> four = load<float, kPart>(from, part);
    for (u32 i = 0; i < kPart; ++i) to[part + i] = four.at[i];
  }
}

// Rotates kCount pairs of the head at `head`, from this pair on. Pairs are neighbours if interleaved, else they are one
// number of the first half and one of the second half.
template <typename Number, u32 kCount, bool kInterleaved>
GPU_DEVICE void rotate(const RopeArgs& args, u64 token, u64 head, u32 pair) {
  const u64 low = head + (kInterleaved ? 2 * pair : pair), high = low + (kInterleaved ? kCount : args.half);
  Pack<Number, kCount> x[2] = {load<Number, kCount>(args.x, low), load<Number, kCount>(args.x, high)};
  const u32 row = static_cast<u32>(args.positions[token]);
  const bool inside = row < args.rows;
  const u64 angle = u64{inside ? row : 0} * args.half + pair;
  float cos[kCount], sin[kCount];
  load_floats<kCount>(args.cos + angle, cos);
  load_floats<kCount>(args.sin + angle, sin);
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) {
    Number& first = of_both(x, kInterleaved ? 2 * i : i);
    Number& second = of_both(x, kInterleaved ? 2 * i + 1 : kCount + i);
    const float c = inside ? cos[i] : float_of(0x7fc00000u), s = args.sign * sin[i];
    const float a = to_float(first), b = to_float(second);
    first = Rounded<Number>::of(a * c - b * s);
    second = Rounded<Number>::of(b * c + a * s);
  }
  store(args.y, low, x[0]);
  store(args.y, high, x[1]);
}

template <typename Number, u32 kCount, bool kInterleaved>
GPU_DEVICE void rope(const RopeArgs& args) {
  const u32 turns = args.half / kCount, items = (args.depth - args.half) / kCount;
  for_each_item(args.spread, [&](u64 token, u32 item) {
    const u64 head = (token * args.heads + item / items) * args.depth;
    const u32 part = item % items;
    if (part < turns) return rotate<Number, kCount, kInterleaved>(args, token, head, part * kCount);
    const u64 at = head + 2 * args.half + (part - turns) * kCount;
    store(args.y, at, load<Number, kCount>(args.x, at));
  });
}

}  // namespace

#define ROPE_KERNELS(suffix, Number)                                                                    \
  GPU_KERNEL(rope_neox_##suffix##_wide, RopeArgs) { rope<Number, kWide<Number>, false>(args); }         \
  GPU_KERNEL(rope_neox_##suffix##_narrow, RopeArgs) { rope<Number, 1, false>(args); }                   \
  GPU_KERNEL(rope_interleaved_##suffix##_wide, RopeArgs) { rope<Number, kWide<Number>, true>(args); }   \
  GPU_KERNEL(rope_interleaved_##suffix##_narrow, RopeArgs) { rope<Number, 1, true>(args); }

ROPE_KERNELS(f32, float)
ROPE_KERNELS(f16, Half)
ROPE_KERNELS(bf16, Bf16)
