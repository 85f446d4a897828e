// Handler of the experts of a mixture of experts, by AITER's assembly kernels that do both products at once. Each block
// of 32 rows of sorted tokens belongs to one expert; the kernels add the blocks' results to `out` with atomics.
//
// w1 and w2 are in AITER's layout (shuffle_weight with layout (16, 16)); the handler cannot verify it. A sorted token
// is its number, with its place among the token's experts in bits 31:24; padding has the number of tokens. For bf16 and
// silu, AITER's own host code starts fmoe_b16.co, which computes gelu; the kernels here are those of its tables.
#include <array>
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
  Slot<void*> out;
  Slot<const void*> x, w1, valid, w2;
  Slot<const void*> x_scale, w1_scale, w2_scale, smooth_scale;
  Slot<const void*> tokens, weights, experts;
  Slot<std::uint32_t> depth, inner, token_count, expert_count;
  Slot<std::uint32_t> x_row, w1_row, w2_row, out_row;  // strides in bytes, as all below
  Slot<std::uint32_t> w1_expert, w2_expert, w1_scale_expert, w2_scale_expert, smooth_scale_expert;
  Slot<std::uint32_t> topk;
  Slot<std::uint32_t> blocks;  // that stay on the GPU, a multiple of the tiles of an expert; 0 if none stays
  Slot<std::uint32_t> tiles;   // of an expert
};
static_assert(offsetof(Args, w2) == 64 && offsetof(Args, x_scale) == 80 && offsetof(Args, tokens) == 144);
static_assert(offsetof(Args, depth) == 192 && offsetof(Args, x_row) == 256 && offsetof(Args, w1_expert) == 320);
static_assert(offsetof(Args, topk) == 400 && offsetof(Args, tiles) == 432 && sizeof(Args) == 448);

constexpr std::int64_t kRows = 32;  // of a block
constexpr std::int64_t kMostTokens = 1 << 24;
constexpr std::int64_t kMostChoices = 127;
constexpr std::int64_t kDepthStep = 256, kLeastDepth = 512;
constexpr std::array<std::int64_t, 7> kTiles{512, 448, 384, 320, 256, 192, 128};  // inner numbers of a block
constexpr std::int64_t kHalfTile = 512;                                           // without quantisation
constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kBuffer = std::numeric_limits<std::uint32_t>::max();

struct Inputs {
  Tensor x, w1, w2, tokens, weights, experts, valid, x_scale, w1_scale, w2_scale;

  std::string text() const {
    return x.text() + ", " + w1.text() + ", " + w2.text() + ", " + tokens.text() + ", " + weights.text() + ", " +
           experts.text() + ", " + valid.text() + ", " + x_scale.text() + ", " + w1_scale.text() + ", " +
           w2_scale.text();
  }
};

struct Shape {
  std::int64_t count, experts, depth, inner, rows, blocks;
  bool half;  // without quantisation
  std::int64_t element;
};

[[noreturn]] void unsupported(const std::string& what) { throw Error(Code::kUnimplemented, what + "."); }

Shape shape_of(const Inputs& in, const Tensor& out, const Device& device) {
  const bool half = in.x.dtype == ffi::DataType::BF16;
  const ffi::DataType fp8 = device.processor == "gfx950" ? ffi::DataType::F8E4M3FN : ffi::DataType::F8E4M3FNUZ;
  if (in.x.shape.size() != 2 || (!half && in.x.dtype != ffi::DataType::S8 && in.x.dtype != fp8)) {
    refuse(in.x, "a matrix of bf16, s8 or " + dtype_name(fp8));
  }
  if (in.w2.shape.size() != 3) refuse(in.w2, dtype_name(in.x.dtype) + "[E,D,I]");
  const std::int64_t count = in.x.shape[0], depth = in.x.shape[1], experts = in.w2.shape[0], inner = in.w2.shape[2];
  const std::int64_t rows = half ? inner : 2 * inner;
  expect(in.w2, in.x.dtype, experts, depth, inner);
  expect(in.w1, in.x.dtype, experts, rows, depth);
  if (in.tokens.shape.size() != 1 || in.tokens.shape[0] % kRows != 0) refuse(in.tokens, "s32[P], P a multiple of 32");
  const std::int64_t places = in.tokens.shape[0];
  expect(in.tokens, ffi::DataType::S32, places);
  expect(in.weights, ffi::DataType::F32, places);
  expect(in.experts, ffi::DataType::S32, places / kRows);
  expect(in.valid, ffi::DataType::S32, 2);
  if (half) {
    for (const Tensor* scale : {&in.x_scale, &in.w1_scale, &in.w2_scale}) expect(*scale, ffi::DataType::F32, 0);
  } else {
    expect(in.x_scale, ffi::DataType::F32, count, 1);
    expect(in.w1_scale, ffi::DataType::F32, experts, rows);
    expect(in.w2_scale, ffi::DataType::F32, experts, depth);
  }
  expect(out, ffi::DataType::BF16, count, depth);
  return {count, experts, depth, inner, rows, places / kRows, half, half ? 2 : 1};
}

void check(const Shape& shape, std::int32_t topk) {
  if (topk < 1 || topk > kMostChoices) unsupported("topk is " + std::to_string(topk) + ", not from 1 to 127");
  if (shape.depth < kLeastDepth || shape.depth % kDepthStep != 0) unsupported("D is no multiple of 256 from 512");
  if (shape.count >= kMostTokens) unsupported("there are 2^24 tokens or more");
  if (shape.count * shape.depth * 2 > kBuffer) unsupported("the result has 4 GiB or more");
  if (shape.rows * shape.depth * shape.element > kInt || shape.blocks > kInt / kRows) {
    unsupported("an expert has 2 GiB or more, or there are 2^31 sorted tokens or more");
  }
}

// AITER's heuristic: fewest rounds of the compute units, then fewest idle ones. Ties, which AITER breaks by the order
// of a hash table, are broken by the larger tile.
std::int64_t tile_for(const Shape& shape, int units) {
  std::int64_t best = 0, fewest = 0, idle = 0;
  for (const std::int64_t tile : kTiles) {
    if (shape.inner < 1 || shape.inner % tile != 0 || (shape.half && tile != kHalfTile)) continue;
    const std::int64_t blocks = shape.inner / tile * shape.blocks;
    const std::int64_t rounds = (blocks + units - 1) / units, left = rounds * units - blocks;
    if (best == 0 || rounds < fewest || (rounds == fewest && left < idle)) best = tile, fewest = rounds, idle = left;
  }
  if (best == 0) unsupported(shape.half ? "I is no multiple of 512" : "I is no multiple of 128, 192, 320 or 448");
  return best;
}

std::uint32_t word(std::int64_t value) { return static_cast<std::uint32_t>(value); }

Args arguments_for(const Inputs& in, const Tensor& out, const Shape& shape, std::int32_t topk) {
  Args args{};
  args.out.value = out.data;
  args.x.value = in.x.data;
  args.w1.value = in.w1.data;
  args.valid.value = in.valid.data;
  args.w2.value = in.w2.data;
  if (!shape.half) {
    args.x_scale.value = in.x_scale.data;
    args.w1_scale.value = in.w1_scale.data;
    args.w2_scale.value = in.w2_scale.data;
    args.w1_scale_expert.value = word(shape.rows * 4);
    args.w2_scale_expert.value = word(shape.depth * 4);
  }
  args.tokens.value = in.tokens.data;
  args.weights.value = in.weights.data;
  args.experts.value = in.experts.data;
  args.depth.value = word(shape.depth);
  args.inner.value = word(shape.inner);
  args.token_count.value = word(shape.count);
  args.expert_count.value = word(shape.experts);
  args.x_row.value = args.w1_row.value = word(shape.depth * shape.element);
  args.w2_row.value = word(shape.inner * shape.element);
  args.out_row.value = word(shape.depth * 2);
  args.w1_expert.value = word(shape.rows * shape.depth * shape.element);
  args.w2_expert.value = word(shape.inner * shape.depth * shape.element);
  args.smooth_scale_expert.value = word(shape.inner * 4);
  args.topk.value = word(topk);
  return args;
}

void run(Stream stream, const Inputs& in, const Tensor& out, std::int32_t topk, bool gelu) {
  const Device& device = device_of(stream);
  const Shape shape = shape_of(in, out, device);
  check(shape, topk);
  const std::int64_t tile = tile_for(shape, device.compute_units);
  if (shape.count == 0) return;

  Args args = arguments_for(in, out, shape, topk);
  const std::int64_t tiles = shape.inner / tile;
  // A block for each compute unit stays and takes one tile after the other.
  const std::int64_t stay = device.compute_units / tiles * tiles;
  args.tiles.value = word(tiles);
  args.blocks.value = word(stay);
  const Grid grid = stay > 0 ? Grid{static_cast<unsigned>(device.compute_units), 1, 1}
                             : Grid{static_cast<unsigned>(tiles), static_cast<unsigned>(shape.blocks), 1};
  const std::string family = shape.half                              ? "noquantBf16_g1u0_vs_atm_inlv_"
                             : in.x.dtype == ffi::DataType::S8 ? "pertokenInt8_g1u1_vs_"
                                                               : "pertokenFp8_g1u1_vs_";
  const std::string name = "fmoe_bf16_" + family + (gelu ? "gelu" : "silu") + "_1tg_ps_32x" + std::to_string(tile);
  const std::string symbol = "_ZN5aiter" + std::to_string(name.size()) + name + "E";
  const Kernel kernel = load_kernel(device, module_folder(device) + "/" + name + ".co", symbol, sizeof args);
  const Hip& hip = Hip::get();
  hip.check(hip.memset_async(out.data, 0, static_cast<std::size_t>(shape.count * shape.depth * 2), stream),
            "zeroing the result");
  launch(kernel, grid, 256, &args, sizeof args, stream);
}

ffi::Error fmoe(Stream stream, ffi::AnyBuffer x, ffi::AnyBuffer w1, ffi::AnyBuffer w2, ffi::AnyBuffer tokens,
                ffi::AnyBuffer weights, ffi::AnyBuffer experts, ffi::AnyBuffer valid, ffi::AnyBuffer x_scale,
                ffi::AnyBuffer w1_scale, ffi::AnyBuffer w2_scale, ffi::Result<ffi::AnyBuffer> out, std::int32_t topk,
                bool gelu) {
  return guarded("jax_aiter_fmoe", run, stream,
                 Inputs{{"x", x}, {"w1", w1}, {"w2", w2}, {"tokens", tokens}, {"weights", weights},
                        {"experts", experts}, {"valid", valid}, {"x_scale", x_scale}, {"w1_scale", w1_scale},
                        {"w2_scale", w2_scale}},
                 Tensor("out", *out), topk, gelu);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterFmoe, jax_aiter::fmoe,
                  (jax_aiter::bind<10, 1>().Attr<std::int32_t>("topk").Attr<bool>("gelu")));
