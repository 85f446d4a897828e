// The handler of Composable Kernel's attention, backward.
//
// dk and dv have a head for each head of q: where several share one of k, their sum is the gradient. dq_sum is where
// blocks add what they have of dq, d where the first kernel leaves the sums of dout * out; nobody reads either.
#include "fmha_bwd.hpp"
#include "mha.h"

namespace jax_aiter {
namespace {

struct Given {
  Tensor dout, q, k, v, out, lse, bias, slopes, cu_q, cu_k, seed;
};

struct Made {
  Tensor dq, dk, dv, dq_sum, d;
};

MhaShape checked(const Given& given, const Made& made, const MhaOptions& options) {
  const MhaShape shape = mha_shape(given.q, given.k, given.v, given.cu_q, given.cu_k, options);
  const ffi::DataType dtype = given.q.dtype;
  for (const Tensor* tensor : {&given.dout, &given.out}) {
    expect_heads(*tensor, dtype, shape, shape.queries, shape.heads, shape.value_depth);
  }
  for (const Tensor* tensor : {&given.q, &given.k, &given.v}) expect_aligned(*tensor);
  expect_rows(given.lse, shape);
  expect_heads(made.dq, dtype, shape, shape.queries, shape.heads, shape.depth);
  expect_heads(made.dk, dtype, shape, shape.keys, shape.heads, shape.depth);
  expect_heads(made.dv, dtype, shape, shape.keys, shape.heads, shape.value_depth);
  expect_heads(made.dq_sum, ffi::DataType::F32, shape, shape.queries, shape.heads, shape.depth);
  expect_rows(made.d, shape);
  return shape;
}

void set_strides(fmha_bwd_args& args, const MhaShape& shape) {
  const MhaStrides q = strides_of("q", shape, shape.queries, shape.heads, shape.depth);
  const MhaStrides k = strides_of("k", shape, shape.keys, shape.key_heads, shape.depth);
  const MhaStrides v = strides_of("v", shape, shape.keys, shape.key_heads, shape.value_depth);
  const MhaStrides out = strides_of("out", shape, shape.queries, shape.heads, shape.value_depth);
  const MhaStrides dk = strides_of("dk", shape, shape.keys, shape.heads, shape.depth);
  const MhaStrides dv = strides_of("dv", shape, shape.keys, shape.heads, shape.value_depth);
  const MhaStrides lse = strides_of_rows("lse", shape);
  args.stride_q = args.stride_dq = args.stride_dq_acc = q.row;
  args.nhead_stride_q = args.nhead_stride_dq = args.nhead_stride_dq_acc = q.head;
  args.batch_stride_q = args.batch_stride_dq = args.batch_stride_dq_acc = q.batch;
  args.stride_k = k.row, args.nhead_stride_k = k.head, args.batch_stride_k = k.batch;
  args.stride_v = v.row, args.nhead_stride_v = v.head, args.batch_stride_v = v.batch;
  args.stride_o = args.stride_do = out.row;
  args.nhead_stride_o = args.nhead_stride_do = out.head;
  args.batch_stride_o = args.batch_stride_do = out.batch;
  args.stride_dk = dk.row, args.nhead_stride_dk = dk.head, args.batch_stride_dk = dk.batch;
  args.stride_dv = dv.row, args.nhead_stride_dv = dv.head, args.batch_stride_dv = dv.batch;
  args.nhead_stride_lsed = lse.head, args.batch_stride_lsed = lse.batch;
}

void backward(Stream stream, const Given& given, const Made& made, const MhaOptions& options) {
  const std::string dtype = ck_dtype(given.q);
  const MhaShape shape = checked(given, made, options);
  const MhaMask mask = mask_of(shape, options);
  fmha_bwd_args args{};
  set_sizes(args, shape, mask, given.cu_q, given.cu_k);
  args.max_seqlen_k = shape.most_keys;
  const bias_enum bias_type = set_bias(args, shape, given.q, given.bias, given.slopes);
  const bool drops = set_dropout(args, options, given.seed);
  args.p_undrop = 1 - options.dropout;
  args.scale = options.scale;
  set_strides(args, shape);
  args.q_ptr = given.q.data;
  args.k_ptr = given.k.data;
  args.v_ptr = given.v.data;
  args.o_ptr = given.out.data;
  args.lse_ptr = given.lse.data;
  args.do_ptr = given.dout.data;
  args.d_ptr = made.d.data;
  args.dq_ptr = made.dq.data;
  args.dk_ptr = made.dk.data;
  args.dv_ptr = made.dv.data;
  args.dq_acc_ptr = made.dq_sum.data;

  if (given.q.elements() == 0 || given.k.elements() == 0 || shape.packed) {
    for (const Tensor* tensor : {&made.dq, &made.dk, &made.dv}) clear(stream, *tensor, 2);
  }
  if (given.q.elements() == 0 || given.k.elements() == 0) return;
  clear(stream, made.dq_sum, 4);

  fmha_bwd_traits traits{};
  traits.hdim_q = shape.depth;
  traits.hdim_v = shape.value_depth;
  traits.data_type = dtype;
  traits.is_group_mode = shape.packed;
  traits.mask_type = mask.type;
  traits.bias_type = bias_type;
  traits.has_dropout = drops;
  call_ck(stream, given.q.text() + ", " + given.k.text() + ", " + given.v.text() + (drops ? ", dropout" : ""), [&] {
    return fmha_bwd<>(traits, args, ck_tile::stream_config{static_cast<hipStream_t>(stream)});
  });
}

ffi::Error mha_bwd(Stream stream, ffi::AnyBuffer dout, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                   ffi::AnyBuffer out, ffi::AnyBuffer lse, ffi::AnyBuffer bias, ffi::AnyBuffer slopes,
                   ffi::AnyBuffer cu_q, ffi::AnyBuffer cu_k, ffi::AnyBuffer seed, ffi::Result<ffi::AnyBuffer> dq,
                   ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv, ffi::Result<ffi::AnyBuffer> dq_sum,
                   ffi::Result<ffi::AnyBuffer> d, float scale, float dropout, std::int32_t window_left,
                   std::int32_t window_right, std::int32_t longest_query, std::int32_t longest_key) {
  return guarded("jax_aiter_mha_bwd", [&] {
    const Given given{{"dout", dout}, {"q", q},       {"k", k},           {"v", v},       {"out", out},   {"lse", lse},
                      {"bias", bias}, {"slopes", slopes}, {"cu_q", cu_q}, {"cu_k", cu_k}, {"seed", seed}};
    const Made made{{"dq", *dq}, {"dk", *dk}, {"dv", *dv}, {"dq_sum", *dq_sum}, {"d", *d}};
    backward(stream, given, made, {scale, dropout, window_left, window_right, longest_query, longest_key});
  });
}

}  // namespace
}  // namespace jax_aiter

using jax_aiter::bind;
using xla::ffi::AnyBuffer;

JAX_AITER_HANDLER(JaxAiterMhaBwd, jax_aiter::mha_bwd,
                  jax_aiter::with_options(bind()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Ret<AnyBuffer>()
                                              .Ret<AnyBuffer>()
                                              .Ret<AnyBuffer>()
                                              .Ret<AnyBuffer>()
                                              .Ret<AnyBuffer>()));
