// Shared by fp8 GEMMs with one scale for each block of 128: checks of the operands' shapes.
#pragma once

#include <cstdint>
#include <string>

#include "handler.h"

namespace jax_aiter {

constexpr std::int64_t kBlock = 128;    // numbers along k, or columns, that share a scale
constexpr std::int64_t kColumns = 256;  // of a thread block

// out[m,n] = (xq * x_scale) @ (wq * w_scale)^T. The handler cannot verify the layout of wq.
struct BlockScaled {
  Tensor xq, wq, x_scale, w_scale, out;

  std::int64_t m() const { return xq.shape[0]; }
  std::int64_t n() const { return wq.shape[0]; }
  std::int64_t k() const { return xq.shape[1]; }

  std::string text() const {
    return xq.text() + ", " + wq.text() + ", " + x_scale.text() + ", " + w_scale.text() + ", " + out.text();
  }

  // Throws Error unless they fit; the shape of w_scale is the kernel's.
  void expect_shapes(ffi::DataType dtype, ffi::DataType out_dtype) const {
    expect_matrix(xq, dtype);
    expect_matrix(wq, dtype);
    expect(wq, dtype, n(), k());
    expect(x_scale, ffi::DataType::F32, k() / kBlock, m());
    expect(out, out_dtype, m(), n());
    if (n() < 1 || n() % kColumns != 0) refuse(wq, dtype_name(dtype) + "[N,K], N a multiple of 256");
  }
};

}  // namespace jax_aiter
