// The handler of Composable Kernel's attention, backward.
//
// dk and dv have one head for each head of q: where several share a head of k, the gradient is their sum. dq_sum
// accumulates dq over blocks, and d has the sums of dout * out from the first kernel; both are scratch buffers.
#include "fmha_bwd.hpp"
#include "mha.h"

namespace jax_aiter {
namespace {

struct MhaGradients {
  Tensor dq, dk, dv, dq_sum, d;

  std::string text() const {
    return dq.text() + ", " + dk.text() + ", " + dv.text() + ", " + dq_sum.text() + ", " + d.text();
  }
};

void expect_gradients(const MhaGradients& made, const Tensor& dout, ffi::DataType dtype, const MhaShape& shape) {
  expect_heads(dout, dtype, shape, shape.queries, shape.heads, shape.value_depth);
  expect_heads(made.dq, dtype, shape, shape.queries, shape.heads, shape.depth);
  expect_heads(made.dk, dtype, shape, shape.keys, shape.heads, shape.depth);
  expect_heads(made.dv, dtype, shape, shape.keys, shape.heads, shape.value_depth);
  expect_heads(made.dq_sum, ffi::DataType::F32, shape, shape.queries, shape.heads, shape.depth);
  expect_rows(made.d, shape);
}

void set_gradients(fmha_bwd_args& args, const MhaGradients& made, const Tensor& dout, const MhaShape& shape) {
  const MhaStrides dk = strides_of("dk", shape, shape.keys, shape.heads, shape.depth);
  const MhaStrides dv = strides_of("dv", shape, shape.keys, shape.heads, shape.value_depth);
  const MhaStrides lse = strides_of_rows("lse", shape);
  args.stride_dq = args.stride_dq_acc = args.stride_q;
  args.nhead_stride_dq = args.nhead_stride_dq_acc = args.nhead_stride_q;
  args.batch_stride_dq = args.batch_stride_dq_acc = args.batch_stride_q;
  args.stride_do = args.stride_o;
  args.nhead_stride_do = args.nhead_stride_o;
  args.batch_stride_do = args.batch_stride_o;
  args.stride_dk = dk.row, args.nhead_stride_dk = dk.head, args.batch_stride_dk = dk.batch;
  args.stride_dv = dv.row, args.nhead_stride_dv = dv.head, args.batch_stride_dv = dv.batch;
  args.nhead_stride_lsed = lse.head, args.batch_stride_lsed = lse.batch;
  args.do_ptr = dout.data;
  args.d_ptr = made.d.data;
  args.dq_ptr = made.dq.data;
  args.dk_ptr = made.dk.data;
  args.dv_ptr = made.dv.data;
  args.dq_acc_ptr = made.dq_sum.data;
}

void clear(Stream stream, const Tensor& tensor, std::int64_t element_bytes) {
  if (tensor.elements() == 0) return;
  const Hip& hip = Hip::get();
  hip.check(hip.memset_async(tensor.data, 0, static_cast<std::size_t>(tensor.elements() * element_bytes), stream),
            "clearing " + tensor.text());
}

void backward(Stream stream, const Tensor& dout, const MhaInputs& in, const Tensor& out, const Tensor& lse,
              const MhaGradients& made, const MhaOptions& options) {
  fmha_bwd_args args{};
  fmha_bwd_traits traits{};
  const MhaShape shape = prepare(args, traits, in, out, lse, options);
  expect_gradients(made, dout, in.q.dtype, shape);
  set_gradients(args, made, dout, shape);
  args.max_seqlen_k = most_keys(shape, options);
  args.p_undrop = 1 - options.dropout;
  args.scale = options.scale;

  const bool empty = in.q.elements() == 0 || in.k.elements() == 0;
  if (empty || shape.packed) {  // places outside of all packed sequences are written by nobody else
    for (const Tensor* tensor : {&made.dq, &made.dk, &made.dv}) clear(stream, *tensor, 2);
  }
  if (empty) return;
  clear(stream, made.dq_sum, 4);
  call_ck(stream, [&] {
    return fmha_bwd<>(traits, args, ck_tile::stream_config{static_cast<hipStream_t>(stream)});
  });
}

ffi::Error mha_bwd(Stream stream, ffi::AnyBuffer dout, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                   ffi::AnyBuffer out, ffi::AnyBuffer lse, ffi::AnyBuffer bias, ffi::AnyBuffer slopes,
                   ffi::AnyBuffer cu_q, ffi::AnyBuffer cu_k, ffi::AnyBuffer seed, ffi::Result<ffi::AnyBuffer> dq,
                   ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv, ffi::Result<ffi::AnyBuffer> dq_sum,
                   ffi::Result<ffi::AnyBuffer> d, float scale, float dropout, std::int32_t window_left,
                   std::int32_t window_right, std::int32_t longest_query, std::int32_t longest_key) {
  const MhaInputs in{{"q", q},           {"k", k},       {"v", v},       {"bias", bias},
                     {"slopes", slopes}, {"cu_q", cu_q}, {"cu_k", cu_k}, {"seed", seed}};
  const MhaGradients made{{"dq", *dq}, {"dk", *dk}, {"dv", *dv}, {"dq_sum", *dq_sum}, {"d", *d}};
  const MhaOptions options{scale, dropout, window_left, window_right, longest_query, longest_key};
  return guarded("jax_aiter_mha_bwd", backward, stream, Tensor("dout", dout), in, Tensor("out", out),
                 Tensor("lse", lse), made, options);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterMhaBwd, jax_aiter::mha_bwd, (jax_aiter::with_options(jax_aiter::bind<11, 5>())));
