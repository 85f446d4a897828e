// Handler of attention backward: AITER's assembly kernels that sum dq in f32.
//
// d is the sum of dout * out for each query, less the cotangent of lse. dq_sum is dq in f32, with the scale. dk and dv have
// a head for each head of q: where several share a head of k, the gradient is their sum.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include "mha_bwd_args.h"
#include "mha_shape.h"
#include "module.h"

namespace jax_aiter {
namespace {

constexpr float kLog2e = 1.44269504088896340736f;
constexpr int kElementBytes = 2, kSumBytes = 4;
constexpr int kMostKeys = 256;  // of a block
constexpr unsigned kThreads = 256;

struct BwdInputs {
  Tensor dout, q, k, v, lse, d, cu_q, cu_k;

  std::string text() const {
    return dout.text() + ", " + q.text() + ", " + k.text() + ", " + v.text() + ", " + lse.text() + ", " + d.text() +
           ", " + cu_q.text() + ", " + cu_k.text();
  }
};

struct BwdResults {
  Tensor dq_sum, dk, dv;

  std::string text() const { return dq_sum.text() + ", " + dk.text() + ", " + dv.text(); }
};

struct BwdOptions {
  float scale;
  int left, right, longest_query, longest_key;

  bool full() const { return left < 0 && right < 0; }
  bool causal() const { return left < 0 && right == 0; }
};

struct BwdKernel {
  std::string path, function;
  int tile;  // keys of a block
};

[[noreturn]] void no_kernel(const Device& device, const BwdInputs& in, const char* why) {
  throw Error(Code::kUnimplemented, "AITER has no assembly kernel on " + device.name + " for the gradient of " +
                                        in.q.text() + ", " + in.v.text() + ": " + why);
}

// Depths of the kernels of a family: 64, up to 128, up to 192, or 192 for q and k and 128 for v.
const char* depths_of(const Device& device, const BwdInputs& in, const MhaShape& shape, const BwdOptions& options) {
  if (shape.depth == shape.value_depth) {
    if (shape.depth == 64) return "hd64";
    if (shape.depth > 64 && shape.depth <= 128) return "hd128";
    if (shape.depth > 128 && shape.depth <= 192) return "hd192";
  } else if (device.processor == "gfx950" && shape.depth == 192 && shape.value_depth == 128 &&
             (options.full() || options.causal()) && !shape.packed) {
    return "hd192_hd128";
  }
  no_kernel(device, in, "depths are 64 to 192 and equal, on gfx950 also 192 and 128 in a batch without a window.");
}

const char* mask_of(const Device& device, const BwdInputs& in, const MhaShape& shape, const BwdOptions& options,
                    bool native) {
  if (options.full()) return "";
  // Without an offset, both alignments of the diagonal are the same; AITER prefers the kernels of the first one.
  if (options.causal()) return native || shape.packed || shape.queries != shape.keys ? "_causal_br" : "_causal";
  if (shape.packed || shape.depth == 64 || shape.depth > 128) {
    no_kernel(device, in, "windows need a batch and a depth of 72 to 128.");
  }
  if (options.left <= 0 && options.right <= 0) no_kernel(device, in, "a window needs keys besides the diagonal.");
  return "_swa";
}

BwdKernel kernel_for(const Device& device, const BwdInputs& in, const MhaShape& shape, const BwdOptions& options) {
  const bool gfx950 = device.processor == "gfx950";
  const std::string depths = depths_of(device, in, shape, options);
  const bool window = !options.full() && !options.causal();
  const bool native = gfx950 && (depths == "hd128" || depths == "hd192_hd128") && !window;
  const std::string mask = mask_of(device, in, shape, options, native);
  const int tile = depths == "hd192" ? 64 : native && depths == "hd128" ? 256 : 192;
  const bool dense = !gfx950 && !shape.packed && !window && shape.depth == 128 && shape.queries == shape.keys &&
                     shape.keys % tile == 0;

  // gfx942 rounds f32 to bf16 with several instructions: AITER's default is to nearest, ties away from zero.
  const bool bf16 = in.q.dtype == ffi::DataType::BF16;
  const std::string rounding = !bf16 || native ? "" : gfx950 ? "_rtne" : "_rtna";
  const bool exact = depths == "hd64" || depths == "hd192_hd128" || (!gfx950 && shape.packed && shape.depth == 128);
  const std::string kind = (bf16 ? "_bf16" : "_fp16") + mask + "_a32" + rounding +
                           (dense ? "" : exact ? "_pssk" : "_psskddv") + (shape.packed ? "_group" : "");
  const std::string folder = module_folder(device) + "/";
  std::string name = "bwd_" + depths + kind;
  if (depths == "hd192_hd128" && !std::filesystem::exists(folder + name + ".co")) {
    name = "bwd_hd192_128" + kind;  // in later sources of AITER, which also have kernels with a mask
    if (!std::filesystem::exists(folder + name + ".co")) no_kernel(device, in, "these depths permit no mask.");
  }
  const std::string function = "fmha_" + name + (gfx950 && !native ? "_recompile" : "");
  return {folder + name + ".co", "_ZN5aiter" + std::to_string(function.size()) + function + "E", tile};
}

std::uint32_t word(int value) { return static_cast<std::uint32_t>(value); }

struct ByteStrides {
  std::uint32_t row, head, batch;
};

ByteStrides in_bytes(const Tensor& tensor, const MhaShape& shape, int rows, int heads, int depth) {
  const std::int64_t sequence = std::int64_t{rows} * heads * depth * kElementBytes;
  if (sequence > std::numeric_limits<std::int32_t>::max()) {
    refuse(tensor, "less than 2 GiB for a sequence, or all packed ones");
  }
  const MhaStrides strides = strides_of(tensor.name, shape, rows, heads, depth);
  return {word(strides.row) * kElementBytes, word(strides.head) * kElementBytes, word(strides.batch) * kElementBytes};
}

// The kernels compute the place of a head in a batch with 32 bits; q, k and v are smaller than dq_sum, dk and dv.
void expect_reach(const Tensor& tensor, int element_bytes) {
  if (tensor.elements() * element_bytes > std::numeric_limits<std::uint32_t>::max()) refuse(tensor, "less than 4 GiB");
}

struct Strides {
  ByteStrides q, k, v, dout, dk, dv;
  std::uint32_t lse_head;
};

Strides check(const BwdInputs& in, const BwdResults& made, const MhaShape& shape) {
  const Strides strides{in_bytes(in.q, shape, shape.queries, shape.heads, shape.depth),
                        in_bytes(in.k, shape, shape.keys, shape.key_heads, shape.depth),
                        in_bytes(in.v, shape, shape.keys, shape.key_heads, shape.value_depth),
                        in_bytes(in.dout, shape, shape.queries, shape.heads, shape.value_depth),
                        in_bytes(made.dk, shape, shape.keys, shape.heads, shape.depth),
                        in_bytes(made.dv, shape, shape.keys, shape.heads, shape.value_depth),
                        word(as_int("lse", std::int64_t{strides_of_rows("lse", shape).head} * kSumBytes))};
  as_int("tile", std::int64_t{kMostKeys} * strides.k.row);
  for (const Tensor* tensor : {&in.dout, &made.dk, &made.dv}) expect_reach(*tensor, kElementBytes);
  expect_reach(made.dq_sum, kSumBytes);
  return strides;
}

// What all layouts have.
template <typename Args>
Args common(const BwdInputs& in, const BwdResults& made, const MhaShape& shape, const BwdOptions& options,
            const Strides& of) {
  Args args{};
  args.dq.value = made.dq_sum.data, args.dk.value = made.dk.data, args.dv.value = made.dv.data;
  args.q.value = in.q.data, args.k.value = in.k.data, args.v.value = in.v.data;
  args.dout.value = in.dout.data, args.lse.value = in.lse.data, args.d.value = in.d.data;
  args.scale.value = options.scale, args.log2e.value = kLog2e;
  args.group.value = word(shape.heads / shape.key_heads);
  args.depth.value = word(shape.depth);
  args.q_row.value = of.q.row, args.q_head.value = of.q.head;
  args.k_row.value = of.k.row, args.k_head.value = of.k.head;
  args.dk_row.value = of.dk.row;
  if constexpr (requires { args.dv_row; }) {
    args.v_row.value = of.v.row, args.v_head.value = of.v.head;
    args.dout_row.value = of.dout.row, args.dout_head.value = of.dout.head;
    args.dk_head.value = of.dk.head;
    args.dv_row.value = of.dv.row, args.dv_head.value = of.dv.head;
    args.keys.value = word(shape.keys);
  }
  if constexpr (requires { args.q_batch; }) {
    args.queries.value = word(shape.queries);
    args.q_batch.value = of.q.batch, args.k_batch.value = of.k.batch;
  }
  if constexpr (requires { args.dv_batch; }) {
    args.heads.value = word(shape.heads);
    args.v_batch.value = of.v.batch, args.dout_batch.value = of.dout.batch;
    args.dk_batch.value = of.dk.batch, args.dv_batch.value = of.dv.batch;
  }
  if constexpr (requires { args.cu_q; }) {
    args.lse_head.value = of.lse_head;
    if (shape.packed) {
      args.cu_q.value = args.cu_q_padded.value = in.cu_q.data;
      args.cu_k.value = args.cu_k_padded.value = in.cu_k.data;
    }
  }
  return args;
}

// Query y sees the keys from y - mask_y + 1 to y + mask_x - 1; the diagonal ends at the last query and the last key.
template <typename Args>
void set_window(Args& args, const MhaShape& shape, const BwdOptions& options) {
  const int left = options.left < 0 ? shape.keys - 1 : options.left;
  const int right = options.right < 0 ? shape.queries - 1 : options.right;
  args.mask_x.value = 1 + right + shape.keys - shape.queries;
  args.mask_y.value = 1 + left + shape.queries - shape.keys;
}

// With a causal mask, a block processes two tiles: one with many queries and one with few.
Grid grid_of(const BwdKernel& kernel, const MhaShape& shape, const BwdOptions& options) {
  const int keys = shape.packed ? options.longest_key : shape.keys;
  const auto tiles = word((keys - 1) / kernel.tile + 1);
  return {options.causal() ? (tiles + 1) / 2 : tiles, word(shape.heads), word(shape.batch)};
}

void clear(Stream stream, const Tensor& tensor, int element_bytes) {
  const Hip& hip = Hip::get();
  const auto bytes = static_cast<std::size_t>(tensor.elements()) * static_cast<std::size_t>(element_bytes);
  if (bytes != 0) hip.check(hip.memset_async(tensor.data, 0, bytes, stream), "clearing " + tensor.text());
}

MhaShape shape_of(const BwdInputs& in, const BwdResults& made) {
  if (in.q.dtype != ffi::DataType::BF16 && in.q.dtype != ffi::DataType::F16) refuse(in.q, "bf16 or f16");
  const MhaShape shape = mha_shape(in.q, in.k, in.v, in.cu_q, in.cu_k);
  expect_heads(in.dout, in.q.dtype, shape, shape.queries, shape.heads, shape.value_depth);
  expect_rows(in.lse, shape);
  expect_rows(in.d, shape);
  expect_heads(made.dk, in.q.dtype, shape, shape.keys, shape.heads, shape.depth);
  expect_heads(made.dv, in.q.dtype, shape, shape.keys, shape.heads, shape.value_depth);
  if (shape.packed) {
    expect(made.dq_sum, ffi::DataType::F32, shape.heads, shape.queries, shape.depth);
  } else {
    expect(made.dq_sum, ffi::DataType::F32, shape.batch, shape.heads, shape.queries, shape.depth);
  }
  expect_aligned(made.dq_sum);
  return shape;
}

void backward(Stream stream, const BwdInputs& in, const BwdResults& made, const BwdOptions& options) {
  const MhaShape shape = shape_of(in, made);
  if (shape.packed && (options.longest_query < 1 || options.longest_key < 1)) {
    throw Error(Code::kInvalidArgument, "Packed sequences need the lengths of the longest ones.");
  }
  const Strides strides = check(in, made, shape);
  const Device& device = device_of(stream);
  const BwdKernel kernel = kernel_for(device, in, shape, options);
  const bool empty = in.q.elements() == 0 || in.k.elements() == 0;
  if (empty || shape.packed) {  // places outside of all packed sequences are written by nobody else
    clear(stream, made.dk, kElementBytes);
    clear(stream, made.dv, kElementBytes);
  }
  clear(stream, made.dq_sum, kSumBytes);
  if (empty) return;

  const Kernel loaded = load_kernel(device, kernel.path, kernel.function, sizeof(FullArgs));
  const Grid grid = grid_of(kernel, shape, options);
  const std::uint32_t k_tile = word(kernel.tile) * strides.k.row;
  const auto start = [&](const auto& args) { launch(loaded, grid, kThreads, &args, sizeof args, stream); };
  const bool window = !options.full() && !options.causal();
  // The bytes of arguments identify the layout: kernels of later sources of AITER have one for all.
  if (loaded.argument_bytes == sizeof(FullArgs)) {
    auto args = common<FullArgs>(in, made, shape, options, strides);
    args.k_tile.value = k_tile, args.value_depth.value = word(shape.value_depth);
    args.longest_query.value = word(shape.packed ? options.longest_query : shape.queries);
    if (window) set_window(args, shape, options);
    start(args);
  } else if (loaded.argument_bytes == sizeof(DenseArgs)) {
    auto args = common<DenseArgs>(in, made, shape, options, strides);
    args.k_tile.value = k_tile;
    start(args);
  } else if (loaded.argument_bytes == sizeof(PackedArgs)) {
    start(common<PackedArgs>(in, made, shape, options, strides));
  } else if (loaded.argument_bytes <= sizeof(BatchArgs)) {
    auto args = common<BatchArgs>(in, made, shape, options, strides);
    if (window) set_window(args, shape, options);
    start(args);
  } else {
    throw Error(Code::kFailedPrecondition, kernel.path + ": the layout of its arguments is unknown.");
  }
}

ffi::Error mha_bwd_asm(Stream stream, ffi::AnyBuffer dout, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                       ffi::AnyBuffer lse, ffi::AnyBuffer d, ffi::AnyBuffer cu_q, ffi::AnyBuffer cu_k,
                       ffi::Result<ffi::AnyBuffer> dq_sum, ffi::Result<ffi::AnyBuffer> dk,
                       ffi::Result<ffi::AnyBuffer> dv, float scale, std::int32_t left, std::int32_t right,
                       std::int32_t longest_query, std::int32_t longest_key) {
  const BwdInputs in{{"dout", dout}, {"q", q}, {"k", k},       {"v", v},
                     {"lse", lse},   {"d", d}, {"cu_q", cu_q}, {"cu_k", cu_k}};
  const BwdResults made{{"dq_sum", *dq_sum}, {"dk", *dk}, {"dv", *dv}};
  return guarded("jax_aiter_mha_bwd_asm", backward, stream, in, made,
                 BwdOptions{scale, left, right, longest_query, longest_key});
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterMhaBwdAsm, jax_aiter::mha_bwd_asm,
                  (jax_aiter::bind<8, 3>()
                       .Attr<float>("scale")
                       .Attr<std::int32_t>("window_left")
                       .Attr<std::int32_t>("window_right")
                       .Attr<std::int32_t>("longest_query")
                       .Attr<std::int32_t>("longest_key")));
