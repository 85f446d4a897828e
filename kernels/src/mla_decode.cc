// Handler of decoding with multi-head latent attention: AITER's assembly kernels, which compute attention with parts of
// the tokens, or all of it if there is one part. The cache has one head, whose first 512 numbers are the values.
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
  Slot<void*> partial;  // or out
  Slot<void*> lse;
  Slot<const void*> q, cache;
  Slot<const void*> starts, tokens, last;  // of the keys: offsets of sequences, rows of the cache, tokens in the last page
  Slot<float> scale;
  Slot<std::uint32_t> rows;                // heads times queries
  Slot<std::uint32_t> splits;
  Slot<std::uint32_t> queries;             // bytes of the queries of a sequence
  Slot<std::uint32_t> page, page_bits;     // bytes, and the logarithm of its tokens
  Slot<const void*> query_starts, split_starts;
  Slot<void*> out;
  Slot<const void*> q_scale, cache_scale;
  Slot<std::uint32_t> splits_of_out;
  Slot<std::uint32_t> unused;  // one object declares it
};
static_assert(offsetof(Args, starts) == 64 && offsetof(Args, scale) == 112 && offsetof(Args, splits) == 144);
static_assert(offsetof(Args, page) == 176 && offsetof(Args, query_starts) == 208 && offsetof(Args, out) == 240);
static_assert(offsetof(Args, cache_scale) == 272 && offsetof(Args, splits_of_out) == 288 && sizeof(Args) == 320);

constexpr std::int64_t kDepth = 576, kValues = 512, kFewHeads = 16, kManyHeads = 128;
constexpr std::int64_t kMostQueries = 4, kMostSequences = 65535;

// A kernel and the rows, heads times queries, of its blocks.
struct MlaKernel {
  const char* name;
  std::int64_t rows;
};

struct Shape {
  std::int64_t sequences, queries, heads, splits, element;
  bool fp8;
  std::int64_t rows() const { return heads * queries; }
  // Whether the kernel writes the result in bf16 instead of parts of it in f32.
  bool is_whole() const { return splits == 1 && (fp8 || heads != kFewHeads || queries != 1); }
};

MlaKernel kernel_of(const Shape& shape) {
  const bool few = shape.heads == kFewHeads;
  if (shape.fp8 && !few) return {"mla_a8w8_qh128_m32x4_n16x2_msk1", 128};
  if (shape.fp8 && shape.queries == 1) return {"mla_a8w8_qh16_qseqlen1_gqaratio16", 128};
  if (shape.fp8 && shape.queries == 2) return {"mla_a8w8_qh16_qseqlen2_gqaratio16", 128};
  if (shape.fp8) return {"mla_a8w8_qh16_qseqlen4_gqaratio16", 128};
  if (!few) return {"mla_dec_stage1_bf16_a16w16_subQ128_mqa128", 128};
  if (shape.queries == 1) return {"mla_dec_stage1_bf16_a16w16_subQ16_mqa16", 16};
  return {"mla_a16w16_qh16_m16x4_n16x1_coex0_mask1", 128};
}

void expect_less_than_4_gib(const Tensor& tensor, std::int64_t element) {
  if (tensor.elements() * element > std::int64_t{std::numeric_limits<std::uint32_t>::max()}) {
    refuse(tensor, "less than 4 GiB");
  }
}

Shape shape_of(const Device& device, const Tensor& q, const Tensor& lse) {
  const ffi::DataType fp8 = device.processor == "gfx942" ? ffi::DataType::F8E4M3FNUZ : ffi::DataType::F8E4M3FN;
  if (q.dtype != ffi::DataType::BF16 && q.dtype != fp8) refuse(q, "bf16 or, on " + device.processor + ", " + dtype_name(fp8));
  if (q.shape.size() != 4 || q.shape[1] < 1 || q.shape[1] > kMostQueries || q.shape[3] != kDepth) {
    refuse(q, "[sequences,queries,heads,576] with 1 to 4 queries");
  }
  if (q.shape[2] != kFewHeads && q.shape[2] != kManyHeads) refuse(q, "of 16 or 128 heads");
  if (q.shape[0] > kMostSequences) refuse(q, "of at most 65535 sequences");
  if (lse.shape.size() != 4 || lse.shape[2] < 1) refuse(lse, "f32[sequences,queries,splits,heads]");
  const bool quantised = q.dtype == fp8;
  return {q.shape[0], q.shape[1], q.shape[2], lse.shape[2], quantised ? 1 : 2, quantised};
}

struct Inputs {
  Tensor q, cache, starts, tokens, last, query_starts, split_starts, q_scale, cache_scale;

  std::string text() const {
    return q.text() + ", " + cache.text() + ", " + starts.text() + ", " + tokens.text() + ", " + last.text() + ", " +
           query_starts.text() + ", " + split_starts.text() + ", " + q_scale.text() + ", " + cache_scale.text();
  }

  void expect_shapes(const Shape& shape) const {
    if (cache.shape.size() != 2) refuse(cache, dtype_name(q.dtype) + "[tokens,576]");
    expect(cache, q.dtype, cache.shape[0], kDepth);
    if (tokens.shape.size() != 1) refuse(tokens, "s32[tokens of all sequences]");
    expect(tokens, ffi::DataType::S32, tokens.shape[0]);
    for (const Tensor* one : {&starts, &query_starts, &split_starts}) {
      expect(*one, ffi::DataType::S32, shape.sequences + 1);
    }
    expect(last, ffi::DataType::S32, shape.sequences);
    for (const Tensor* scale : {&q_scale, &cache_scale}) expect(*scale, ffi::DataType::F32, shape.fp8 ? 1 : 0);
    for (const Tensor* one : {&q, &cache}) {
      expect_aligned(*one);
      expect_less_than_4_gib(*one, shape.element);
    }
    expect_less_than_4_gib(tokens, 4);
  }
};

struct Results {
  Tensor out, partial, lse;

  std::string text() const { return out.text() + ", " + partial.text() + ", " + lse.text(); }

  void expect_shapes(const Shape& shape) const {
    expect(out, ffi::DataType::BF16, shape.sequences, shape.queries, shape.heads, kValues);
    expect(lse, ffi::DataType::F32, shape.sequences, shape.queries, shape.splits, shape.heads);
    if (shape.is_whole()) {
      expect(partial, ffi::DataType::F32, 0);
    } else {
      expect(partial, ffi::DataType::F32, shape.sequences, shape.queries, shape.splits, shape.heads, kValues);
    }
    expect_less_than_4_gib(partial, 4);
  }
};

void decode(Stream stream, const Inputs& in, const Results& made, float scale) {
  const Device& device = device_of(stream);
  const Shape shape = shape_of(device, in.q, made.lse);
  in.expect_shapes(shape);
  made.expect_shapes(shape);
  if (shape.sequences == 0) return;
  if (in.cache.shape[0] == 0 || in.tokens.shape[0] == 0) refuse(in.cache, "of at least one token");

  Args args{};
  args.partial.value = shape.is_whole() ? made.out.data : made.partial.data;
  args.lse.value = made.lse.data;
  args.q.value = in.q.data;
  args.cache.value = in.cache.data;
  args.starts.value = in.starts.data;
  args.tokens.value = in.tokens.data;
  args.last.value = in.last.data;
  args.scale.value = scale;
  args.rows.value = static_cast<std::uint32_t>(shape.rows());
  args.splits.value = args.splits_of_out.value = static_cast<std::uint32_t>(shape.splits);
  args.queries.value = static_cast<std::uint32_t>(shape.rows() * kDepth * shape.element);
  args.page.value = static_cast<std::uint32_t>(kDepth * shape.element);  // pages of one token
  args.query_starts.value = in.query_starts.data;
  args.split_starts.value = in.split_starts.data;
  args.out.value = made.out.data;
  if (shape.fp8) {
    args.q_scale.value = in.q_scale.data;
    args.cache_scale.value = in.cache_scale.data;
  }
  const MlaKernel chosen = kernel_of(shape);
  const std::string name = chosen.name, symbol = "_ZN5aiter" + std::to_string(name.size()) + name + "E";
  const Kernel kernel = load_kernel(device, module_folder(device) + "/" + name + ".co", symbol, sizeof args);
  const Grid grid{static_cast<unsigned>((shape.rows() + chosen.rows - 1) / chosen.rows),
                  static_cast<unsigned>(shape.sequences), static_cast<unsigned>(shape.splits)};
  launch(kernel, grid, 256, &args, sizeof args, stream);
}

ffi::Error mla_decode(Stream stream, ffi::AnyBuffer q, ffi::AnyBuffer cache, ffi::AnyBuffer starts,
                      ffi::AnyBuffer tokens, ffi::AnyBuffer last, ffi::AnyBuffer query_starts,
                      ffi::AnyBuffer split_starts, ffi::AnyBuffer q_scale, ffi::AnyBuffer cache_scale,
                      ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> partial,
                      ffi::Result<ffi::AnyBuffer> lse, float scale) {
  const Inputs in{{"q", q},
                  {"cache", cache},
                  {"starts", starts},
                  {"tokens", tokens},
                  {"last", last},
                  {"query_starts", query_starts},
                  {"split_starts", split_starts},
                  {"q_scale", q_scale},
                  {"cache_scale", cache_scale}};
  const Results made{{"out", *out}, {"partial", *partial}, {"lse", *lse}};
  return guarded("jax_aiter_mla_decode", decode, stream, in, made, scale);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterMlaDecode, jax_aiter::mla_decode, (jax_aiter::bind<9, 3>().Attr<float>("scale")));
