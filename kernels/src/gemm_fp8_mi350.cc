// Handler of fp8 GEMM with scales for blocks of 128, in bf16: AITER's two assembly kernels for gfx950.
// wq is in AITER's layout for them, [N/128, K*128]. They read scales of weights as [N/128, K/128], as Composable Kernel
// does, although AITER's comments differ: kernels/tests/integration/handlers/test_kernel_isa_aiter.py runs them.
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
  Slot<void*> out;
  Slot<const void*> x;
  Slot<const void*> w;
  Slot<const void*> xc;
  Slot<const void*> x_scale;
  Slot<const void*> w_scale;
  Slot<const void*> smq, stp, sep;
  Slot<std::uint32_t> k, n, m;
  Slot<std::uint32_t> experts;
  Slot<std::uint32_t> stride_x, stride_w, stride_out;  // bytes
  Slot<std::uint32_t> stride_expert, stride_expert_scale, stride_smooth, topk, split_k, activation;
  Slot<const void*> sw;
};
static_assert(offsetof(Args, x) == 16 && offsetof(Args, x_scale) == 64 && offsetof(Args, w_scale) == 80);
static_assert(offsetof(Args, k) == 144 && offsetof(Args, m) == 176 && offsetof(Args, experts) == 192);
static_assert(offsetof(Args, stride_x) == 208 && offsetof(Args, stride_out) == 240);
static_assert(offsetof(Args, split_k) == 320 && offsetof(Args, sw) == 352 && sizeof(Args) == 368);

constexpr std::int64_t kFewRows = 32;  // up to so many, the small kernel

void run(Stream stream, const BlockScaled& in) {
  in.expect_shapes(ffi::DataType::F8E4M3FN, ffi::DataType::BF16);
  const std::int64_t m = in.m(), n = in.n(), k = in.k();
  expect(in.w_scale, ffi::DataType::F32, n / kBlock, k / kBlock);
  if (m < 16 || k < 512 || k % kBlock != 0) refuse(in.xq, "f8e4m3fn[M,K], M >= 16, K >= 512 and a multiple of 128");

  const Device& device = device_of(stream);
  check_extents({m, n, k, device.compute_units, {}}, m * k, n * k, m * n * 2);
  const bool few = m <= kFewRows;
  const std::string name = few ? "f8_block_scale_mi350_x32" : "f8_block_scale_mi350_x128";
  const Kernel kernel = load_kernel(device, module_folder(device) + "/" + name + ".co", name, sizeof(Args));

  Args args{};
  args.out.value = in.out.data;
  args.x.value = in.xq.data;
  args.w.value = in.wq.data;
  args.x_scale.value = in.x_scale.data;
  args.w_scale.value = in.w_scale.data;
  args.k.value = static_cast<std::uint32_t>(k);
  args.n.value = static_cast<std::uint32_t>(n);
  args.m.value = static_cast<std::uint32_t>(m);
  args.experts.value = 1;
  args.stride_x.value = args.stride_w.value = static_cast<std::uint32_t>(k);
  args.stride_out.value = static_cast<std::uint32_t>(n * 2);
  const Grid grid{static_cast<unsigned>(n / kColumns), static_cast<unsigned>(parts(m, few ? kFewRows : kBlock)), 1};
  launch(kernel, grid, 256, &args, sizeof args, stream);
}

ffi::Error gemm_fp8_mi350(Stream stream, ffi::AnyBuffer xq, ffi::AnyBuffer wq, ffi::AnyBuffer x_scale,
                          ffi::AnyBuffer w_scale, ffi::Result<ffi::AnyBuffer> out) {
  return guarded("jax_aiter_gemm_fp8_mi350", run, stream,
                 BlockScaled{{"xq", xq}, {"wq", wq}, {"x_scale", x_scale}, {"w_scale", w_scale}, {"out", *out}});
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterGemmFp8Mi350, jax_aiter::gemm_fp8_mi350, (jax_aiter::bind<4, 1>()));
