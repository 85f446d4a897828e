// Handler of int8 GEMM: out = (a * a_scale) @ (b * b_scale)^T + bias in bf16, AITER's assembly kernels for gfx942.
// b is in AITER's layout for them (shuffle_weight with layout (32, 16)); the handler cannot verify it.
#include <algorithm>
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
  Slot<void*> c;
  Slot<const void*> a;
  Slot<const void*> b;
  Slot<const void*> a_scale;
  Slot<const void*> b_scale;
  Slot<const void*> bias;
  Slot<std::uint32_t> m, n, k;
  Slot<std::uint32_t> stride_a, stride_b, stride_c;  // bytes
  Slot<std::uint32_t> split_k;
};
static_assert(offsetof(Args, a_scale) == 48 && offsetof(Args, b_scale) == 64 && offsetof(Args, bias) == 80);
static_assert(offsetof(Args, m) == 96 && offsetof(Args, stride_a) == 144 && offsetof(Args, stride_c) == 176);
static_assert(offsetof(Args, split_k) == 192 && sizeof(Args) == 208);

constexpr int kStepOfK = 128;
constexpr int kMostSplits = 16;
constexpr int kMostSplitsByDefault = 8;

// Each part of k is a multiple of 128, and none is empty.
bool divides(std::int64_t k, int split) {
  const std::int64_t part = parts(parts(k, split), kStepOfK) * kStepOfK;
  return parts(k, part) == split;
}

std::int64_t blocks_of(const GemmProblem& problem, const GemmRow& row) {
  return parts(problem.m, row.tile_m) * parts(problem.n, row.tile_n);
}

// As many parts as fill idle compute units: in all 35 rows of AITER's a8w8_bpreshuffle_tuned_gemm.csv for int8, this is
// the fastest split.
int parts_by_default(const GemmProblem& problem, const GemmRow& row) {
  const std::int64_t fill = problem.compute_units / blocks_of(problem, row);
  int split = static_cast<int>(std::clamp<std::int64_t>(fill, 1, kMostSplitsByDefault));
  while (!divides(problem.k, split)) --split;
  return split;
}

GemmOptions options(const GemmProblem& problem, int split, const GemmRow& row) {
  if (problem.k % kStepOfK != 0) return {{}, "K is no multiple of 128"};
  if (row.number("bpreshuffle", 1) != 1) return {{}, "it wants b in another layout"};
  const bool splits = row.number("splitk", 0) == 1;
  const int parts_of_k = split > 0 ? split : splits ? parts_by_default(problem, row) : 1;
  if (parts_of_k > 1 && !splits) return {{}, "it does not split K"};
  if (parts_of_k > kMostSplits || !divides(problem.k, parts_of_k)) {
    return {{}, "K has no " + std::to_string(parts_of_k) + " parts that are multiples of 128, at most 16"};
  }
  // Each block first clears its share of the result, to which the blocks of all parts add in the end: one that started
  // later would clear what others have added.
  if (parts_of_k > 1 && blocks_of(problem, row) * parts_of_k > problem.compute_units) {
    return {{}, std::to_string(parts_of_k) + " parts of K do not all run at the same time on " +
                    std::to_string(problem.compute_units) + " compute units"};
  }
  return {{parts_of_k}, ""};
}

void run(Stream stream, const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale,
         const Tensor& bias, const Tensor& out, std::int32_t split, std::string_view kernel_name) {
  expect_matrix(a, ffi::DataType::S8);
  expect_matrix(b, ffi::DataType::S8);
  const std::int64_t m = a.shape[0], n = b.shape[0], k = a.shape[1];
  expect(b, ffi::DataType::S8, n, k);
  expect(a_scale, ffi::DataType::F32, m, 1);
  expect(b_scale, ffi::DataType::F32, 1, n);
  expect(bias, ffi::DataType::F32, n);  // the kernels always add one
  expect(out, ffi::DataType::BF16, m, n);
  if (split < 0) throw Error(Code::kInvalidArgument, "splitk is " + std::to_string(split) + ", not 0 or more.");
  if (m == 0 || n == 0) return;

  const Device& device = device_of(stream);
  const GemmProblem problem{m, n, k, device.compute_units, kernel_name};
  check_extents(problem, m * k, n * k, m * n * 2);
  const GemmTable& table = gemm_table(device);
  const GemmChoice choice =
      choose_gemm(table, problem, [&](const GemmRow& row) { return options(problem, split, row); });
  const Kernel kernel =
      load_kernel(device, table.folder + "/" + choice.row->file, choice.row->kernel, sizeof(Args));

  Args args{};
  args.c.value = out.data;
  args.a.value = a.data;
  args.b.value = b.data;
  args.a_scale.value = a_scale.data;
  args.b_scale.value = b_scale.data;
  args.bias.value = bias.data;
  args.m.value = static_cast<std::uint32_t>(m);
  args.n.value = static_cast<std::uint32_t>(n);
  args.k.value = static_cast<std::uint32_t>(k);
  args.stride_a.value = args.stride_b.value = static_cast<std::uint32_t>(k);
  args.stride_c.value = static_cast<std::uint32_t>(n * 2);
  args.split_k.value = static_cast<std::uint32_t>(choice.split);
  if (choice.split > 1) {
    const Hip& hip = Hip::get();
    hip.check(hip.memset_async(out.data, 0, static_cast<std::size_t>(m * n * 2), stream), "zeroing the result");
  }
  // The grid's x dimension covers the parts of k.
  launch(kernel, {choice.grid.x * choice.grid.z, choice.grid.y, 1}, 256, &args, sizeof args, stream);
}

ffi::Error gemm_i8(Stream stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer a_scale, ffi::AnyBuffer b_scale,
                   ffi::AnyBuffer bias, ffi::Result<ffi::AnyBuffer> out, std::int32_t split, std::string_view kernel) {
  return guarded("jax_aiter_gemm_i8", run, stream, Tensor("a", a), Tensor("b", b), Tensor("a_scale", a_scale),
                 Tensor("b_scale", b_scale), Tensor("bias", bias), Tensor("out", *out), split, kernel);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterGemmI8, jax_aiter::gemm_i8,
                  (jax_aiter::bind<5, 1>().Attr<std::int32_t>("splitk").Attr<std::string_view>("kernel")));
