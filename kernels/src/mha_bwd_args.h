// Arguments of AITER's attention backward kernels, as its code objects' metadata name and place them. There are four
// layouts; strides are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "objects.h"

namespace jax_aiter {

// A slot of 8 bytes; Slot has 16.
template <typename T>
struct alignas(8) ShortSlot {
  T value;
};

// Batches without a tail: depth 128, as many queries as keys, a multiple of 64; all other strides follow.
struct DenseArgs {
  Slot<void*> dq, dk, dv;
  Slot<const void*> q, k, v, dout, lse, d;
  Slot<float> scale, log2e;
  Slot<std::uint32_t> queries;
  Slot<std::uint32_t> k_tile;
  Slot<std::uint32_t> q_head, q_batch, q_row;
  Slot<std::uint32_t> group;  // heads of q for each of k
  Slot<std::uint32_t> k_head, k_batch, k_row, dk_row;
  Slot<std::uint32_t> depth;
};
static_assert(offsetof(DenseArgs, d) == 128 && offsetof(DenseArgs, queries) == 176);
static_assert(offsetof(DenseArgs, group) == 256 && offsetof(DenseArgs, dk_row) == 320 && sizeof(DenseArgs) == 352);

// Batches; only kernels with a window read it.
struct BatchArgs {
  ShortSlot<void*> dq, dk, dv;
  ShortSlot<const void*> q, k, v, dout, lse, d;
  ShortSlot<float> scale, log2e;
  ShortSlot<std::uint32_t> group, queries, keys, depth, heads;
  ShortSlot<std::uint32_t> q_head, q_batch, q_row;
  ShortSlot<std::uint32_t> k_head, k_batch, k_row;
  ShortSlot<std::uint32_t> v_head, v_batch, v_row;
  ShortSlot<std::uint32_t> dout_head, dout_batch, dout_row;
  ShortSlot<std::uint32_t> dk_head, dk_batch, dk_row;
  ShortSlot<std::uint32_t> dv_head, dv_batch, dv_row;
  ShortSlot<std::int32_t> mask_x, mask_y;
};
static_assert(offsetof(BatchArgs, scale) == 72 && offsetof(BatchArgs, heads) == 120 && offsetof(BatchArgs, v_row) == 192);
static_assert(offsetof(BatchArgs, dv_row) == 264 && offsetof(BatchArgs, mask_y) == 280 && sizeof(BatchArgs) == 288);

// Packed sequences.
struct PackedArgs {
  ShortSlot<void*> dq, dk, dv;
  ShortSlot<const void*> q, k, v, dout, lse, d;
  ShortSlot<const void*> cu_q, cu_k, cu_q_padded, cu_k_padded;
  ShortSlot<float> scale, log2e;
  ShortSlot<std::uint32_t> group, lse_head, keys;
  ShortSlot<std::uint32_t> q_head, q_row, k_head, k_row, v_head, v_row, dout_head, dout_row;
  ShortSlot<std::uint32_t> dk_head, dk_row, dv_head, dv_row;
  ShortSlot<std::uint32_t> depth;
};
static_assert(offsetof(PackedArgs, cu_q) == 72 && offsetof(PackedArgs, scale) == 104 && offsetof(PackedArgs, keys) == 136);
static_assert(offsetof(PackedArgs, dk_head) == 208 && offsetof(PackedArgs, depth) == 240 && sizeof(PackedArgs) == 248);

// Kernels made for gfx950, and all kernels of later sources of AITER: batches and packed sequences.
struct FullArgs {
  Slot<void*> dq, dk, dv;
  Slot<const void*> q, k, v, dout, lse, d;
  Slot<float> scale, log2e;
  Slot<std::uint32_t> queries, k_tile;
  Slot<std::uint32_t> q_head, q_batch, q_row;
  Slot<std::uint32_t> group;
  Slot<std::uint32_t> k_head, k_batch, k_row, dk_row;
  Slot<std::uint32_t> keys, depth, value_depth, heads;
  Slot<std::uint32_t> v_head, v_batch, v_row;
  Slot<std::uint32_t> dout_head, dout_batch, dout_row;
  Slot<std::uint32_t> dk_head, dk_batch;
  Slot<std::uint32_t> dv_head, dv_batch, dv_row;
  Slot<std::uint32_t> lse_head;
  Slot<const void*> cu_q, cu_k, cu_q_padded, cu_k_padded;
  Slot<std::uint32_t> longest_query;
  Slot<std::int32_t> mask_x, mask_y;  // read by kernels with a window
};
static_assert(offsetof(FullArgs, queries) == 176 && offsetof(FullArgs, keys) == 336);
static_assert(offsetof(FullArgs, dv_row) == 560 && offsetof(FullArgs, cu_q) == 592 && sizeof(FullArgs) == 704);

}  // namespace jax_aiter
