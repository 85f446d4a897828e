// Handlers of SwiGLU: the portable kernels of silu_and_mul.hip for f32, f16 and bf16.
#include "silu_and_mul.h"

#include <cstdint>
#include <initializer_list>
#include <string>

#include "portable.h"

namespace jax_aiter {

namespace {

// The address of number n of a tensor.
void* behind(const Tensor& tensor, std::int64_t n) {
  const std::int64_t size = tensor.dtype == ffi::DataType::F32 ? 4 : 2;
  return static_cast<char*>(tensor.data) + n * size;
}

// Checks a tensor of rows; `times` numbers are for each of the result.
void expect_rows(const Tensor& tensor, std::int64_t times) {
  if (number_of(tensor) == nullptr || tensor.shape.size() != 2 || tensor.shape[1] < 1 || tensor.shape[1] % times) {
    refuse(tensor, std::string("f32, f16 or bf16[rows,") + (times == 1 ? "n]" : "2n]") + ", n > 0");
  }
  as_int("n", tensor.shape[1]);
}

// Completes the arguments and launches a kernel of rows of n numbers that begin every `stride` numbers.
template <typename Args>
void launch_rows(Stream stream, const char* family, const Tensor& x, std::int64_t n, std::int64_t stride,
                 std::initializer_list<Tensor> all, Args& args) {
  const std::int64_t rows = x.shape[0];
  if (rows == 0) return;
  const unsigned wide = numbers_in_16_bytes(x);
  const bool packs = are_aligned(all) && n % wide == 0;
  args.n = static_cast<unsigned long>(n);
  args.stride = static_cast<unsigned long>(stride);
  args.spread = spread(static_cast<unsigned long>(rows), static_cast<unsigned>(n / (packs ? wide : 1)));
  const std::string kernel = std::string(family) + "_" + number_of(x) + (packs ? "_wide" : "_narrow");
  launch_portable(stream, "silu_and_mul", kernel, args.spread, args);
}

void packed(Stream stream, const Tensor& x, const Tensor& y) {
  expect_rows(x, 2);
  const std::int64_t n = x.shape[1] / 2;
  expect(y, x.dtype, x.shape[0], n);
  SiluAndMulArgs args{};
  args.gate = x.data;
  args.up = behind(x, n);
  args.y = y.data;
  launch_rows(stream, "silu_and_mul", x, n, 2 * n, {x, y}, args);
}

void packed_bwd(Stream stream, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  expect_rows(x, 2);
  const std::int64_t n = x.shape[1] / 2;
  expect(dy, x.dtype, x.shape[0], n);
  expect(dx, x.dtype, x.shape[0], 2 * n);
  SiluAndMulBwdArgs args{};
  args.dy = dy.data;
  args.gate = x.data;
  args.up = behind(x, n);
  args.dgate = dx.data;
  args.dup = behind(dx, n);
  launch_rows(stream, "silu_and_mul_bwd", x, n, 2 * n, {dy, x, dx}, args);
}

void apart(Stream stream, const Tensor& gate, const Tensor& up, const Tensor& y) {
  expect_rows(gate, 1);
  const std::int64_t rows = gate.shape[0], n = gate.shape[1];
  expect(up, gate.dtype, rows, n);
  expect(y, gate.dtype, rows, n);
  SiluAndMulArgs args{};
  args.gate = gate.data;
  args.up = up.data;
  args.y = y.data;
  launch_rows(stream, "silu_and_mul", gate, n, n, {gate, up, y}, args);
}

void apart_bwd(Stream stream, const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& dgate,
               const Tensor& dup) {
  expect_rows(gate, 1);
  const std::int64_t rows = gate.shape[0], n = gate.shape[1];
  for (const Tensor& other : {dy, up, dgate, dup}) expect(other, gate.dtype, rows, n);
  SiluAndMulBwdArgs args{};
  args.dy = dy.data;
  args.gate = gate.data;
  args.up = up.data;
  args.dgate = dgate.data;
  args.dup = dup.data;
  launch_rows(stream, "silu_and_mul_bwd", gate, n, n, {dy, gate, up, dgate, dup}, args);
}

ffi::Error silu_and_mul(Stream stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y) {
  return guarded("jax_aiter_silu_and_mul", packed, stream, Tensor("x", x), Tensor("y", *y));
}

ffi::Error silu_and_mul_bwd(Stream stream, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> dx) {
  return guarded("jax_aiter_silu_and_mul_bwd", packed_bwd, stream, Tensor("dy", dy), Tensor("x", x), Tensor("dx", *dx));
}

ffi::Error swiglu(Stream stream, ffi::AnyBuffer gate, ffi::AnyBuffer up, ffi::Result<ffi::AnyBuffer> y) {
  return guarded("jax_aiter_swiglu", apart, stream, Tensor("gate", gate), Tensor("up", up), Tensor("y", *y));
}

ffi::Error swiglu_bwd(Stream stream, ffi::AnyBuffer dy, ffi::AnyBuffer gate, ffi::AnyBuffer up,
                      ffi::Result<ffi::AnyBuffer> dgate, ffi::Result<ffi::AnyBuffer> dup) {
  return guarded("jax_aiter_swiglu_bwd", apart_bwd, stream, Tensor("dy", dy), Tensor("gate", gate), Tensor("up", up),
                 Tensor("dgate", *dgate), Tensor("dup", *dup));
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterSiluAndMul, jax_aiter::silu_and_mul, (jax_aiter::bind<1, 1>()));
JAX_AITER_HANDLER(JaxAiterSiluAndMulBwd, jax_aiter::silu_and_mul_bwd, (jax_aiter::bind<2, 1>()));
JAX_AITER_HANDLER(JaxAiterSwiglu, jax_aiter::swiglu, (jax_aiter::bind<2, 1>()));
JAX_AITER_HANDLER(JaxAiterSwigluBwd, jax_aiter::swiglu_bwd, (jax_aiter::bind<3, 2>()));
