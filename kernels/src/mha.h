// What the handlers of attention share: shapes, checked once, and what follows from them for Composable Kernel.
//
// Sequences come as a batch, q T[B,queries,H,D], or packed one after the other, q T[total,H,D] with where each begins in
// cu_q s32[B+1] (s32[0] for a batch). k, v and gradients are alike. lse is f32[B,H,queries], packed f32[H,total].
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "ck.h"
#include "mask.hpp"

namespace jax_aiter {

struct MhaOptions {
  float scale;
  float dropout;
  std::int32_t window_left, window_right;       // keys that a query sees around its diagonal, -1 for all; it ends at the
                                                // last query and the last key
  std::int32_t longest_query, longest_key;      // of packed sequences
};

struct MhaShape {
  bool packed;
  int batch, heads, key_heads, depth, value_depth;
  int queries, keys;            // of a sequence; packed: of all of them
  int most_queries, most_keys;  // of one sequence
};

struct MhaMask {
  mask_enum type;
  int left, right;
};

struct MhaStrides {
  int row, head, batch;
};

inline MhaShape mha_shape(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_q, const Tensor& cu_k,
                          const MhaOptions& options) {
  MhaShape shape{};
  shape.packed = q.shape.size() == 3;
  if (!shape.packed && q.shape.size() != 4) refuse(q, "[batch,queries,heads,depth] or packed [total,heads,depth]");
  const std::size_t rank = q.shape.size(), rows = rank - 3;
  for (const Tensor* tensor : {&k, &v}) {
    if (tensor->shape.size() != rank || tensor->dtype != q.dtype) refuse(*tensor, "of the rank and dtype of " + q.text());
  }
  shape.heads = ck_int("heads", q.shape[rank - 2]);
  shape.key_heads = ck_int("heads of k", k.shape[rank - 2]);
  shape.depth = ck_int("depth", q.shape[rank - 1]);
  shape.value_depth = ck_int("depth of v", v.shape[rank - 1]);
  shape.queries = ck_int("queries", q.shape[rows]);
  shape.keys = ck_int("keys", k.shape[rows]);
  if (shape.key_heads == 0 || shape.heads % shape.key_heads != 0) {
    refuse(k, "of a number of heads that divides that of " + q.text());
  }
  for (const Tensor* tensor : {&q, &v}) {
    const std::int64_t size = tensor->shape[rank - 1];
    if (size < 8 || size > 256 || size % 8 != 0) refuse(*tensor, "of a head depth that is a multiple of 8 up to 256");
  }
  if (shape.packed) {
    if (cu_q.shape.size() != 1 || cu_q.shape[0] < 2) refuse(cu_q, "s32[sequences + 1]");
    shape.batch = ck_int("sequences", cu_q.shape[0] - 1);
    expect(cu_q, ffi::DataType::S32, shape.batch + 1);
    expect(cu_k, ffi::DataType::S32, shape.batch + 1);
    shape.most_queries = ck_int("longest_query", options.longest_query);
    shape.most_keys = ck_int("longest_key", options.longest_key);
    expect(k, q.dtype, shape.keys, shape.key_heads, shape.depth);
    expect(v, q.dtype, shape.keys, shape.key_heads, shape.value_depth);
  } else {
    expect(cu_q, ffi::DataType::S32, 0);
    expect(cu_k, ffi::DataType::S32, 0);
    shape.batch = ck_int("batch", q.shape[0]);
    shape.most_queries = shape.queries;
    shape.most_keys = shape.keys;
    expect(k, q.dtype, shape.batch, shape.keys, shape.key_heads, shape.depth);
    expect(v, q.dtype, shape.batch, shape.keys, shape.key_heads, shape.value_depth);
  }
  return shape;
}

// Throws Error unless the tensor is [batch,rows,heads,depth], or packed [rows,heads,depth].
inline void expect_heads(const Tensor& tensor, ffi::DataType dtype, const MhaShape& shape, int rows, int heads,
                         int depth) {
  if (shape.packed) {
    expect(tensor, dtype, rows, heads, depth);
  } else {
    expect(tensor, dtype, shape.batch, rows, heads, depth);
  }
  expect_aligned(tensor);
}

// Throws Error unless the tensor has a number for each query of each head, as lse has.
inline void expect_rows(const Tensor& tensor, const MhaShape& shape) {
  if (shape.packed) {
    expect(tensor, ffi::DataType::F32, shape.heads, shape.queries);
  } else {
    expect(tensor, ffi::DataType::F32, shape.batch, shape.heads, shape.queries);
  }
}

inline MhaStrides strides_of(const char* name, const MhaShape& shape, int rows, int heads, int depth) {
  const std::int64_t row = std::int64_t{heads} * depth;
  return {ck_int(name, row), depth, shape.packed ? 0 : ck_int(name, row * rows)};
}

inline MhaStrides strides_of_rows(const char* name, const MhaShape& shape) {
  return {1, shape.queries, shape.packed ? 0 : ck_int(name, std::int64_t{shape.heads} * shape.queries)};
}

inline MhaMask mask_of(const MhaShape& shape, const MhaOptions& options) {
  if (options.window_left < -1 || options.window_right < -1) {
    throw Error(Code::kInvalidArgument, "The window is (" + std::to_string(options.window_left) + ", " +
                                            std::to_string(options.window_right) + "); -1 stands for no limit.");
  }
  const int left = options.window_left >= shape.most_keys ? -1 : options.window_left;
  const int right = options.window_right >= shape.most_keys ? -1 : options.window_right;
  if (left < 0 && right < 0) return {mask_enum::no_mask, -1, -1};
  return {mask_enum::mask_bottom_right, left, right};
}

// What is added to the products: a matrix for all heads, T[queries,keys]; slopes of ALiBi, f32[B,H]; or nothing, [0].
template <typename Args>
bias_enum set_bias(Args& args, const MhaShape& shape, const Tensor& q, const Tensor& bias, const Tensor& slopes) {
  args.bias_ptr = nullptr;
  args.stride_bias = args.nhead_stride_bias = args.batch_stride_bias = 0;
  const bool matrix = bias.shape.size() == 2, alibi = slopes.shape.size() == 2;
  if (matrix && alibi) refuse(slopes, "f32[0] where there is a bias");
  if (matrix) {
    expect(bias, q.dtype, shape.queries, shape.most_keys);
    expect_aligned(bias);
    args.bias_ptr = bias.data;
    args.stride_bias = shape.most_keys;
  } else {
    expect(bias, q.dtype, 0);
  }
  if (alibi) {
    expect(slopes, ffi::DataType::F32, shape.batch, shape.heads);
    args.bias_ptr = slopes.data;
    args.stride_bias = shape.heads;
  } else {
    expect(slopes, ffi::DataType::F32, 0);
  }
  return matrix ? bias_enum::elementwise_bias : alibi ? bias_enum::alibi : bias_enum::no_bias;
}

// Dropout with the seed and the offset of Philox in device memory, u32[4], low words first; without it u32[0].
template <typename Args>
bool set_dropout(Args& args, const MhaOptions& options, const Tensor& seed) {
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw Error(Code::kInvalidArgument, "dropout is " + std::to_string(options.dropout) + ", not from 0 to less than 1.");
  }
  const bool drops = options.dropout > 0;
  expect(seed, ffi::DataType::U32, drops ? 4 : 0);
  args.p_drop = options.dropout;
  const auto* words = static_cast<const std::uint32_t*>(seed.data);
  args.drop_seed_offset = drops ? std::pair<const void*, const void*>(words, words + 2)
                                : std::pair<const void*, const void*>(nullptr, nullptr);
  return drops;
}

template <typename Args>
void set_sizes(Args& args, const MhaShape& shape, const MhaMask& mask, const Tensor& cu_q, const Tensor& cu_k) {
  args.seqstart_q_ptr = shape.packed ? cu_q.data : nullptr;
  args.seqstart_k_ptr = shape.packed ? cu_k.data : nullptr;
  args.seqlen_q = shape.queries;
  args.seqlen_k = shape.keys;
  args.batch = shape.batch;
  args.max_seqlen_q = shape.most_queries;
  args.hdim_q = shape.depth;
  args.hdim_v = shape.value_depth;
  args.nhead_q = shape.heads;
  args.nhead_k = shape.key_heads;
  args.window_size_left = mask.left;
  args.window_size_right = mask.right;
  args.mask_type = static_cast<ck_tile::index_t>(mask.type);
}

// Places outside of all packed sequences are written by nobody else.
inline void clear(Stream stream, const Tensor& tensor, std::int64_t element_bytes) {
  if (tensor.elements() == 0) return;
  const Hip& hip = Hip::get();
  hip.check(hip.memset_async(tensor.data, 0, static_cast<std::size_t>(tensor.elements() * element_bytes), stream),
            "clearing " + tensor.text());
}

// Binding of the attributes of both handlers.
template <typename Binding>
auto with_options(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Attr<float>("scale")
      .template Attr<float>("dropout")
      .template Attr<std::int32_t>("window_left")
      .template Attr<std::int32_t>("window_right")
      .template Attr<std::int32_t>("longest_query")
      .template Attr<std::int32_t>("longest_key");
}

}  // namespace jax_aiter
