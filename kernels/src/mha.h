// Shared by the handlers of Composable Kernel's attention: both directions take the same inputs, and their argument
// structures have the same names for derived values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "ck.h"
#include "mask.hpp"
#include "mha_shape.h"

namespace jax_aiter {

struct MhaOptions {
  float scale;
  float dropout;
  std::int32_t window_left, window_right;   // keys that a query sees around its diagonal, -1 for all; it ends at the
                                            // last query and the last key
  std::int32_t longest_query, longest_key;  // of packed sequences
};

struct MhaInputs {
  Tensor q, k, v, bias, slopes, cu_q, cu_k, seed;

  std::string text() const {
    return q.text() + ", " + k.text() + ", " + v.text() + ", " + bias.text() + ", " + slopes.text() + ", " +
           cu_q.text() + ", " + cu_k.text() + ", " + seed.text();
  }
};

// Numbers of queries and keys of the longest sequence.
inline int most_queries(const MhaShape& shape, const MhaOptions& options) {
  return shape.packed ? as_int("longest_query", options.longest_query) : shape.queries;
}

inline int most_keys(const MhaShape& shape, const MhaOptions& options) {
  return shape.packed ? as_int("longest_key", options.longest_key) : shape.keys;
}

// Composable Kernel counts ALiBi's distance from the first key instead of the diagonal where a mask is causal by its
// numbers, which adds a term to lse. A window that reaches all keys on the left is the same mask without that effect.
template <typename Args>
mask_enum set_mask(Args& args, const MhaShape& shape, const MhaOptions& options, bool alibi) {
  if (options.window_left < -1 || options.window_right < -1) {
    throw Error(Code::kInvalidArgument, "The window is (" + std::to_string(options.window_left) + ", " +
                                            std::to_string(options.window_right) + "); -1 stands for no limit.");
  }
  const int most = most_keys(shape, options);
  const int left = options.window_left >= most ? -1 : options.window_left;
  const int right = options.window_right >= most ? -1 : options.window_right;
  const bool masks = left >= 0 || right >= 0;
  args.window_size_left = masks && alibi && left < 0 ? most : left;
  args.window_size_right = right;
  const mask_enum type = masks ? mask_enum::mask_bottom_right : mask_enum::no_mask;
  args.mask_type = static_cast<ck_tile::index_t>(type);
  return type;
}

// The bias of the products: a matrix for all heads, T[queries,keys]; slopes of ALiBi, f32[B,H]; or none, [0].
template <typename Args>
bias_enum set_bias(Args& args, const MhaShape& shape, const MhaInputs& in) {
  args.bias_ptr = nullptr;
  args.stride_bias = args.nhead_stride_bias = args.batch_stride_bias = 0;
  const bool matrix = in.bias.shape.size() == 2, alibi = in.slopes.shape.size() == 2;
  if (matrix && alibi) refuse(in.slopes, "f32[0] where there is a bias");
  if (matrix) {
    if (shape.packed) refuse(in.bias, "[0] where sequences are packed");
    expect(in.bias, in.q.dtype, shape.queries, shape.keys);
    expect_aligned(in.bias);
    args.bias_ptr = in.bias.data;
    args.stride_bias = shape.keys;
  } else {
    expect(in.bias, in.q.dtype, 0);
  }
  if (alibi) {
    expect(in.slopes, ffi::DataType::F32, shape.batch, shape.heads);
    args.bias_ptr = in.slopes.data;
    args.stride_bias = shape.heads;
  } else {
    expect(in.slopes, ffi::DataType::F32, 0);
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
void set_sizes(Args& args, const MhaShape& shape, const MhaOptions& options, const MhaInputs& in) {
  args.seqstart_q_ptr = shape.packed ? in.cu_q.data : nullptr;
  args.seqstart_k_ptr = shape.packed ? in.cu_k.data : nullptr;
  args.seqlen_q = shape.queries;
  args.seqlen_k = shape.keys;
  args.batch = shape.batch;
  args.max_seqlen_q = most_queries(shape, options);
  args.hdim_q = shape.depth;
  args.hdim_v = shape.value_depth;
  args.nhead_q = shape.heads;
  args.nhead_k = shape.key_heads;
}

template <typename Args>
void set_strides(Args& args, const MhaShape& shape) {
  const MhaStrides q = strides_of("q", shape, shape.queries, shape.heads, shape.depth);
  const MhaStrides k = strides_of("k", shape, shape.keys, shape.key_heads, shape.depth);
  const MhaStrides v = strides_of("v", shape, shape.keys, shape.key_heads, shape.value_depth);
  const MhaStrides out = strides_of("out", shape, shape.queries, shape.heads, shape.value_depth);
  args.stride_q = q.row, args.nhead_stride_q = q.head, args.batch_stride_q = q.batch;
  args.stride_k = k.row, args.nhead_stride_k = k.head, args.batch_stride_k = k.batch;
  args.stride_v = v.row, args.nhead_stride_v = v.head, args.batch_stride_v = v.batch;
  args.stride_o = out.row, args.nhead_stride_o = out.head, args.batch_stride_o = out.batch;
}

// Checks the inputs that both directions have, and sets the derived values of empty arguments and traits.
template <typename Args, typename Traits>
MhaShape prepare(Args& args, Traits& traits, const MhaInputs& in, const Tensor& out, const Tensor& lse,
                 const MhaOptions& options) {
  traits.data_type = ck_dtype(in.q);
  const MhaShape shape = mha_shape(in.q, in.k, in.v, in.cu_q, in.cu_k);
  expect_heads(out, in.q.dtype, shape, shape.queries, shape.heads, shape.value_depth);
  expect_rows(lse, shape);
  set_sizes(args, shape, options, in);
  set_strides(args, shape);
  args.q_ptr = in.q.data;
  args.k_ptr = in.k.data;
  args.v_ptr = in.v.data;
  args.o_ptr = out.data;
  args.lse_ptr = static_cast<float*>(lse.data);
  traits.hdim_q = shape.depth;
  traits.hdim_v = shape.value_depth;
  traits.is_group_mode = shape.packed;
  traits.bias_type = set_bias(args, shape, in);
  traits.mask_type = set_mask(args, shape, options, traits.bias_type == bias_enum::alibi);
  traits.has_dropout = set_dropout(args, options, in.seed);
  return shape;
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
