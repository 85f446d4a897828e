// Fake handlers of a mixture of experts, for handlers.c.
#include <stdlib.h>

XLA_FFI_Error* JaxAiterTopkSoftmax(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 1 || frame->rets.size != 2 || frame->attrs.size != 1) return refuse(frame, "counts");
  int64_t m = arg(frame, 0)->dims[0], experts = arg(frame, 0)->dims[1], topk = ret(frame, 0)->dims[1];
  const XLA_FFI_Scalar* renormalize = scalar(frame, "renormalize", XLA_FFI_DataType_PRED);
  if (!renormalize || (experts != 128 && experts != 256) || (topk != 6 && topk != 8) ||
      !shaped(arg(frame, 0), XLA_FFI_DataType_F32, 2, m, experts) ||
      !shaped(ret(frame, 0), XLA_FFI_DataType_F32, 2, m, topk) ||
      !shaped(ret(frame, 1), XLA_FFI_DataType_S32, 2, m, topk))
    return refuse(frame, "topk_softmax is called in another way");
  for (int64_t i = 0; i < m; ++i) {
    const float* logits = (const float*)arg(frame, 0)->data + i * experts;
    float* weights = (float*)ret(frame, 0)->data + i * topk;
    int32_t* ids = (int32_t*)ret(frame, 1)->data + i * topk;
    double total = 0, chosen = 0, most = logits[0];
    for (int64_t e = 0; e < experts; ++e) most = logits[e] > most ? logits[e] : most;
    for (int64_t e = 0; e < experts; ++e) total += exp(logits[e] - most);
    for (int64_t k = 0; k < topk; ++k) {
      int best = -1;
      for (int e = 0; e < experts; ++e) {
        int taken = 0;
        for (int64_t before = 0; before < k; ++before) taken |= ids[before] == e;
        if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
      }
      ids[k] = best;
      weights[k] = (float)(exp(logits[best] - most) / total);
      chosen += weights[k];
    }
    for (int64_t k = 0; *(const uint8_t*)renormalize->value && k < topk; ++k) weights[k] = (float)(weights[k] / chosen);
  }
  return NULL;
}

// Element of a weight [E, rows, columns] in AITER's order, or of a row-major matrix if `plain`.
static double element(XLA_FFI_Buffer* buffer, int64_t expert, int64_t row, int64_t column, int64_t columns, int plain) {
  int64_t rows = plain ? 0 : buffer->dims[1];
  int half = buffer->dtype == XLA_FFI_DataType_BF16;
  int64_t width = columns * (half ? 2 : 1);
  int64_t byte = plain ? row * width + column * (half ? 2 : 1)
                       : expert * rows * width + tiled(row, column * (half ? 2 : 1), width, 16, half ? 4 : 2);
  const uint8_t* at = (const uint8_t*)buffer->data + byte;
  uint16_t bits;
  if (half) {
    memcpy(&bits, at, sizeof bits);
    return widened(bits);
  }
  if (buffer->dtype == XLA_FFI_DataType_S8) return *(const int8_t*)at;
  return buffer->dtype == XLA_FFI_DataType_F8E4M3FN ? e4m3(*at, 7, 0) : e4m3(*at, 8, 1);
}

// Adds one expert's part of one token.
static void add_expert(XLA_FFI_CallFrame* frame, int64_t token, int64_t expert, double weight, int gelu, double* out) {
  XLA_FFI_Buffer *x = arg(frame, 0), *w1 = arg(frame, 1), *w2 = arg(frame, 2);
  int64_t depth = x->dims[1], inner = w2->dims[2], rows = w1->dims[1];
  int scaled = arg(frame, 7)->dims[0] != 0;
  double* hidden = malloc(sizeof(double) * (size_t)rows);
  for (int64_t n = 0; n < rows; ++n) {
    hidden[n] = 0;
    for (int64_t d = 0; d < depth; ++d)
      hidden[n] += element(x, 0, token, d, depth, 1) * element(w1, expert, n, d, depth, 0);
    if (scaled)
      hidden[n] *= (double)((float*)arg(frame, 7)->data)[token] * ((float*)arg(frame, 8)->data)[expert * rows + n];
  }
  for (int64_t i = 0; i < inner; ++i) {
    double gate = hidden[i];
    hidden[i] = gelu ? gate * (1 + erf(gate / sqrt(2))) / 2 : gate / (1 + exp(-gate));
    if (rows > inner) hidden[i] *= hidden[inner + i];
  }
  for (int64_t d = 0; d < depth; ++d) {
    double sum = 0;
    for (int64_t i = 0; i < inner; ++i) sum += hidden[i] * element(w2, expert, d, i, inner, 0);
    out[token * depth + d] += weight * sum * (scaled ? ((float*)arg(frame, 9)->data)[expert * depth + d] : 1);
  }
  free(hidden);
}

XLA_FFI_Error* JaxAiterFmoe(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 10 || frame->rets.size != 1 || frame->attrs.size != 2) return refuse(frame, "counts");
  int64_t m = arg(frame, 0)->dims[0], depth = arg(frame, 0)->dims[1], places = arg(frame, 3)->dims[0];
  const XLA_FFI_Scalar* gelu = scalar(frame, "gelu", XLA_FFI_DataType_PRED);
  const XLA_FFI_Scalar* topk = scalar(frame, "topk", XLA_FFI_DataType_S32);
  if (!gelu || !topk || depth % 256 != 0 || depth < 512 || places % 32 != 0 ||
      !shaped(arg(frame, 3), XLA_FFI_DataType_S32, 1, places, 0) ||
      !shaped(arg(frame, 4), XLA_FFI_DataType_F32, 1, places, 0) ||
      !shaped(arg(frame, 5), XLA_FFI_DataType_S32, 1, places / 32, 0) ||
      !shaped(arg(frame, 6), XLA_FFI_DataType_S32, 1, 2, 0) ||
      !shaped(ret(frame, 0), XLA_FFI_DataType_BF16, 2, m, depth))
    return refuse(frame, "fmoe is called in another way");
  const int32_t *tokens = arg(frame, 3)->data, *experts = arg(frame, 5)->data, *valid = arg(frame, 6)->data;
  int32_t padding = (int32_t)(m | (int64_t)*(const int32_t*)topk->value << 24);
  double* out = calloc((size_t)(m * depth), sizeof(double));
  for (int64_t i = 0; i < valid[0] && error == NULL; ++i) {
    int64_t token = tokens[i] & 0xFFFFFF;
    if (valid[0] % 32 != 0 || valid[0] > places || valid[1] != m || (token >= m && tokens[i] != padding))
      error = refuse(frame, "rows of fmoe are sorted in another way");
    else if (token < m)
      add_expert(frame, token, experts[i / 32], ((float*)arg(frame, 4)->data)[i], *(const uint8_t*)gelu->value, out);
  }
  for (int64_t i = 0; i < m * depth; ++i) ((uint16_t*)ret(frame, 0)->data)[i] = narrowed((float)out[i]);
  free(out);
  return error;
}
