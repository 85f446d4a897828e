// Handler of Composable Kernel's attention, forward. Rows outside all packed sequences are not written.
#include "fmha_fwd.hpp"
#include "mha.h"

namespace jax_aiter {
namespace {

void forward(Stream stream, const MhaInputs& in, const Tensor& out, const Tensor& lse, const MhaOptions& options) {
  fmha_fwd_args args{};
  fmha_fwd_traits traits{};
  const MhaShape shape = prepare(args, traits, in, out, lse, options);
  const MhaStrides of_lse = strides_of_rows("lse", shape);
  args.nhead_stride_lse = of_lse.head, args.batch_stride_lse = of_lse.batch;
  args.scale_s = options.scale;
  args.scale_p = args.scale_o = 1;
  traits.is_v_rowmajor = true;
  traits.has_lse = true;
  if (out.elements() == 0) return;
  if (shape.keys == 0) refuse(in.k, "of at least one key");
  call_ck(stream, [&] {
    return fmha_fwd(traits, args, ck_tile::stream_config{static_cast<hipStream_t>(stream)});
  });
}

ffi::Error mha_fwd(Stream stream, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer bias,
                   ffi::AnyBuffer slopes, ffi::AnyBuffer cu_q, ffi::AnyBuffer cu_k, ffi::AnyBuffer seed,
                   ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> lse, float scale, float dropout,
                   std::int32_t window_left, std::int32_t window_right, std::int32_t longest_query,
                   std::int32_t longest_key) {
  const MhaInputs in{{"q", q},           {"k", k},       {"v", v},       {"bias", bias},
                     {"slopes", slopes}, {"cu_q", cu_q}, {"cu_k", cu_k}, {"seed", seed}};
  const MhaOptions options{scale, dropout, window_left, window_right, longest_query, longest_key};
  return guarded("jax_aiter_mha_fwd", forward, stream, in, Tensor("out", *out), Tensor("lse", *lse), options);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterMhaFwd, jax_aiter::mha_fwd, (jax_aiter::with_options(jax_aiter::bind<8, 2>())));
