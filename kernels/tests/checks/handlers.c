// FFI handlers of tests, for the CPU: they are called as the kernels are called, and compute in plain loops.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

static char root[4096];

#ifndef NO_SET_ROOT
void jax_aiter_set_root(const char* folder) { snprintf(root, sizeof root, "%s", folder); }
#endif
const char* jax_aiter_get_root(void) { return root; }

static XLA_FFI_Error* refuse(XLA_FFI_CallFrame* frame, const char* why) {
  XLA_FFI_Error_Create_Args args = {0};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = why;
  args.errc = XLA_FFI_Error_Code_INVALID_ARGUMENT;
  return frame->api->XLA_FFI_Error_Create(&args);
}

// As the handlers of xla/ffi/api/ffi.h do: exactly this call frame, and at least these structures.
static int answered(XLA_FFI_CallFrame* frame, XLA_FFI_Error** error) {
  *error = NULL;
  if (frame->struct_size != XLA_FFI_CallFrame_STRUCT_SIZE) {
    *error = refuse(frame, "Unexpected XLA_FFI_CallFrame size");
    return 1;
  }
  XLA_FFI_Metadata_Extension* asked = (XLA_FFI_Metadata_Extension*)frame->extension_start;
  if (asked == NULL || asked->extension_base.type != XLA_FFI_Extension_Metadata) return 0;
  if (asked->extension_base.struct_size < XLA_FFI_Metadata_Extension_STRUCT_SIZE ||
      asked->metadata->struct_size < XLA_FFI_Metadata_STRUCT_SIZE) {
    *error = refuse(frame, "Unexpected XLA_FFI_Metadata size");
    return 1;
  }
  asked->metadata->api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  asked->metadata->api_version.major_version = 0;
  asked->metadata->api_version.minor_version = 1;
  asked->metadata->traits = 0;
  return 1;
}

static XLA_FFI_Buffer* arg(XLA_FFI_CallFrame* frame, int i) { return (XLA_FFI_Buffer*)frame->args.args[i]; }
static XLA_FFI_Buffer* ret(XLA_FFI_CallFrame* frame, int i) { return (XLA_FFI_Buffer*)frame->rets.rets[i]; }

static int shaped(XLA_FFI_Buffer* buffer, int dtype, int64_t rank, int64_t first, int64_t second) {
  return (int)buffer->dtype == dtype && buffer->rank == rank && buffer->dims[0] == first &&
         (rank == 1 || buffer->dims[1] == second);
}

static const XLA_FFI_Scalar* scalar(XLA_FFI_CallFrame* frame, const char* name, int dtype) {
  for (int64_t i = 0; i < frame->attrs.size; ++i) {
    const XLA_FFI_ByteSpan* found = frame->attrs.names[i];
    if (found->len != strlen(name) || memcmp(found->ptr, name, found->len)) continue;
    if (frame->attrs.types[i] != XLA_FFI_AttrType_SCALAR) return NULL;
    const XLA_FFI_Scalar* value = (const XLA_FFI_Scalar*)frame->attrs.attrs[i];
    return (int)value->dtype == dtype ? value : NULL;
  }
  return NULL;
}

static void normalise(const float* x, const float* gamma, float* y, float* rstd, int64_t rows, int64_t n, float e) {
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += (double)x[i * n + j] * x[i * n + j];
    rstd[i] = (float)(1 / sqrt(sum / (double)n + e));
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * rstd[i] * gamma[j];
  }
}

XLA_FFI_Error* JaxAiterRmsNorm(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 2 || frame->rets.size != 2 || frame->attrs.size != 1) return refuse(frame, "counts");
  const XLA_FFI_Scalar* epsilon = scalar(frame, "epsilon", XLA_FFI_DataType_F32);
  int64_t rows = arg(frame, 0)->dims[0], n = arg(frame, 0)->dims[1];
  if (!epsilon || !shaped(arg(frame, 0), XLA_FFI_DataType_F32, 2, rows, n) ||
      !shaped(arg(frame, 1), XLA_FFI_DataType_F32, 1, n, 0) ||
      !shaped(ret(frame, 0), XLA_FFI_DataType_F32, 2, rows, n) ||
      !shaped(ret(frame, 1), XLA_FFI_DataType_F32, 1, rows, 0))
    return refuse(frame, "rms_norm is called in another way");
  normalise(arg(frame, 0)->data, arg(frame, 1)->data, ret(frame, 0)->data, ret(frame, 1)->data, rows, n,
            *(const float*)epsilon->value);
  return NULL;
}

XLA_FFI_Error* JaxAiterRmsNormWithAdd(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 3 || frame->rets.size != 3 || frame->attrs.size != 1) return refuse(frame, "counts");
  const XLA_FFI_Scalar* epsilon = scalar(frame, "epsilon", XLA_FFI_DataType_F32);
  int64_t rows = arg(frame, 0)->dims[0], n = arg(frame, 0)->dims[1];
  if (!epsilon || !shaped(arg(frame, 1), XLA_FFI_DataType_F32, 2, rows, n) ||
      !shaped(arg(frame, 2), XLA_FFI_DataType_F32, 1, n, 0) ||
      !shaped(ret(frame, 1), XLA_FFI_DataType_F32, 2, rows, n) ||
      !shaped(ret(frame, 2), XLA_FFI_DataType_F32, 1, rows, 0))
    return refuse(frame, "rms_norm_with_add is called in another way");
  const float *x = arg(frame, 0)->data, *residual = arg(frame, 1)->data;
  float* sum = ret(frame, 1)->data;
  for (int64_t i = 0; i < rows * n; ++i) sum[i] = x[i] + residual[i];
  normalise(sum, arg(frame, 2)->data, ret(frame, 0)->data, ret(frame, 2)->data, rows, n,
            *(const float*)epsilon->value);
  return NULL;
}

XLA_FFI_Error* JaxAiterCkRmsNorm(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  return refuse(frame, "halves are not computed here");
}

XLA_FFI_Error* JaxAiterRmsNormBwd(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 4 || frame->rets.size != 2 || frame->attrs.size != 0) return refuse(frame, "counts");
  int64_t rows = arg(frame, 0)->dims[0], n = arg(frame, 0)->dims[1], parts = ret(frame, 1)->dims[0];
  if (!shaped(arg(frame, 1), XLA_FFI_DataType_F32, 2, rows, n) ||
      !shaped(arg(frame, 2), XLA_FFI_DataType_F32, 1, n, 0) ||
      !shaped(arg(frame, 3), XLA_FFI_DataType_F32, 1, rows, 0) ||
      !shaped(ret(frame, 0), XLA_FFI_DataType_F32, 2, rows, n) ||
      !shaped(ret(frame, 1), XLA_FFI_DataType_F32, 2, parts, n) || parts > rows)
    return refuse(frame, "rms_norm_bwd is called in another way");
  const float *dy = arg(frame, 0)->data, *x = arg(frame, 1)->data, *gamma = arg(frame, 2)->data;
  const float* rstd = arg(frame, 3)->data;
  float *dx = ret(frame, 0)->data, *dgamma = ret(frame, 1)->data;
  memset(dgamma, 0, sizeof(float) * (size_t)(parts * n));
  for (int64_t i = 0; i < rows; ++i) {
    double mean = 0;
    for (int64_t j = 0; j < n; ++j) mean += (double)dy[i * n + j] * gamma[j] * x[i * n + j] * rstd[i] / (double)n;
    for (int64_t j = 0; j < n; ++j) {
      double normal = (double)x[i * n + j] * rstd[i];
      dx[i * n + j] = (float)(rstd[i] * ((double)dy[i * n + j] * gamma[j] - normal * mean));
      dgamma[(i % parts) * n + j] += (float)(dy[i * n + j] * normal);
    }
  }
  return NULL;
}

static float widened(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint16_t narrowed(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

XLA_FFI_Error* JaxAiterGemmBf16(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 3 || frame->rets.size != 2 || frame->attrs.size != 2) return refuse(frame, "counts");
  int64_t m = arg(frame, 0)->dims[0], k = arg(frame, 0)->dims[1], n = arg(frame, 1)->dims[0];
  int64_t biased = arg(frame, 2)->dims[0];
  int wide = ret(frame, 0)->dtype == XLA_FFI_DataType_F32;
  if (!scalar(frame, "splitk", XLA_FFI_DataType_S32) || !shaped(arg(frame, 0), XLA_FFI_DataType_BF16, 2, m, k) ||
      !shaped(arg(frame, 1), XLA_FFI_DataType_BF16, 2, n, k) ||
      !shaped(arg(frame, 2), XLA_FFI_DataType_F32, 1, biased, 0) || (biased != 0 && biased != n) ||
      !shaped(ret(frame, 0), wide ? XLA_FFI_DataType_F32 : XLA_FFI_DataType_BF16, 2, m, n) ||
      !shaped(ret(frame, 1), XLA_FFI_DataType_U32, 1, 1024, 0))
    return refuse(frame, "gemm_bf16 is called in another way");
  const uint16_t *a = arg(frame, 0)->data, *b = arg(frame, 1)->data;
  const float* bias = arg(frame, 2)->data;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = biased ? bias[j] : 0;
      for (int64_t l = 0; l < k; ++l) sum += (double)widened(a[i * k + l]) * widened(b[j * k + l]);
      if (wide)
        ((float*)ret(frame, 0)->data)[i * n + j] = (float)sum;
      else
        ((uint16_t*)ret(frame, 0)->data)[i * n + j] = narrowed((float)sum);
    }
  return NULL;
}

// Where AITER keeps element (row, byte) of a weight of `width` bytes a row: tiles of `tile` rows and 16 * `pieces`
// bytes, in a tile the pieces of 16 bytes one after the other, and in a piece the rows.
static int64_t tiled(int64_t row, int64_t byte, int64_t width, int64_t tile, int64_t pieces) {
  int64_t block = (row / tile) * (width / (16 * pieces)) + byte / (16 * pieces);
  return block * tile * 16 * pieces + (byte / 16 % pieces) * tile * 16 + (row % tile) * 16 + byte % 16;
}

XLA_FFI_Error* JaxAiterGemmI8(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 5 || frame->rets.size != 1 || frame->attrs.size != 2) return refuse(frame, "counts");
  int64_t m = arg(frame, 0)->dims[0], k = arg(frame, 0)->dims[1], n = arg(frame, 1)->dims[0];
  if (m == 13) return refuse(frame, "thirteen rows are too many");
  if (!shaped(arg(frame, 0), XLA_FFI_DataType_S8, 2, m, k) || !shaped(arg(frame, 1), XLA_FFI_DataType_S8, 2, n, k) ||
      !shaped(arg(frame, 2), XLA_FFI_DataType_F32, 2, m, 1) || !shaped(arg(frame, 3), XLA_FFI_DataType_F32, 2, 1, n) ||
      !shaped(arg(frame, 4), XLA_FFI_DataType_F32, 1, n, 0) ||
      !shaped(ret(frame, 0), XLA_FFI_DataType_BF16, 2, m, n))
    return refuse(frame, "gemm_i8 is called in another way");
  const int8_t *a = arg(frame, 0)->data, *b = arg(frame, 1)->data;
  const float *sa = arg(frame, 2)->data, *sb = arg(frame, 3)->data, *bias = arg(frame, 4)->data;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      int64_t sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += a[i * k + l] * b[tiled(j, l, k, 32, 2)];
      ((uint16_t*)ret(frame, 0)->data)[i * n + j] = narrowed((float)sum * sa[i] * sb[j] + bias[j]);
    }
  return NULL;
}

// e4m3 with this bias; `finite` is the kind without infinities and negative zero (fnuz).
static double e4m3(uint8_t bits, int bias, int finite) {
  int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (finite ? bits == 0x80 : (bits & 0x7F) == 0x7F) return NAN;
  double value = exponent ? ldexp(8 + mantissa, exponent - bias - 3) : ldexp(mantissa, 1 - bias - 3);
  return bits & 0x80 ? -value : value;
}

XLA_FFI_Error* JaxAiterGemmFp8Mi350(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 4 || frame->rets.size != 1 || frame->attrs.size != 0) return refuse(frame, "counts");
  int64_t m = arg(frame, 0)->dims[0], k = arg(frame, 0)->dims[1], n = arg(frame, 1)->dims[0];
  if (!shaped(arg(frame, 0), XLA_FFI_DataType_F8E4M3FN, 2, m, k) ||
      !shaped(arg(frame, 1), XLA_FFI_DataType_F8E4M3FN, 2, n, k) ||
      !shaped(arg(frame, 2), XLA_FFI_DataType_F32, 2, k / 128, m) ||
      !shaped(arg(frame, 3), XLA_FFI_DataType_F32, 2, n / 128, k / 128) ||
      !shaped(ret(frame, 0), XLA_FFI_DataType_BF16, 2, m, n))
    return refuse(frame, "gemm_fp8_mi350 is called in another way");
  const uint8_t *x = arg(frame, 0)->data, *w = arg(frame, 1)->data;
  const float *sx = arg(frame, 2)->data, *sw = arg(frame, 3)->data;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += e4m3(x[i * k + l], 7, 0) * e4m3(w[tiled(j, l, k, 16, 2)], 7, 0) * sx[l / 128 * m + i] *
               sw[j / 128 * (k / 128) + l / 128];
      ((uint16_t*)ret(frame, 0)->data)[i * n + j] = narrowed((float)sum);
    }
  return NULL;
}

XLA_FFI_Error* JaxAiterFlatmmFp8(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 4 || frame->rets.size != 1 || frame->attrs.size != 0) return refuse(frame, "counts");
  int64_t m = arg(frame, 0)->dims[0], k = arg(frame, 0)->dims[1], n = arg(frame, 1)->dims[0];
  if (!shaped(arg(frame, 0), XLA_FFI_DataType_F8E4M3FNUZ, 2, m, k) ||
      !shaped(arg(frame, 1), XLA_FFI_DataType_F8E4M3FNUZ, 2, n, k) ||
      !shaped(arg(frame, 2), XLA_FFI_DataType_F32, 2, k / 128, m) ||
      !shaped(arg(frame, 3), XLA_FFI_DataType_F32, 2, k / 128, n / 128) ||
      !shaped(ret(frame, 0), XLA_FFI_DataType_F16, 2, m, n))
    return refuse(frame, "flatmm_fp8 is called in another way");
  const uint8_t *x = arg(frame, 0)->data, *w = arg(frame, 1)->data;
  const float *sx = arg(frame, 2)->data, *sw = arg(frame, 3)->data;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += e4m3(x[i * k + l], 8, 1) * e4m3(w[tiled(j, l, k, 16, 4)], 8, 1) * sx[l / 128 * m + i] *
               sw[l / 128 * (n / 128) + j / 128];
      _Float16 half = (_Float16)sum;
      memcpy((uint16_t*)ret(frame, 0)->data + i * n + j, &half, sizeof half);
    }
  return NULL;
}

// Where AITER keeps the scale of (row, column) of `columns`, which is a multiple of 8.
static int64_t scaled(int64_t row, int64_t column, int64_t columns) {
  int64_t block = row / 32 * (columns / 8) + column / 8;
  return block * 256 + column % 4 * 64 + row % 16 * 4 + column / 4 % 2 * 2 + row / 16 % 2;
}

static double e2m1(const uint8_t* bytes, int64_t place, int high) {
  static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  int bits = high ? bytes[place] >> 4 : bytes[place] & 15;
  return bits & 8 ? -values[bits & 7] : values[bits & 7];
}

XLA_FFI_Error* JaxAiterGemmFp4(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 4 || frame->rets.size != 1 || frame->attrs.size != 3) return refuse(frame, "counts");
  int64_t m = arg(frame, 0)->dims[0], half = arg(frame, 0)->dims[1], n = arg(frame, 1)->dims[0];
  int64_t columns = arg(frame, 2)->dims[1];
  const XLA_FFI_Scalar* shuffled = scalar(frame, "bpreshuffle", XLA_FFI_DataType_PRED);
  if (!shuffled || !*(const uint8_t*)shuffled->value || m % 32 != 0 || columns % 8 != 0 || columns < half / 16 ||
      arg(frame, 2)->dims[0] < m || arg(frame, 3)->dims[0] < n || arg(frame, 3)->dims[1] != columns ||
      !shaped(arg(frame, 1), XLA_FFI_DataType_U8, 2, n, half) ||
      !shaped(ret(frame, 0), XLA_FFI_DataType_BF16, 2, m, n))
    return refuse(frame, "gemm_fp4 is called in another way");
  const uint8_t *a = arg(frame, 0)->data, *b = arg(frame, 1)->data, *sa = arg(frame, 2)->data, *sb = arg(frame, 3)->data;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < 2 * half; ++l) {
        int power = sa[scaled(i, l / 32, columns)] + sb[scaled(j, l / 32, columns)] - 254;
        double product = e2m1(a, i * half + l / 2, l & 1) * e2m1(b, tiled(j, l / 2, half, 16, 2), l & 1);
        sum += ldexp(product, power);
      }
      ((uint16_t*)ret(frame, 0)->data)[i * n + j] = narrowed((float)sum);
    }
  return NULL;
}

#include "attention.h"
