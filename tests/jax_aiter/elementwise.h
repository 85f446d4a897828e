// Handlers of RoPE and SwiGLU for float32, in plain loops; part of handlers.c.

XLA_FFI_Error* JaxAiterRope(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 4 || frame->rets.size != 1 || frame->attrs.size != 2) return refuse(frame, "counts");
  const XLA_FFI_Scalar *interleaved = scalar(frame, "interleaved", XLA_FFI_DataType_PRED),
                       *inverse = scalar(frame, "inverse", XLA_FFI_DataType_PRED);
  XLA_FFI_Buffer *x = arg(frame, 0), *cosines = arg(frame, 1), *sines = arg(frame, 2), *y = ret(frame, 0);
  if (!interleaved || !inverse || x->rank != 3 || y->rank != 3 || x->dtype != XLA_FFI_DataType_F32 ||
      memcmp(x->dims, y->dims, 3 * sizeof(int64_t)) != 0 ||
      !shaped(cosines, XLA_FFI_DataType_F32, 2, cosines->dims[0], cosines->dims[1]) ||
      !shaped(sines, XLA_FFI_DataType_F32, 2, cosines->dims[0], cosines->dims[1]) ||
      !shaped(arg(frame, 3), XLA_FFI_DataType_S32, 1, x->dims[0], 0))
    return refuse(frame, "rope is called in another way");
  int64_t heads = x->dims[1], depth = x->dims[2], rows = cosines->dims[0], pairs = cosines->dims[1];
  int near = *(const uint8_t*)interleaved->value, back = *(const uint8_t*)inverse->value;
  const int32_t* positions = arg(frame, 3)->data;
  for (int64_t row = 0; row < x->dims[0] * heads; ++row) {
    const float* from = (const float*)x->data + row * depth;
    float* to = (float*)y->data + row * depth;
    int32_t position = positions[row / heads];
    for (int64_t i = 2 * pairs; i < depth; ++i) to[i] = from[i];
    for (int64_t i = 0; i < pairs; ++i) {
      int64_t a = near ? 2 * i : i, b = near ? 2 * i + 1 : i + pairs;
      int inside = position >= 0 && position < rows;
      double c = inside ? ((const float*)cosines->data)[position * pairs + i] : NAN;
      double s = inside ? ((const float*)sines->data)[position * pairs + i] : NAN;
      if (back) s = -s;
      to[a] = (float)(from[a] * c - from[b] * s);
      to[b] = (float)(from[b] * c + from[a] * s);
    }
  }
  return NULL;
}

static void gate_forward(const float* gate, const float* up, float* y, int64_t rows, int64_t n, int64_t stride) {
  for (int64_t i = 0; i < rows * n; ++i) {
    int64_t at = i / n * stride + i % n;
    y[i] = (float)(gate[at] / (1 + exp(-(double)gate[at])) * up[at]);
  }
}

static void gate_backward(const float* dy, const float* gate, const float* up, float* dgate, float* dup, int64_t rows,
                          int64_t n, int64_t stride) {
  for (int64_t i = 0; i < rows * n; ++i) {
    int64_t at = i / n * stride + i % n;
    double g = gate[at], value = 1 / (1 + exp(-g)), rest = 1 / (1 + exp(g));
    dgate[at] = (float)(dy[i] * up[at] * value * (1 + g * rest));
    dup[at] = (float)(dy[i] * g * value);
  }
}

// Whether these buffers are float32 with these rows and numbers.
static int of_rows(XLA_FFI_Buffer* buffer, int64_t rows, int64_t n) {
  return shaped(buffer, XLA_FFI_DataType_F32, 2, rows, n);
}

XLA_FFI_Error* JaxAiterSiluAndMul(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 1 || frame->rets.size != 1 || frame->attrs.size != 0) return refuse(frame, "counts");
  int64_t rows = arg(frame, 0)->dims[0], n = arg(frame, 0)->dims[1] / 2;
  if (!of_rows(arg(frame, 0), rows, 2 * n) || !of_rows(ret(frame, 0), rows, n))
    return refuse(frame, "silu_and_mul is called in another way");
  const float* x = arg(frame, 0)->data;
  gate_forward(x, x + n, ret(frame, 0)->data, rows, n, 2 * n);
  return NULL;
}

XLA_FFI_Error* JaxAiterSiluAndMulBwd(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 2 || frame->rets.size != 1 || frame->attrs.size != 0) return refuse(frame, "counts");
  int64_t rows = arg(frame, 0)->dims[0], n = arg(frame, 0)->dims[1];
  if (!of_rows(arg(frame, 0), rows, n) || !of_rows(arg(frame, 1), rows, 2 * n) || !of_rows(ret(frame, 0), rows, 2 * n))
    return refuse(frame, "silu_and_mul_bwd is called in another way");
  const float* x = arg(frame, 1)->data;
  float* dx = ret(frame, 0)->data;
  gate_backward(arg(frame, 0)->data, x, x + n, dx, dx + n, rows, n, 2 * n);
  return NULL;
}

XLA_FFI_Error* JaxAiterSwiglu(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 2 || frame->rets.size != 1 || frame->attrs.size != 0) return refuse(frame, "counts");
  int64_t rows = arg(frame, 0)->dims[0], n = arg(frame, 0)->dims[1];
  if (!of_rows(arg(frame, 0), rows, n) || !of_rows(arg(frame, 1), rows, n) || !of_rows(ret(frame, 0), rows, n))
    return refuse(frame, "swiglu is called in another way");
  gate_forward(arg(frame, 0)->data, arg(frame, 1)->data, ret(frame, 0)->data, rows, n, n);
  return NULL;
}

XLA_FFI_Error* JaxAiterSwigluBwd(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 3 || frame->rets.size != 2 || frame->attrs.size != 0) return refuse(frame, "counts");
  int64_t rows = arg(frame, 0)->dims[0], n = arg(frame, 0)->dims[1];
  if (!of_rows(arg(frame, 0), rows, n) || !of_rows(arg(frame, 1), rows, n) || !of_rows(arg(frame, 2), rows, n) ||
      !of_rows(ret(frame, 0), rows, n) || !of_rows(ret(frame, 1), rows, n))
    return refuse(frame, "swiglu_bwd is called in another way");
  gate_backward(arg(frame, 0)->data, arg(frame, 1)->data, arg(frame, 2)->data, ret(frame, 0)->data,
                ret(frame, 1)->data, rows, n, n);
  return NULL;
}
