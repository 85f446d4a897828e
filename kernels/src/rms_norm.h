// Arguments and launch geometry of the RMSNorm kernels: shared by kernels, handler and checks.
#pragma once

#ifndef GPU_DEVICE
#include <cstddef>
#endif

// y = x * rstd * gamma, rstd = 1 / sqrt(mean(x^2) + epsilon), for each row; with_add: sum = x + residual replaces x.
struct RmsNormArgs {
  const void* x;         // [rows, n]
  const void* residual;  // [rows, n], with_add only
  const void* gamma;     // [n]
  void* y;               // [rows, n]
  void* sum;             // [rows, n], with_add only
  float* rstd;           // [rows]
  unsigned long rows;
  unsigned long n;
  float epsilon;
  unsigned threads;  // of a block
  unsigned blocks;
  unsigned unused;
};
static_assert(sizeof(RmsNormArgs) == 80);
static_assert(__builtin_offsetof(RmsNormArgs, rows) == 48 && __builtin_offsetof(RmsNormArgs, epsilon) == 64);

// Gradients of y = x * rstd * gamma. Row p of dgamma_partial is the sum over rows p, p + partials, p + 2 partials, ...
struct RmsNormBwdArgs {
  const void* dy;         // [rows, n]
  const void* x;          // [rows, n]
  const void* gamma;      // [n]
  const float* rstd;      // [rows]
  void* dx;               // [rows, n]
  float* dgamma_partial;  // [partials, n]
  unsigned long rows;
  unsigned long n;
  unsigned threads;   // of a block
  unsigned partials;  // blocks
};
static_assert(sizeof(RmsNormBwdArgs) == 72);
static_assert(__builtin_offsetof(RmsNormBwdArgs, rows) == 48 && __builtin_offsetof(RmsNormBwdArgs, threads) == 64);

// Three forms of each kernel. held: loads of 16 bytes, the row stays in registers. wide: loads of 16 bytes, for rows
// that exceed the registers. narrow: loads of one number, for rows or pointers that are not multiples of 16 bytes.
enum class RmsNormForm { kHeld, kWide, kNarrow };

// Packs of 16 bytes that a thread holds of a row; backward also holds those of two other tensors. More would spill.
constexpr unsigned kRmsNormHeld = 4;
constexpr unsigned kRmsNormBwdHeld = 2;

struct RmsNormPlan {
  RmsNormForm form;
  unsigned threads;
};

// For rows of n numbers, of which `wide` are 16 bytes; aligned: all pointers are multiples of 16; held: packs, see
// above.
constexpr RmsNormPlan plan_rms_norm(unsigned long n, unsigned wide, bool aligned, unsigned held) {
  const bool narrow = !aligned || n % wide != 0;
  const unsigned long packs = narrow ? n : n / wide;
  const unsigned most = !narrow && packs <= 256 * held ? 256 : 512;
  unsigned threads = 64;
  while (threads < most && threads < packs) threads *= 2;
  if (narrow) return {RmsNormForm::kNarrow, threads};
  return {packs <= 1ul * threads * held ? RmsNormForm::kHeld : RmsNormForm::kWide, threads};
}
