// Handler of the fp8 matrix product with scales for blocks of 128, in f16: AITER's one assembly kernel for gfx942.
// wq is in AITER's layout for it, [N/128, K*128].
#include <cstddef>
#include <cstdint>
#include <string>

#include "block_scale.h"
#include "gemm.h"
#include "module.h"
#include "objects.h"

namespace jax_aiter {

namespace {

struct Args {
  const void* x;
  const void* w;
  const void* c;
  const void* x_scale;
  const void* w_scale;
  void* d;
  void* out_f16;
  void* debug[4];
  std::int32_t k;
  std::int32_t n;
  std::int32_t m;
  std::int32_t experts;
  std::int32_t topk;
  std::int32_t stride_token;
};
static_assert(offsetof(Args, x_scale) == 24 && offsetof(Args, out_f16) == 48 && offsetof(Args, k) == 88);
static_assert(offsetof(Args, m) == 96 && offsetof(Args, stride_token) == 108 && sizeof(Args) == 112);

constexpr std::int64_t kTileM = 128;
constexpr const char* kName = "flatmm_uk_gfx9_f16f8_128x256x128_1x4x1_16x16x32";

void run(Stream stream, const BlockScaled& in) {
  in.expect_shapes(ffi::DataType::F8E4M3FNUZ, ffi::DataType::F16);
  const std::int64_t m = in.m(), n = in.n(), k = in.k();
  expect(in.w_scale, ffi::DataType::F32, k / kBlock, n / kBlock);
  if (k < kBlock || k % kBlock != 0) refuse(in.xq, "f8e4m3fnuz[M,K], K a multiple of 128");
  if (m == 0) return;

  const Device& device = device_of(stream);
  check_extents({m, n, k, device.compute_units, {}}, m * k, n * k, m * n * 2);
  const Kernel kernel =
      load_kernel(device, module_folder(device) + "/" + kName + ".co", kName, sizeof(Args));

  Args args{};
  args.x = in.xq.data;
  args.w = in.wq.data;
  args.x_scale = in.x_scale.data;
  args.w_scale = in.w_scale.data;
  args.out_f16 = in.out.data;
  args.k = static_cast<std::int32_t>(k);
  args.n = static_cast<std::int32_t>(n);
  args.m = static_cast<std::int32_t>(m);
  const Grid grid{static_cast<unsigned>(n / kColumns), static_cast<unsigned>(parts(m, kTileM)), 1};
  launch(kernel, grid, 256, &args, sizeof args, stream);
}

ffi::Error flatmm_fp8(Stream stream, ffi::AnyBuffer xq, ffi::AnyBuffer wq, ffi::AnyBuffer x_scale,
                      ffi::AnyBuffer w_scale, ffi::Result<ffi::AnyBuffer> out) {
  return guarded("jax_aiter_flatmm_fp8", run, stream,
                 BlockScaled{{"xq", xq}, {"wq", wq}, {"x_scale", x_scale}, {"w_scale", w_scale}, {"out", *out}});
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterFlatmmFp8, jax_aiter::flatmm_fp8, (jax_aiter::bind<4, 1>()));
