// Arguments of the SwiGLU kernels: shared by kernels, handlers and checks.
#pragma once

#include "spread.h"

// y = gate * sigmoid(gate) * up. Rows of gate and up begin every `stride` numbers.
struct SiluAndMulArgs {
  const void* gate;  // [rows, n]
  const void* up;    // [rows, n]
  void* y;           // [rows, n], without gaps
  unsigned long n;
  unsigned long stride;
  Spread spread;  // of rows; an item is 16 bytes or one number
};
static_assert(sizeof(SiluAndMulArgs) == 72);

// Its gradients. Rows of dgate and dup begin every `stride` numbers too.
struct SiluAndMulBwdArgs {
  const void* dy;    // [rows, n], without gaps
  const void* gate;  // [rows, n]
  const void* up;    // [rows, n]
  void* dgate;       // [rows, n]
  void* dup;         // [rows, n]
  unsigned long n;
  unsigned long stride;
  Spread spread;
};
static_assert(sizeof(SiluAndMulBwdArgs) == 88);
