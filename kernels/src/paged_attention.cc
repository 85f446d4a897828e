// Handler of paged attention for decoding: AITER's assembly kernels for pages of 16 tokens and heads of 128. A sequence
// has one query, or 2 to 4 of its last tokens; results of sequences without tokens are undefined.
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
  Slot<const void*> q, keys, values;
  Slot<const void*> tables, lengths;
  Slot<const void*> key_scale, value_scale;
  Slot<float> scale;               // times log2(e)
  Slot<std::uint32_t> width;       // pages in a row of the table
  Slot<std::uint32_t> key_heads;
  Slot<std::uint32_t> query;       // strides in bytes, as both below
  Slot<std::uint32_t> page, page_head;
  Slot<std::uint32_t> group;       // heads of q for each of the keys
  Slot<const void*> starts;        // of the queries; null for one query of each sequence
};
static_assert(offsetof(Args, tables) == 64 && offsetof(Args, key_scale) == 96 && offsetof(Args, scale) == 128);
static_assert(offsetof(Args, key_heads) == 160 && offsetof(Args, page) == 192 && offsetof(Args, group) == 224);
static_assert(offsetof(Args, starts) == 240 && sizeof(Args) == 256);

constexpr std::int64_t kDepth = 128, kPage = 16, kPiece = 16;  // kPiece: bytes that the cache keeps together
constexpr std::int64_t kMostQueries = 4, kMostSequences = 65535, kMostGroup = 16;
constexpr float kLog2E = 1.44269502f;  // log2f(expf(1)), as AITER computes it

struct Shape {
  std::int64_t sequences, queries, heads, pages, key_heads, width, element;  // element: bytes of one of the cache
  bool quantised;
  std::int64_t group() const { return heads / key_heads; }
};

std::int64_t bytes_of(ffi::DataType dtype) {
  return dtype == ffi::DataType::BF16 || dtype == ffi::DataType::F16 ? 2 : 1;
}

// fp8 is the format of the processor's matrix instructions.
bool is_quantised(const Device& device, const Tensor& q, const Tensor& keys) {
  if (keys.dtype == q.dtype) return false;
  const ffi::DataType fp8 = device.processor == "gfx942" ? ffi::DataType::F8E4M3FNUZ : ffi::DataType::F8E4M3FN;
  if (keys.dtype != ffi::DataType::S8 && keys.dtype != fp8) {
    refuse(keys, dtype_name(q.dtype) + ", s8 or, on " + device.processor + ", " + dtype_name(fp8));
  }
  return true;
}

void expect_less_than_4_gib(const Tensor& tensor, std::int64_t element) {
  if (tensor.elements() * element > std::int64_t{std::numeric_limits<std::uint32_t>::max()}) {
    refuse(tensor, "less than 4 GiB");
  }
}

Shape shape_of(const Device& device, const Tensor& q, const Tensor& keys, const Tensor& tables) {
  if (q.dtype != ffi::DataType::BF16 && q.dtype != ffi::DataType::F16) refuse(q, "bf16 or f16");
  if (q.shape.size() != 4 || q.shape[3] != kDepth || q.shape[1] < 1 || q.shape[1] > kMostQueries) {
    refuse(q, "[sequences,queries,heads,128] with 1 to 4 queries");
  }
  if (keys.shape.size() != 5 || keys.shape[1] < 1) refuse(keys, "[pages,heads,depth/x,16,x]");
  if (tables.shape.size() != 2) refuse(tables, "s32[sequences,pages]");
  Shape shape{q.shape[0], q.shape[1], q.shape[2], keys.shape[0], keys.shape[1], tables.shape[1], 0, false};
  shape.quantised = is_quantised(device, q, keys);
  shape.element = bytes_of(keys.dtype);
  if (shape.sequences > kMostSequences) refuse(q, "of at most 65535 sequences");
  if (shape.heads % shape.key_heads != 0 || shape.group() > kMostGroup || shape.heads < 1) {
    refuse(q, "of 1 to 16 heads for each head of " + keys.text());
  }
  return shape;
}

// Name of AITER's kernel. Precision is that of fp8: 0, 1 and 2 differ for one query and at most 8 heads of a group.
std::string kernel_name(const Shape& shape, const Tensor& q, const Tensor& keys, int precision) {
  const bool few = shape.group() <= 8, several = shape.queries > 1;
  const bool fp8 = shape.quantised && keys.dtype != ffi::DataType::S8;
  if (precision < 0 || precision > 2) {
    throw Error(Code::kInvalidArgument, "precision is " + std::to_string(precision) + "; it has to be 0, 1 or 2.");
  }
  if ((several && !few && !shape.quantised) || (precision == 2 && !(fp8 && few && !several))) {
    throw Error(Code::kUnimplemented, "AITER has no kernel of paged attention for " + q.text() + ", " + keys.text() +
                                          ", precision " + std::to_string(precision) + ".");
  }
  std::string name = q.dtype == ffi::DataType::BF16 ? "pa_bf16_" : "pa_fp16_";
  name += !shape.quantised ? "noquant" : fp8 ? "pertokenFp8" : "pertokenInt8";
  name += few ? "_gqa8" : "_gqa16";
  name += shape.quantised && !several ? "_2tg_4w" : "_1tg_4w";
  if (several) return name + "_mtp_msk1";
  if (!fp8 || !few || precision == 0) return name;
  return name + (precision == 1 ? "_hp" : "_uhp");
}

struct Inputs {
  Tensor q, keys, values, tables, lengths, key_scale, value_scale, starts;

  std::string text() const {
    return q.text() + ", " + keys.text() + ", " + values.text() + ", " + tables.text() + ", " + lengths.text() + ", " +
           key_scale.text() + ", " + value_scale.text() + ", " + starts.text();
  }

  void expect_shapes(const Shape& shape) const {
    const std::int64_t piece = kPiece / shape.element;
    expect(keys, keys.dtype, shape.pages, shape.key_heads, kDepth / piece, kPage, piece);
    expect(values, keys.dtype, shape.pages, shape.key_heads, kPage / piece, kDepth, piece);
    expect(tables, ffi::DataType::S32, shape.sequences, shape.width);
    expect(lengths, ffi::DataType::S32, shape.sequences);
    for (const Tensor* scale : {&key_scale, &value_scale}) {
      if (shape.quantised) {
        expect(*scale, ffi::DataType::F32, shape.pages, shape.key_heads, kPage);
      } else {
        expect(*scale, ffi::DataType::F32, 0);
      }
    }
    expect(starts, ffi::DataType::S32, shape.queries > 1 ? shape.sequences + 1 : 0);
    for (const Tensor* tensor : {&q, &keys, &values}) expect_aligned(*tensor);
    expect_less_than_4_gib(q, 2);
    expect_less_than_4_gib(keys, shape.element);
    expect_less_than_4_gib(tables, 4);
  }
};

void decode(Stream stream, const Inputs& in, const Tensor& out, float scale, int precision) {
  const Device& device = device_of(stream);
  const Shape shape = shape_of(device, in.q, in.keys, in.tables);
  in.expect_shapes(shape);
  expect(out, in.q.dtype, shape.sequences, shape.queries, shape.heads, kDepth);
  const std::string name = kernel_name(shape, in.q, in.keys, precision);
  if (out.elements() == 0) return;
  if (shape.pages == 0 || shape.width == 0) refuse(in.keys, "of at least one page, as the rows of " + in.tables.text());

  Args args{};
  args.out.value = out.data;
  args.q.value = in.q.data;
  args.keys.value = in.keys.data;
  args.values.value = in.values.data;
  args.tables.value = in.tables.data;
  args.lengths.value = in.lengths.data;
  if (shape.quantised) {
    args.key_scale.value = in.key_scale.data;
    args.value_scale.value = in.value_scale.data;
  }
  args.scale.value = static_cast<float>(double{kLog2E} * scale);
  args.width.value = static_cast<std::uint32_t>(shape.width);
  args.key_heads.value = static_cast<std::uint32_t>(shape.key_heads);
  args.query.value = static_cast<std::uint32_t>(shape.heads * kDepth * 2);
  const std::int64_t page_head = kDepth * kPage * shape.element;
  args.page.value = static_cast<std::uint32_t>(shape.key_heads * page_head);
  args.page_head.value = static_cast<std::uint32_t>(page_head);
  args.group.value = static_cast<std::uint32_t>(shape.group());
  if (shape.queries > 1) args.starts.value = in.starts.data;
  const std::string symbol = "_ZN5aiter" + std::to_string(name.size()) + name + "E";
  const Kernel kernel = load_kernel(device, module_folder(device) + "/" + name + ".co", symbol, sizeof args);
  const Grid grid{static_cast<unsigned>(shape.key_heads), static_cast<unsigned>(shape.sequences), 1};
  launch(kernel, grid, 256, &args, sizeof args, stream);
}

ffi::Error paged_attention(Stream stream, ffi::AnyBuffer q, ffi::AnyBuffer keys, ffi::AnyBuffer values,
                           ffi::AnyBuffer tables, ffi::AnyBuffer lengths, ffi::AnyBuffer key_scale,
                           ffi::AnyBuffer value_scale, ffi::AnyBuffer starts, ffi::Result<ffi::AnyBuffer> out,
                           float scale, std::int32_t precision) {
  const Inputs in{{"q", q},           {"keys", keys},           {"values", values},           {"tables", tables},
                  {"lengths", lengths}, {"key_scale", key_scale}, {"value_scale", value_scale}, {"starts", starts}};
  return guarded("jax_aiter_paged_attention", decode, stream, in, Tensor("out", *out), scale, precision);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterPagedAttention, jax_aiter::paged_attention,
                  (jax_aiter::bind<8, 1>().Attr<float>("scale").Attr<std::int32_t>("precision")));
