// RMSNorm, forward, fused with an addition, and backward, for every GPU. All sums are in float32.
#include "gpu.h"
#include "rms_norm.h"

namespace {

template <typename Number>
constexpr u32 kWide = 16 / sizeof(Number);

// sum = x + residual, rounded as it is stored, so that the norm is that of the returned sum.
template <typename Number, u32 kCount, bool kAdd>
GPU_DEVICE Pack<Number, kCount> load_row(const RmsNormArgs& args, u64 at) {
  Pack<Number, kCount> x = load<Number, kCount>(args.x, at);
  if constexpr (kAdd) {
    const Pack<Number, kCount> residual = load<Number, kCount>(args.residual, at);
    for (u32 i = 0; i < kCount; ++i) x.at[i] = Rounded<Number>::of(to_float(x.at[i]) + to_float(residual.at[i]));
  }
  return x;
}

template <typename Number, u32 kCount>
GPU_DEVICE float squares_of(const Pack<Number, kCount>& x) {
  float sum = 0;
  for (u32 i = 0; i < kCount; ++i) sum += to_float(x.at[i]) * to_float(x.at[i]);
  return sum;
}

template <typename Number, u32 kCount>
GPU_DEVICE void store_y(const RmsNormArgs& args, u64 row_at, u64 column, const Pack<Number, kCount>& x, float rstd) {
  const Pack<Number, kCount> gamma = load<Number, kCount>(args.gamma, column);
  Pack<Number, kCount> y;
  for (u32 i = 0; i < kCount; ++i) y.at[i] = Rounded<Number>::of(to_float(x.at[i]) * rstd * to_float(gamma.at[i]));
  store(args.y, row_at + column, y);
}

GPU_DEVICE float rstd_of(const RmsNormArgs& args, float squares) {
  return 1.0f / gpu_sqrt(block_sum(squares, args.threads) / static_cast<float>(args.n) + args.epsilon);
}

template <typename Number, u32 kCount, bool kAdd>
GPU_DEVICE void rms_norm_loop(const RmsNormArgs& args) {
  const u64 first = u64{gpu_thread()} * kCount, step = u64{args.threads} * kCount;
  for (u64 row = gpu_block(); row < args.rows; row += args.blocks) {
    const u64 row_at = row * args.n;
    float squares = 0;
    for (u64 column = first; column < args.n; column += step) {
      const Pack<Number, kCount> x = load_row<Number, kCount, kAdd>(args, row_at + column);
      if constexpr (kAdd) store(args.sum, row_at + column, x);
      squares += squares_of(x);
    }
    const float rstd = rstd_of(args, squares);
    if (gpu_thread() == 0) args.rstd[row] = rstd;
    for (u64 column = first; column < args.n; column += step) {
      // Each thread reads back what it wrote itself.
      store_y(args, row_at, column, load<Number, kCount>(kAdd ? args.sum : args.x, row_at + column), rstd);
    }
  }
}

template <typename Number, u32 kCount, bool kAdd>
GPU_DEVICE void rms_norm_held(const RmsNormArgs& args) {
  const u64 first = u64{gpu_thread()} * kCount, step = u64{args.threads} * kCount;
  for (u64 row = gpu_block(); row < args.rows; row += args.blocks) {
    const u64 row_at = row * args.n;
    Pack<Number, kCount> held[kRmsNormHeld];
#pragma unroll
    for (u32 k = 0; k < kRmsNormHeld; ++k) {
      if (first + k * step < args.n) held[k] = load_row<Number, kCount, kAdd>(args, row_at + first + k * step);
    }
    float squares = 0;
#pragma unroll
    for (u32 k = 0; k < kRmsNormHeld; ++k) {
      if (first + k * step < args.n) squares += squares_of(held[k]);
    }
    const float rstd = rstd_of(args, squares);
    if (gpu_thread() == 0) args.rstd[row] = rstd;
#pragma unroll
    for (u32 k = 0; k < kRmsNormHeld; ++k) {
      if (first + k * step >= args.n) continue;
      if constexpr (kAdd) store(args.sum, row_at + first + k * step, held[k]);
      store_y(args, row_at, first + k * step, held[k], rstd);
    }
  }
}

// Contribution of one pack to the row's sum of dy * gamma * x * rstd.
template <typename Number, u32 kCount>
GPU_DEVICE float dot_of(const Pack<Number, kCount>& dy, const Pack<Number, kCount>& x,
                        const Pack<Number, kCount>& gamma, float rstd) {
  float sum = 0;
  for (u32 i = 0; i < kCount; ++i) {
    sum += to_float(dy.at[i]) * to_float(gamma.at[i]) * (to_float(x.at[i]) * rstd);
  }
  return sum;
}

template <typename Number, u32 kCount>
GPU_DEVICE Pack<Number, kCount> dx_of(const Pack<Number, kCount>& dy, const Pack<Number, kCount>& x,
                                      const Pack<Number, kCount>& gamma, float rstd, float mean_dot) {
  Pack<Number, kCount> dx;
  for (u32 i = 0; i < kCount; ++i) {
    const float slope = to_float(dy.at[i]) * to_float(gamma.at[i]);
    dx.at[i] = Rounded<Number>::of((slope - to_float(x.at[i]) * rstd * mean_dot) * rstd);
  }
  return dx;
}

// to += terms, 16 bytes at a time; the first time, to = terms.
template <u32 kCount>
GPU_DEVICE void add_to(float* to, const float (&terms)[kCount], bool first) {
  constexpr u32 kPart = kCount < 4 ? kCount : 4;
  for (u32 part = 0; part < kCount; part += kPart) {
    Pack<float, kPart> sum{};
    if (!first) sum = load<float, kPart>(to, part);
    for (u32 i = 0; i < kPart; ++i) sum.at[i] += terms[part + i];
    store(to, part, sum);
  }
}

// Each thread owns some columns in all rows of its block, so no other thread writes its part of dgamma.
template <typename Number, u32 kCount>
GPU_DEVICE void rms_norm_bwd_loop(const RmsNormBwdArgs& args) {
  const u64 first = u64{gpu_thread()} * kCount, step = u64{args.threads} * kCount;
  float* const dgamma = args.dgamma_partial + gpu_block() * args.n;
  for (u64 column = first; column < args.n && gpu_block() >= args.rows; column += step) {
    for (u32 i = 0; i < kCount; ++i) dgamma[column + i] = 0;  // a block without rows
  }
  for (u64 row = gpu_block(); row < args.rows; row += args.partials) {
    const u64 row_at = row * args.n;
    const float rstd = args.rstd[row];
    float dot = 0;
    for (u64 column = first; column < args.n; column += step) {
      dot += dot_of(load<Number, kCount>(args.dy, row_at + column), load<Number, kCount>(args.x, row_at + column),
                    load<Number, kCount>(args.gamma, column), rstd);
    }
    const float mean_dot = block_sum(dot, args.threads) / static_cast<float>(args.n);
    for (u64 column = first; column < args.n; column += step) {
      const Pack<Number, kCount> dy = load<Number, kCount>(args.dy, row_at + column);
      const Pack<Number, kCount> x = load<Number, kCount>(args.x, row_at + column);
      float terms[kCount];
      for (u32 i = 0; i < kCount; ++i) terms[i] = to_float(dy.at[i]) * (to_float(x.at[i]) * rstd);
      add_to(dgamma + column, terms, row == gpu_block());
      store(args.dx, row_at + column, dx_of(dy, x, load<Number, kCount>(args.gamma, column), rstd, mean_dot));
    }
  }
}

template <typename Number, u32 kCount>
GPU_DEVICE void rms_norm_bwd_held(const RmsNormBwdArgs& args) {
  const u64 first = u64{gpu_thread()} * kCount, step = u64{args.threads} * kCount;
  Pack<Number, kCount> gamma[kRmsNormBwdHeld];
  float dgamma[kRmsNormBwdHeld][kCount] = {};
#pragma unroll
  for (u32 k = 0; k < kRmsNormBwdHeld; ++k) {
    if (first + k * step < args.n) gamma[k] = load<Number, kCount>(args.gamma, first + k * step);
  }
  for (u64 row = gpu_block(); row < args.rows; row += args.partials) {
    const u64 row_at = row * args.n + first;
    const float rstd = args.rstd[row];
    Pack<Number, kCount> dy[kRmsNormBwdHeld], x[kRmsNormBwdHeld];
#pragma unroll
    for (u32 k = 0; k < kRmsNormBwdHeld; ++k) {
      if (first + k * step >= args.n) continue;
      dy[k] = load<Number, kCount>(args.dy, row_at + k * step);
      x[k] = load<Number, kCount>(args.x, row_at + k * step);
    }
    float dot = 0;
#pragma unroll
    for (u32 k = 0; k < kRmsNormBwdHeld; ++k) {
      if (first + k * step < args.n) dot += dot_of(dy[k], x[k], gamma[k], rstd);
    }
    const float mean_dot = block_sum(dot, args.threads) / static_cast<float>(args.n);
#pragma unroll
    for (u32 k = 0; k < kRmsNormBwdHeld; ++k) {
      if (first + k * step >= args.n) continue;
      for (u32 i = 0; i < kCount; ++i) dgamma[k][i] += to_float(dy[k].at[i]) * (to_float(x[k].at[i]) * rstd);
      store(args.dx, row_at + k * step, dx_of(dy[k], x[k], gamma[k], rstd, mean_dot));
    }
  }
#pragma unroll
  for (u32 k = 0; k < kRmsNormBwdHeld; ++k) {
    if (first + k * step >= args.n) continue;
    add_to(args.dgamma_partial + gpu_block() * args.n + first + k * step, dgamma[k], true);
  }
}

}  // namespace

#define RMS_NORM_KERNELS(suffix, Number)                                                                      \
  GPU_KERNEL(rms_norm_##suffix##_held, RmsNormArgs) { rms_norm_held<Number, kWide<Number>, false>(args); }    \
  GPU_KERNEL(rms_norm_##suffix##_wide, RmsNormArgs) { rms_norm_loop<Number, kWide<Number>, false>(args); }    \
  GPU_KERNEL(rms_norm_##suffix##_narrow, RmsNormArgs) { rms_norm_loop<Number, 1, false>(args); }              \
  GPU_KERNEL(rms_norm_with_add_##suffix##_held, RmsNormArgs) { rms_norm_held<Number, kWide<Number>, true>(args); } \
  GPU_KERNEL(rms_norm_with_add_##suffix##_wide, RmsNormArgs) { rms_norm_loop<Number, kWide<Number>, true>(args); } \
  GPU_KERNEL(rms_norm_with_add_##suffix##_narrow, RmsNormArgs) { rms_norm_loop<Number, 1, true>(args); }      \
  GPU_KERNEL(rms_norm_bwd_##suffix##_held, RmsNormBwdArgs) { rms_norm_bwd_held<Number, kWide<Number>>(args); } \
  GPU_KERNEL(rms_norm_bwd_##suffix##_wide, RmsNormBwdArgs) { rms_norm_bwd_loop<Number, kWide<Number>>(args); } \
  GPU_KERNEL(rms_norm_bwd_##suffix##_narrow, RmsNormBwdArgs) { rms_norm_bwd_loop<Number, 1>(args); }

RMS_NORM_KERNELS(f32, float)
RMS_NORM_KERNELS(f16, Half)
RMS_NORM_KERNELS(bf16, Bf16)
