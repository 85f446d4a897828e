// Handler of fp4 GEMM: a[M,K] @ b[N,K]^T in bf16, two e2m1 numbers in each byte, an e8m0 scale for each 32 along K.
// AITER's assembly kernels for gfx950. The scales are in AITER's shuffled layout, padded to whole tiles, and b is in its
// layout (shuffle_weight with (16, 16)) when bpreshuffle is set; the handler cannot verify it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gemm.h"
#include "handler.h"
#include "module.h"
#include "objects.h"

namespace jax_aiter {

namespace {

struct Args {
  GemmArgs product;  // strides in numbers
  Slot<const void*> a_scale;
  Slot<const void*> b_scale;
  Slot<std::uint32_t> stride_a_scale0, stride_a_scale1, stride_b_scale0, stride_b_scale1;  // bytes
  Slot<std::uint32_t> log2_split_k;
};
static_assert(offsetof(Args, a_scale) == 272);
static_assert(offsetof(Args, b_scale) == 288 && offsetof(Args, stride_a_scale0) == 304);
static_assert(offsetof(Args, stride_b_scale0) == 336 && offsetof(Args, log2_split_k) == 368 && sizeof(Args) == 384);

constexpr int kStepOfK = 256;
constexpr int kMostSplits = 16;
constexpr int kRowsTogether = 32;  // the kernels write whole groups of so many rows

struct Request {
  GemmProblem problem;
  int split;  // 0: choose
  bool bpreshuffle;
};

GemmOptions options(const Request& request, const GemmRow& row) {
  if ((row.number("bpreshuffle", 0) == 1) != request.bpreshuffle) {
    return {{}, std::string("it wants b ") + (request.bpreshuffle ? "as it is" : "in AITER's layout")};
  }
  const bool splits = row.number("splitk", 0) == 1;
  if (request.split <= 1) {
    // As in AITER, a kernel that can split k is used only on request, by splitk or by name.
    if (splits && request.problem.kernel.empty()) return {{}, "it is for splitk=2, 4, 8 or 16"};
    return {{1}, ""};
  }
  if (!splits) return {{}, "it does not split K"};
  if (request.problem.k % (static_cast<std::int64_t>(kStepOfK) * request.split) != 0) {
    return {{}, "K is no multiple of 256 * splitk"};
  }
  return {{request.split}, ""};
}

// [rows of the operand or more, K/32 or more]: padded as AITER's quantisation pads.
void expect_scales(const Tensor& scales, std::int64_t rows, std::int64_t k) {
  if (scales.dtype != ffi::DataType::U8 || scales.shape.size() != 2 || scales.shape[0] < rows ||
      scales.shape[1] < parts(k, 32)) {
    refuse(scales, "u8[R,S], R >= " + std::to_string(rows) + ", S >= " + std::to_string(parts(k, 32)));
  }
}

int log2_of(int split) {
  int log2 = 0;
  while (1 << log2 < split) ++log2;
  return log2;
}

void run(Stream stream, const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale,
         const Tensor& out, std::int32_t split, std::string_view kernel_name, bool bpreshuffle) {
  expect_matrix(a, ffi::DataType::U8);
  expect_matrix(b, ffi::DataType::U8);
  const std::int64_t m = a.shape[0], n = b.shape[0], k = a.shape[1] * 2;
  expect(b, ffi::DataType::U8, n, k / 2);
  expect_scales(a_scale, m, k);
  expect_scales(b_scale, n, k);
  expect(out, ffi::DataType::BF16, m, n);
  if (split < 0 || split > kMostSplits || 1 << log2_of(split) != (split == 0 ? 1 : split)) {
    throw Error(Code::kInvalidArgument, "splitk is " + std::to_string(split) + ", not 0, 1, 2, 4, 8 or 16.");
  }
  if (m % kRowsTogether != 0) refuse(a, "u8[M,K/2], M a multiple of 32, which padding makes it");
  if (k % kStepOfK != 0) refuse(a, "u8[M,K/2], K a multiple of 256");
  if (m == 0 || n == 0) return;

  const Device& device = device_of(stream);
  const Request request{{m, n, k, device.compute_units, kernel_name}, split, bpreshuffle};
  check_extents(request.problem, m * k / 2, n * k / 2, m * n * 2);
  const GemmTable& table = gemm_table(device);
  const GemmChoice choice =
      choose_gemm(table, request.problem, [&](const GemmRow& row) { return options(request, row); });
  const Kernel kernel =
      load_kernel(device, table.folder + "/" + choice.row->file, choice.row->kernel, sizeof(Args));

  Args args{};
  args.product = gemm_args(out.data, a.data, b.data, request.problem, n, k);
  args.a_scale.value = a_scale.data;
  args.b_scale.value = b_scale.data;
  args.stride_a_scale0.value = static_cast<std::uint32_t>(a_scale.shape[1]);
  args.stride_b_scale0.value = static_cast<std::uint32_t>(b_scale.shape[1]);
  args.log2_split_k.value = static_cast<std::uint32_t>(log2_of(choice.split));
  if (choice.split > 1) {
    const Hip& hip = Hip::get();
    hip.check(hip.memset_async(out.data, 0, static_cast<std::size_t>(m * n * 2), stream), "zeroing the result");
  }
  launch(kernel, choice.grid, 256, &args, sizeof args, stream);
}

ffi::Error gemm_fp4(Stream stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer a_scale, ffi::AnyBuffer b_scale,
                    ffi::Result<ffi::AnyBuffer> out, std::int32_t split, std::string_view kernel, bool bpreshuffle) {
  return guarded("jax_aiter_gemm_fp4", run, stream, Tensor("a", a), Tensor("b", b), Tensor("a_scale", a_scale),
                 Tensor("b_scale", b_scale), Tensor("out", *out), split, kernel, bpreshuffle);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterGemmFp4, jax_aiter::gemm_fp4,
                  (jax_aiter::bind<4, 1>()
                       .Attr<std::int32_t>("splitk")
                       .Attr<std::string_view>("kernel")
                       .Attr<bool>("bpreshuffle")));
