// Buffers of attention kernels: verified shapes, and strides.
//
// Sequences are a batch, q T[B,queries,H,D], or packed, q T[total,H,D] with their offsets in cu_q s32[B+1] (s32[0] for
// a batch). k, v and gradients have the same form. lse is f32[B,H,queries], packed f32[H,total].
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "handler.h"

namespace jax_aiter {

struct MhaShape {
  bool packed;
  int batch, heads, key_heads, depth, value_depth;
  int queries, keys;  // of a sequence; packed: of all of them
};

struct MhaStrides {
  int row, head, batch;  // in elements
};

inline MhaShape mha_shape(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_q, const Tensor& cu_k) {
  MhaShape shape{};
  shape.packed = q.shape.size() == 3;
  if (!shape.packed && q.shape.size() != 4) refuse(q, "[batch,queries,heads,depth] or packed [total,heads,depth]");
  const std::size_t rank = q.shape.size(), rows = rank - 3;
  for (const Tensor* tensor : {&k, &v}) {
    if (tensor->shape.size() != rank || tensor->dtype != q.dtype) refuse(*tensor, "of the rank and dtype of " + q.text());
  }
  shape.heads = as_int("heads", q.shape[rank - 2]);
  shape.key_heads = as_int("heads of k", k.shape[rank - 2]);
  shape.depth = as_int("depth", q.shape[rank - 1]);
  shape.value_depth = as_int("depth of v", v.shape[rank - 1]);
  shape.queries = as_int("queries", q.shape[rows]);
  shape.keys = as_int("keys", k.shape[rows]);
  if (shape.key_heads == 0 || shape.heads % shape.key_heads != 0) {
    refuse(k, "of a number of heads that divides that of " + q.text());
  }
  for (const Tensor* tensor : {&q, &v}) {
    const std::int64_t size = tensor->shape[rank - 1];
    if (size < 8 || size > 256 || size % 8 != 0) refuse(*tensor, "of a head depth that is a multiple of 8 up to 256");
  }
  if (shape.packed) {
    if (cu_q.shape.size() != 1 || cu_q.shape[0] < 2) refuse(cu_q, "s32[sequences + 1]");
    shape.batch = as_int("sequences", cu_q.shape[0] - 1);
    expect(cu_q, ffi::DataType::S32, shape.batch + 1);
    expect(cu_k, ffi::DataType::S32, shape.batch + 1);
    expect(k, q.dtype, shape.keys, shape.key_heads, shape.depth);
    expect(v, q.dtype, shape.keys, shape.key_heads, shape.value_depth);
  } else {
    expect(cu_q, ffi::DataType::S32, 0);
    expect(cu_k, ffi::DataType::S32, 0);
    shape.batch = as_int("batch", q.shape[0]);
    expect(k, q.dtype, shape.batch, shape.keys, shape.key_heads, shape.depth);
    expect(v, q.dtype, shape.batch, shape.keys, shape.key_heads, shape.value_depth);
  }
  for (const Tensor* tensor : {&q, &k, &v}) expect_aligned(*tensor);
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

// Throws Error unless the tensor has one number for each query of each head, like lse.
inline void expect_rows(const Tensor& tensor, const MhaShape& shape) {
  if (shape.packed) {
    expect(tensor, ffi::DataType::F32, shape.heads, shape.queries);
  } else {
    expect(tensor, ffi::DataType::F32, shape.batch, shape.heads, shape.queries);
  }
}

inline MhaStrides strides_of(const char* name, const MhaShape& shape, int rows, int heads, int depth) {
  const std::int64_t row = std::int64_t{heads} * depth;
  return {as_int(name, row), depth, shape.packed ? 0 : as_int(name, row * rows)};
}

inline MhaStrides strides_of_rows(const char* name, const MhaShape& shape) {
  return {1, shape.queries, shape.packed ? 0 : as_int(name, std::int64_t{shape.heads} * shape.queries)};
}

}  // namespace jax_aiter
