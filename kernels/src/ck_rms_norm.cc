// The handler of Composable Kernel's RMSNorm.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ck.h"
#include "rmsnorm2d_fwd.hpp"

namespace jax_aiter {
namespace {

// The kernels use 32-bit byte offsets, so larger tensors are processed in chunks of whole rows.
constexpr std::int64_t kMostBytes = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kElementBytes = 2;

std::byte* rows_from(const Tensor& tensor, std::int64_t row, std::int64_t n) {
  return static_cast<std::byte*>(tensor.data) + row * n * kElementBytes;
}

void forward(Stream stream, const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& y,
             const Tensor& sum, float epsilon) {
  if (x.shape.size() != 2 || x.shape[1] < 1) refuse(x, "f16 or bf16[rows,n], n > 0");
  const std::string dtype = ck_dtype(x);
  const std::int64_t rows = x.shape[0], n = x.shape[1];
  const bool adds = residual.shape.size() == 2;
  if (adds) {
    expect(residual, x.dtype, rows, n);
    expect(sum, x.dtype, rows, n);
  } else {
    expect(residual, x.dtype, 0);
    expect(sum, x.dtype, 0);
  }
  expect(gamma, x.dtype, n);
  expect(y, x.dtype, rows, n);
  if (!(epsilon >= 0)) throw Error(Code::kInvalidArgument, "epsilon is " + std::to_string(epsilon) + ", not 0 or more.");
  const std::int64_t most_rows = kMostBytes / (n * kElementBytes);
  if (most_rows == 0) refuse(x, "rows of less than 2147483648 bytes");
  if (rows == 0) return;
  for (const Tensor* tensor : {&x, &gamma, &y}) expect_aligned(*tensor);
  if (adds) {
    for (const Tensor* tensor : {&residual, &sum}) expect_aligned(*tensor);
  }

  rmsnorm2d_fwd_traits traits{};
  traits.prec_i = traits.prec_o = traits.prec_sm = traits.prec_sy = dtype;
  traits.fused_add = adds ? 1 : 0;
  const ck_tile::stream_config config{static_cast<hipStream_t>(stream)};
  const int columns = as_int("n", n);
  call_ck(stream, [&] {
    float answer = 0;
    for (std::int64_t row = 0; row < rows && answer >= 0; row += most_rows) {
      rmsnorm2d_fwd_args args{};
      args.p_x = rows_from(x, row, n);
      args.p_x_residual = adds ? rows_from(residual, row, n) : nullptr;
      args.p_gamma = gamma.data;
      args.p_y = rows_from(y, row, n);
      args.p_y_residual = adds ? rows_from(sum, row, n) : nullptr;
      args.epsilon = epsilon;
      args.m = as_int("rows", std::min(most_rows, rows - row));
      args.n = args.x_stride = args.xr_stride = args.y_stride = args.yr_stride = columns;
      answer = rmsnorm2d_fwd(traits, args, config);
    }
    return answer;
  });
}

ffi::Error ck_rms_norm(Stream stream, ffi::AnyBuffer x, ffi::AnyBuffer residual, ffi::AnyBuffer gamma,
                       ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> sum, float epsilon) {
  return guarded("jax_aiter_ck_rms_norm", forward, stream, Tensor("x", x), Tensor("residual", residual),
                 Tensor("gamma", gamma), Tensor("y", *y), Tensor("sum", *sum), epsilon);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterCkRmsNorm, jax_aiter::ck_rms_norm, (jax_aiter::bind<3, 2>().Attr<float>("epsilon")));
