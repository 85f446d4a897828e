// Handler of the router of a mixture of experts: the largest softmax weights of each token and their experts, AITER's
// assembly kernels for gfx942.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "handler.h"
#include "module.h"
#include "objects.h"

namespace jax_aiter {
namespace {

struct Args {
  Slot<void*> ids;
  Slot<void*> weights;
  Slot<const void*> logits;
  Slot<std::uint32_t> tokens, experts, topk;
  Slot<std::uint32_t> renormalize;
  Slot<std::uint32_t> row;  // of ids and weights, in bytes
};
static_assert(offsetof(Args, logits) == 32 && offsetof(Args, tokens) == 48 && offsetof(Args, renormalize) == 96);
static_assert(offsetof(Args, row) == 112 && sizeof(Args) == 128);

// Tokens of a block, chosen like AITER.
constexpr std::int64_t kManyTokens = 10000;
constexpr int kFew = 4, kMany = 12;

void run(Stream stream, const Tensor& logits, const Tensor& weights, const Tensor& ids, bool renormalize) {
  expect_matrix(logits, ffi::DataType::F32);
  expect_matrix(weights, ffi::DataType::F32);
  const std::int64_t tokens = logits.shape[0], experts = logits.shape[1], topk = weights.shape[1];
  expect(weights, ffi::DataType::F32, tokens, topk);
  expect(ids, ffi::DataType::S32, tokens, topk);
  if ((experts != 128 && experts != 256) || (topk != 6 && topk != 8)) {
    throw Error(Code::kUnimplemented, "AITER's kernels choose 6 or 8 of 128 or 256 experts, not " +
                                          std::to_string(topk) + " of " + std::to_string(experts) + ".");
  }
  if (tokens * experts * 4 > std::int64_t{std::numeric_limits<std::uint32_t>::max()}) {
    refuse(logits, "less than 4 GiB");
  }
  if (tokens == 0) return;

  Args args{};
  args.ids.value = ids.data;
  args.weights.value = weights.data;
  args.logits.value = logits.data;
  args.tokens.value = static_cast<std::uint32_t>(tokens);
  args.experts.value = static_cast<std::uint32_t>(experts);
  args.topk.value = static_cast<std::uint32_t>(topk);
  args.renormalize.value = renormalize ? 1 : 0;
  args.row.value = static_cast<std::uint32_t>(topk * 4);
  const int tile = tokens < kManyTokens ? kFew : kMany;
  const std::string name = "topksoftmax_" + std::to_string(tile) + "x" + std::to_string(experts) + "x" +
                           std::to_string(topk);
  const std::string symbol = "_ZN5aiter" + std::to_string(name.size()) + name + "E";
  const Device& device = device_of(stream);
  const Kernel kernel = load_kernel(device, module_folder(device) + "/" + name + ".co", symbol, sizeof args);
  launch(kernel, {static_cast<unsigned>((tokens + tile - 1) / tile), 1, 1}, 256, &args, sizeof args, stream);
}

ffi::Error topk_softmax(Stream stream, ffi::AnyBuffer logits, ffi::Result<ffi::AnyBuffer> weights,
                        ffi::Result<ffi::AnyBuffer> ids, bool renormalize) {
  return guarded("jax_aiter_topk_softmax", run, stream, Tensor("logits", logits), Tensor("weights", *weights),
                 Tensor("ids", *ids), renormalize);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterTopkSoftmax, jax_aiter::topk_softmax,
                  (jax_aiter::bind<1, 2>().Attr<bool>("renormalize")));
