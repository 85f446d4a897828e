// Handler of bf16 GEMM: out[M,N] = a[M,K] @ b[N,K]^T (+ bias[N]), AITER's assembly kernels.
//
// Two generations of code objects, distinguished by table and metadata. bf16gemm_outf32: f32 results, no bias; blocks
// that split k add to a result that must be zeroed first. bf16gemm_fp32bf16 and bf16gemm_bf16: f32 or bf16 results,
// with bias; blocks that split k synchronise through semaphores.
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
  GemmArgs product;  // strides in bytes
  Slot<std::uint32_t> split_k;
  Slot<std::uint32_t> is_out_bf16;
  Slot<const void*> bias;
  Slot<std::uint32_t> add_bias;
  Slot<void*> semaphore;
};
static_assert(offsetof(Args, split_k) == 272);
static_assert(offsetof(Args, is_out_bf16) == 288 && offsetof(Args, bias) == 304);
static_assert(offsetof(Args, add_bias) == 320 && offsetof(Args, semaphore) == 336 && sizeof(Args) == 352);

constexpr int kStepOfK = 64;         // what one step of the kernels' loops takes
constexpr int kMostSplits = 64;      // of the first generation
constexpr int kMostSplitsByCount = 16;
constexpr std::int64_t kSemaphores = 1024;

struct Kind {
  bool first_generation;
  bool f32, bf16;  // results
  bool bias;
};

Kind kind_of(const GemmRow& row) {
  const std::string_view file = row.file;
  if (file.starts_with("bf16gemm_outf32")) return {true, true, false, false};
  return {false, !file.starts_with("bf16gemm_bf16"), true, row.number("bias", 0) == 1};
}

struct Request {
  GemmProblem problem;
  bool bf16, bias;
  int split;  // 0: choose
};

int tiles(const Request& request, const GemmRow& row) {
  return static_cast<int>(std::min<std::int64_t>(
      parts(request.problem.m, row.tile_m) * parts(request.problem.n, row.tile_n), request.problem.compute_units + 1));
}

// First generation: any kernel may split k; by default only to fill idle compute units.
GemmOptions splits_by_adding(const Request& request, const GemmRow& row) {
  const int most = static_cast<int>(std::min<std::int64_t>(kMostSplits, request.problem.k / kStepOfK));
  if (request.split > most) return {{}, "K is too small for splitk=" + std::to_string(request.split)};
  if (request.split > 0) return {{request.split}, ""};
  return {{std::clamp(request.problem.compute_units / tiles(request, row), 1, most)}, ""};
}

// Second generation: a kernel either always or never splits k.
GemmOptions splits_by_count(const Request& request, const GemmRow& row) {
  const int step = std::max(row.number("subk", kStepOfK), 1);
  const int most = static_cast<int>(std::min<std::int64_t>(kMostSplitsByCount, request.problem.k / step));
  const bool splits = row.number("splitk", 0) == 1;
  const auto blocks = parts(request.problem.m, row.tile_m) * parts(request.problem.n, row.tile_n);
  if (!splits || most < 2) {
    if (request.split > 1) return {{}, "splitk=" + std::to_string(request.split) + " is more than it can"};
    return {{1}, ""};
  }
  if (request.split == 1) return {{}, "it splits K, against splitk=1"};
  if (request.split > most) return {{}, "splitk=" + std::to_string(request.split) + " is more than it can"};
  if (blocks > kSemaphores) return {{}, "it splits K, for which there are too few semaphores"};
  if (request.split > 1) return {{request.split}, ""};
  return {{std::clamp(request.problem.compute_units / tiles(request, row), 2, most)}, ""};
}

GemmOptions options(const Request& request, const GemmRow& row) {
  const Kind kind = kind_of(row);
  if (request.problem.k % kStepOfK != 0) return {{}, "K is no multiple of 64"};
  if (row.number("bpreshuffle", 0) == 1) return {{}, "it wants b in another layout"};
  if (request.bf16 ? !kind.bf16 : !kind.f32) {
    return {{}, std::string("its result is ") + (kind.f32 ? "f32" : "bf16")};
  }
  if (request.bias && !kind.bias) return {{}, "it adds no bias"};
  return kind.first_generation ? splits_by_adding(request, row) : splits_by_count(request, row);
}

void run(Stream stream, const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
         const Tensor& semaphore, std::int32_t split, std::string_view kernel_name) {
  expect_matrix(a, ffi::DataType::BF16);
  expect_matrix(b, ffi::DataType::BF16);
  const std::int64_t m = a.shape[0], n = b.shape[0], k = a.shape[1];
  expect(b, ffi::DataType::BF16, n, k);
  const bool with_bias = bias.shape.size() != 1 || bias.shape[0] != 0;
  expect(bias, ffi::DataType::F32, with_bias ? n : 0);
  const bool bf16 = out.dtype == ffi::DataType::BF16;
  expect(out, bf16 ? ffi::DataType::BF16 : ffi::DataType::F32, m, n);
  expect(semaphore, ffi::DataType::U32, kSemaphores);
  if (split < 0) throw Error(Code::kInvalidArgument, "splitk is " + std::to_string(split) + ", not 0 or more.");
  if (m == 0 || n == 0) return;

  const Device& device = device_of(stream);
  const Request request{{m, n, k, device.compute_units, kernel_name}, bf16, with_bias, split};
  const std::int64_t out_bytes = m * n * (bf16 ? 2 : 4);
  check_extents(request.problem, m * k * 2, n * k * 2, out_bytes);
  const GemmTable& table = gemm_table(device);
  const GemmChoice choice =
      choose_gemm(table, request.problem, [&](const GemmRow& row) { return options(request, row); });
  const Kind kind = kind_of(*choice.row);
  const std::string path = table.folder + "/" + choice.row->file;
  const Kernel kernel = load_kernel(device, path, choice.row->kernel, sizeof(Args));
  const std::size_t needed = with_bias ? offsetof(Args, semaphore)
                             : bf16    ? offsetof(Args, bias)
                                       : offsetof(Args, is_out_bf16);
  if (kernel.argument_bytes < needed) {
    throw Error(Code::kFailedPrecondition, path + ": " + choice.row->kernel + " takes " +
                                               std::to_string(kernel.argument_bytes) + " bytes of arguments, not the " +
                                               std::to_string(needed) + " that its table promises.");
  }

  Args args{};
  args.product = gemm_args(out.data, a.data, b.data, request.problem, n * (bf16 ? 2 : 4), k * 2);
  args.split_k.value = static_cast<std::uint32_t>(choice.split);
  args.is_out_bf16.value = bf16;
  args.bias.value = with_bias ? bias.data : nullptr;
  args.add_bias.value = with_bias;
  if (choice.split > 1) {
    const Hip& hip = Hip::get();
    if (kind.first_generation) {
      hip.check(hip.memset_async(out.data, 0, static_cast<std::size_t>(out_bytes), stream), "zeroing the result");
    } else {
      args.semaphore.value = semaphore.data;
      hip.check(hip.memset_async(semaphore.data, 0, kSemaphores * 4, stream), "zeroing the semaphores");
    }
  }
  launch(kernel, choice.grid, 256, &args, sizeof args, stream);
}

ffi::Error gemm_bf16(Stream stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer bias,
                     ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> semaphore, std::int32_t split,
                     std::string_view kernel) {
  return guarded("jax_aiter_gemm_bf16", run, stream, Tensor("a", a), Tensor("b", b), Tensor("bias", bias),
                 Tensor("out", *out), Tensor("semaphore", *semaphore), split, kernel);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterGemmBf16, jax_aiter::gemm_bf16,
                  (jax_aiter::bind<3, 2>().Attr<std::int32_t>("splitk").Attr<std::string_view>("kernel")));
