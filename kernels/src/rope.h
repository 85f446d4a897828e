// Arguments and launch geometry of the RoPE kernels: shared by kernels, handler and checks.
#pragma once

#include "spread.h"

// Rotates pairs of numbers of each head by the angles of the token's position; the numbers of a head beyond the pairs
// are copied. A position outside of the tables makes NaN.
struct RopeArgs {
  const void* x;         // [tokens, heads, depth]
  const float* cos;      // [rows, half]
  const float* sin;      // [rows, half]
  const int* positions;  // [tokens]
  void* y;               // [tokens, heads, depth]
  Spread spread;         // of tokens; an item is some pairs, or some numbers that are copied
  float sign;            // 1 rotates, -1 rotates back
  unsigned heads;
  unsigned depth;
  unsigned half;  // pairs of a head
  unsigned rows;  // of the tables
  unsigned unused;
};
static_assert(sizeof(RopeArgs) == 96);
static_assert(__builtin_offsetof(RopeArgs, spread) == 40 && __builtin_offsetof(RopeArgs, sign) == 72);

struct RopePlan {
  bool wide;       // loads of 16 bytes, else of one number
  unsigned items;  // of a token
};

// `wide` numbers are 16 bytes; aligned: all pointers are multiples of 16.
constexpr RopePlan plan_rope(unsigned heads, unsigned depth, unsigned half, unsigned wide, bool aligned) {
  const bool packs = aligned && half % wide == 0 && depth % wide == 0;
  return {packs, heads * ((depth - half) / (packs ? wide : 1))};
}
