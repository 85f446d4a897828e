// Handler of attention forward in bf16: AITER's assembly kernels, without a mask or causal. Rows outside all packed
// sequences are not written, and every query of a sequence must see at least one key.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "mha_shape.h"
#include "module.h"
#include "objects.h"

namespace jax_aiter {
namespace {

struct Args {
  Slot<void*> out;
  Slot<const void*> q, k, v;
  Slot<void*> lse;
  Slot<float> scale;
  Slot<std::uint32_t> queries;
  Slot<std::uint32_t> q_row, q_tile, q_head, q_batch;  // strides in bytes, as all below
  Slot<std::uint32_t> group;                           // heads of q for each of k
  Slot<std::uint32_t> k_row, k_head, k_batch;
  Slot<std::uint32_t> mask_option;
  Slot<std::uint32_t> writes_lse;
  Slot<std::uint32_t> keys;
  Slot<std::uint32_t> depth, value_depth;
  Slot<std::uint32_t> heads;
  Slot<std::uint32_t> v_row, v_head, v_batch;
  Slot<std::uint32_t> out_row, out_head, out_batch;
  Slot<const void*> cu_q, cu_k;
  Slot<std::uint32_t> lse_head;
  Slot<const void*> cu_q_padded, cu_k_padded;
};
static_assert(offsetof(Args, lse) == 64 && offsetof(Args, scale) == 80 && offsetof(Args, q_row) == 112);
static_assert(offsetof(Args, group) == 176 && offsetof(Args, mask_option) == 240 && offsetof(Args, keys) == 272);
static_assert(offsetof(Args, heads) == 320 && offsetof(Args, out_row) == 384 && offsetof(Args, cu_q) == 432);
static_assert(offsetof(Args, lse_head) == 464 && offsetof(Args, cu_k_padded) == 496 && sizeof(Args) == 512);

// Properties that select AITER's kernel, besides the mask and packed sequences.
struct MhaKernel {
  const char* processor;
  int depth;
  const char* name;
  const char* rounding;  // of f32 to bf16; gfx950 has instructions for it
  int tile;              // queries of a block
  unsigned threads;
  bool paired;  // with a causal mask, a block processes two tiles: one with many keys and one with few
};

constexpr MhaKernel kKernels[] = {
    {"gfx942", 128, "hd128_bf16", "_rtna", 256, 512, true},
    {"gfx942", 192, "hd192x128_bf16", "_rtna", 128, 256, false},
    {"gfx950", 128, "hd128_bf16", "", 256, 512, true},
    {"gfx950", 192, "hd192_hd128_bf16", "", 128, 256, true},
};
constexpr int kValueDepth = 128;
constexpr int kElementBytes = 2, kSumBytes = 4;

const MhaKernel& kernel_for(const Device& device, const MhaShape& shape, const Tensor& q, const Tensor& v) {
  for (const MhaKernel& kernel : kKernels) {
    const bool fits = kernel.depth == shape.depth && shape.value_depth == kValueDepth;
    if (kernel.processor == device.processor && fits) return kernel;
  }
  throw Error(Code::kUnimplemented, "AITER has no assembly kernel on " + device.name + " for " + q.text() + ", " +
                                        v.text() + ": depths are 128, or 192 of q and k.");
}

// In bytes; the kernels' offsets within a sequence have 32 bits.
MhaStrides in_bytes(const Tensor& tensor, const MhaShape& shape, int rows, int heads, int depth) {
  const std::int64_t size = std::int64_t{rows} * heads * depth * kElementBytes;
  if (size > std::numeric_limits<std::int32_t>::max()) refuse(tensor, "less than 2 GiB for a sequence, or all packed ones");
  const MhaStrides strides = strides_of(tensor.name, shape, rows, heads, depth);
  return {strides.row * kElementBytes, strides.head * kElementBytes, strides.batch * kElementBytes};
}

std::uint32_t word(int value) { return static_cast<std::uint32_t>(value); }

void set_strides(Args& args, const MhaShape& shape, const MhaKernel& kernel, const Tensor& q, const Tensor& k,
                 const Tensor& v, const Tensor& out) {
  const MhaStrides of_q = in_bytes(q, shape, shape.queries, shape.heads, shape.depth);
  const MhaStrides of_k = in_bytes(k, shape, shape.keys, shape.key_heads, shape.depth);
  const MhaStrides of_v = in_bytes(v, shape, shape.keys, shape.key_heads, shape.value_depth);
  const MhaStrides of_out = in_bytes(out, shape, shape.queries, shape.heads, shape.value_depth);
  args.q_row.value = word(of_q.row), args.q_head.value = word(of_q.head), args.q_batch.value = word(of_q.batch);
  args.q_tile.value = word(as_int("tile", std::int64_t{kernel.tile} * of_q.row));
  args.k_row.value = word(of_k.row), args.k_head.value = word(of_k.head), args.k_batch.value = word(of_k.batch);
  args.v_row.value = word(of_v.row), args.v_head.value = word(of_v.head), args.v_batch.value = word(of_v.batch);
  args.out_row.value = word(of_out.row), args.out_head.value = word(of_out.head);
  args.out_batch.value = word(of_out.batch);
  args.lse_head.value = word(as_int("lse", std::int64_t{strides_of_rows("lse", shape).head} * kSumBytes));
}

Grid grid_of(const MhaShape& shape, const MhaKernel& kernel, bool causal) {
  const int tiles = (shape.queries + kernel.tile - 1) / kernel.tile;
  const auto blocks = static_cast<unsigned>(causal && kernel.paired ? (tiles + 1) / 2 : tiles);
  const auto heads = static_cast<unsigned>(shape.heads), batch = static_cast<unsigned>(shape.batch);
  if (shape.packed) return {heads, batch, blocks};
  return kernel.paired ? Grid{blocks, heads, batch} : Grid{heads, blocks, batch};
}

// Distribution of blocks, chosen like AITER.
std::uint32_t mask_option(const MhaShape& shape, const MhaKernel& kernel, bool causal) {
  constexpr int kManyQueries = 16384;
  if (!kernel.paired) return 0;
  return causal && (shape.heads % 8 != 0 || shape.queries > kManyQueries) ? 3 : 5;
}

void forward(Stream stream, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_q, const Tensor& cu_k,
             const Tensor& out, const Tensor& lse, float scale, bool causal) {
  if (q.dtype != ffi::DataType::BF16) refuse(q, "bf16");
  const MhaShape shape = mha_shape(q, k, v, cu_q, cu_k);
  expect_heads(out, q.dtype, shape, shape.queries, shape.heads, shape.value_depth);
  expect_rows(lse, shape);
  if (out.elements() == 0) return;
  if (shape.keys == 0) refuse(k, "of at least one key");
  if (causal && !shape.packed && shape.queries > shape.keys) refuse(k, "of as many keys as queries where causal");
  const Device& device = device_of(stream);
  const MhaKernel& kernel = kernel_for(device, shape, q, v);

  Args args{};
  args.out.value = out.data;
  args.q.value = q.data;
  args.k.value = k.data;
  args.v.value = v.data;
  args.lse.value = lse.data;
  args.scale.value = scale;
  args.queries.value = word(shape.queries);
  set_strides(args, shape, kernel, q, k, v, out);
  args.group.value = word(shape.heads / shape.key_heads);
  args.mask_option.value = mask_option(shape, kernel, causal);
  args.writes_lse.value = 1;
  args.keys.value = word(shape.keys);
  args.depth.value = word(shape.depth), args.value_depth.value = word(shape.value_depth);
  args.heads.value = word(shape.heads);
  if (shape.packed) {
    args.cu_q.value = args.cu_q_padded.value = cu_q.data;
    args.cu_k.value = args.cu_k_padded.value = cu_k.data;
  }
  const std::string name = std::string("fwd_") + kernel.name + (causal ? "_causal" : "") + kernel.rounding +
                           (shape.packed ? "_group" : "");
  const std::string function = "fmha_" + name;
  const std::string symbol = "_ZN5aiter" + std::to_string(function.size()) + function + "E";
  const Kernel loaded = load_kernel(device, module_folder(device) + "/" + name + ".co", symbol, sizeof args);
  launch(loaded, grid_of(shape, kernel, causal), kernel.threads, &args, sizeof args, stream);
}

ffi::Error mha_fwd_asm(Stream stream, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer cu_q,
                       ffi::AnyBuffer cu_k, ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> lse,
                       float scale, bool causal) {
  return guarded("jax_aiter_mha_fwd_asm", forward, stream, Tensor("q", q), Tensor("k", k), Tensor("v", v),
                 Tensor("cu_q", cu_q), Tensor("cu_k", cu_k), Tensor("out", *out), Tensor("lse", *lse), scale, causal);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterMhaFwdAsm, jax_aiter::mha_fwd_asm,
                  (jax_aiter::bind<5, 2>().Attr<float>("scale").Attr<bool>("causal")));
