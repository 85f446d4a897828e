// The handler of Composable Kernel's attention, forward.
#include "fmha_fwd.hpp"
#include "mha.h"

namespace jax_aiter {
namespace {

void forward(Stream stream, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const Tensor& slopes,
             const Tensor& cu_q, const Tensor& cu_k, const Tensor& seed, const Tensor& out, const Tensor& lse,
             const MhaOptions& options) {
  const std::string dtype = ck_dtype(q);
  const MhaShape shape = mha_shape(q, k, v, cu_q, cu_k, options);
  expect_heads(out, q.dtype, shape, shape.queries, shape.heads, shape.value_depth);
  expect_rows(lse, shape);
  for (const Tensor* tensor : {&q, &k, &v}) expect_aligned(*tensor);
  const MhaMask mask = mask_of(shape, options);

  fmha_fwd_args args{};
  set_sizes(args, shape, mask, cu_q, cu_k);
  const bias_enum bias_type = set_bias(args, shape, q, bias, slopes);
  const bool drops = set_dropout(args, options, seed);
  const MhaStrides of_q = strides_of("q", shape, shape.queries, shape.heads, shape.depth);
  const MhaStrides of_k = strides_of("k", shape, shape.keys, shape.key_heads, shape.depth);
  const MhaStrides of_v = strides_of("v", shape, shape.keys, shape.key_heads, shape.value_depth);
  const MhaStrides of_out = strides_of("out", shape, shape.queries, shape.heads, shape.value_depth);
  const MhaStrides of_lse = strides_of_rows("lse", shape);
  args.q_ptr = q.data;
  args.k_ptr = k.data;
  args.v_ptr = v.data;
  args.o_ptr = out.data;
  args.lse_ptr = lse.data;
  args.scale_s = options.scale;
  args.scale_p = args.scale_o = 1;
  args.stride_q = of_q.row, args.nhead_stride_q = of_q.head, args.batch_stride_q = of_q.batch;
  args.stride_k = of_k.row, args.nhead_stride_k = of_k.head, args.batch_stride_k = of_k.batch;
  args.stride_v = of_v.row, args.nhead_stride_v = of_v.head, args.batch_stride_v = of_v.batch;
  args.stride_o = of_out.row, args.nhead_stride_o = of_out.head, args.batch_stride_o = of_out.batch;
  args.nhead_stride_lse = of_lse.head, args.batch_stride_lse = of_lse.batch;
  if (out.elements() == 0) return;
  if (shape.keys == 0) refuse(k, "of at least one key");

  fmha_fwd_traits traits{};
  traits.hdim_q = shape.depth;
  traits.hdim_v = shape.value_depth;
  traits.data_type = dtype;
  traits.is_group_mode = shape.packed;
  traits.is_v_rowmajor = true;
  traits.mask_type = mask.type;
  traits.bias_type = bias_type;
  traits.has_lse = true;
  traits.has_dropout = drops;
  if (shape.packed) {
    clear(stream, out, 2);
    clear(stream, lse, 4);
  }
  call_ck(stream, q.text() + ", " + k.text() + ", " + v.text() + (drops ? ", dropout" : ""), [&] {
    return fmha_fwd(traits, args, ck_tile::stream_config{static_cast<hipStream_t>(stream)});
  });
}

ffi::Error mha_fwd(Stream stream, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer bias,
                   ffi::AnyBuffer slopes, ffi::AnyBuffer cu_q, ffi::AnyBuffer cu_k, ffi::AnyBuffer seed,
                   ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> lse, float scale, float dropout,
                   std::int32_t window_left, std::int32_t window_right, std::int32_t longest_query,
                   std::int32_t longest_key) {
  return guarded("jax_aiter_mha_fwd", [&] {
    forward(stream, Tensor("q", q), Tensor("k", k), Tensor("v", v), Tensor("bias", bias), Tensor("slopes", slopes),
            Tensor("cu_q", cu_q), Tensor("cu_k", cu_k), Tensor("seed", seed), Tensor("out", *out), Tensor("lse", *lse),
            {scale, dropout, window_left, window_right, longest_query, longest_key});
  });
}

}  // namespace
}  // namespace jax_aiter

using jax_aiter::bind;
using xla::ffi::AnyBuffer;

JAX_AITER_HANDLER(JaxAiterMhaFwd, jax_aiter::mha_fwd,
                  jax_aiter::with_options(bind()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Arg<AnyBuffer>()
                                              .Ret<AnyBuffer>()
                                              .Ret<AnyBuffer>()));
