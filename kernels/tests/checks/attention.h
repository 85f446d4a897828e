// Attention in plain loops, in bf16, as AITER's handlers are called for it; a part of handlers.c.
#include <stdlib.h>

typedef struct {
  int packed;
  int64_t sequences, queries, keys, heads, key_heads, depth, value_depth;  // packed: of all sequences together
  int32_t left, right;
  float scale;
  const int32_t *cu_q, *cu_k;
  const uint16_t *q, *k, *v, *bias;
  const float* slopes;
} Attention;

// One query of one head, the sequence that it is of, and its place there.
typedef struct {
  int64_t row, head, sequence, place, first_key, keys, diagonal;
} Query;

static int is(XLA_FFI_Buffer* buffer, int dtype, int64_t rank) {
  return (int)buffer->dtype == dtype && buffer->rank == rank;
}

// The buffers q, k, v from `first` on; false where they are not as agreed.
static int attends(XLA_FFI_CallFrame* frame, int first, int cu, Attention* of) {
  XLA_FFI_Buffer *q = arg(frame, first), *k = arg(frame, first + 1), *v = arg(frame, first + 2);
  int64_t rank = q->rank, last = rank - 1;
  const XLA_FFI_Scalar* scale = scalar(frame, "scale", XLA_FFI_DataType_F32);
  if ((rank != 3 && rank != 4) || !scale) return 0;
  for (int i = 0; i < 3; ++i)
    if (!is(arg(frame, first + i), XLA_FFI_DataType_BF16, rank)) return 0;
  of->packed = rank == 3;
  of->sequences = of->packed ? arg(frame, cu)->dims[0] - 1 : q->dims[0];
  of->queries = q->dims[rank - 3], of->keys = k->dims[rank - 3];
  of->heads = q->dims[rank - 2], of->key_heads = k->dims[rank - 2];
  of->depth = q->dims[last], of->value_depth = v->dims[last];
  of->scale = *(const float*)scale->value;
  of->q = q->data, of->k = k->data, of->v = v->data;
  of->cu_q = arg(frame, cu)->data, of->cu_k = arg(frame, cu + 1)->data;
  int64_t bounds = of->packed ? of->sequences + 1 : 0;
  return is(arg(frame, cu), XLA_FFI_DataType_S32, 1) && arg(frame, cu)->dims[0] == bounds &&
         is(arg(frame, cu + 1), XLA_FFI_DataType_S32, 1) && arg(frame, cu + 1)->dims[0] == bounds;
}

// What Composable Kernel's handlers take besides: bias and slopes from `at` on, the window, no dropout.
static int extended(XLA_FFI_CallFrame* frame, int at, Attention* of) {
  XLA_FFI_Buffer *bias = arg(frame, at), *slopes = arg(frame, at + 1), *seed = arg(frame, at + 4);
  const XLA_FFI_Scalar* left = scalar(frame, "window_left", XLA_FFI_DataType_S32);
  const XLA_FFI_Scalar* right = scalar(frame, "window_right", XLA_FFI_DataType_S32);
  if (!left || !right || !is(seed, XLA_FFI_DataType_U32, 1) || seed->dims[0] != 0) return 0;
  of->left = *(const int32_t*)left->value, of->right = *(const int32_t*)right->value;
  of->bias = bias->rank == 2 ? bias->data : NULL;
  of->slopes = slopes->rank == 2 ? slopes->data : NULL;
  return (of->bias ? shaped(bias, XLA_FFI_DataType_BF16, 2, of->queries, of->keys)
                   : shaped(bias, XLA_FFI_DataType_BF16, 1, 0, 0)) &&
         (of->slopes ? shaped(slopes, XLA_FFI_DataType_F32, 2, of->sequences, of->heads)
                     : shaped(slopes, XLA_FFI_DataType_F32, 1, 0, 0));
}

static int64_t lse_at(const Attention* of, const Query* query) {
  return of->packed ? query->head * of->queries + query->row
                    : (query->sequence * of->heads + query->head) * of->queries + query->place;
}

// Whether the query sees a key, and then its score.
static int score(const Attention* of, const Query* query, int64_t key, double* found) {
  if (of->left >= 0 && key < query->diagonal - of->left) return 0;
  if (of->right >= 0 && key > query->diagonal + of->right) return 0;
  int64_t group = of->heads / of->key_heads, row = query->first_key + key;
  double sum = 0;
  for (int64_t d = 0; d < of->depth; ++d)
    sum += (double)widened(of->q[(query->row * of->heads + query->head) * of->depth + d]) *
           widened(of->k[(row * of->key_heads + query->head / group) * of->depth + d]);
  *found = sum * of->scale;
  if (of->bias) *found += widened(of->bias[query->place * of->keys + key]);
  if (of->slopes)
    *found -= (double)of->slopes[query->sequence * of->heads + query->head] * llabs(query->diagonal - key);
  return 1;
}

static double value(const Attention* of, const Query* query, int64_t key, int64_t d) {
  int64_t head = query->head / (of->heads / of->key_heads);
  return widened(of->v[((query->first_key + key) * of->key_heads + head) * of->value_depth + d]);
}

typedef void (*Visit)(const Attention*, const Query*, void*);

static void each_query(const Attention* of, Visit visit, void* with) {
  for (int64_t b = 0; b < of->sequences; ++b) {
    int64_t first = of->packed ? of->cu_q[b] : b * of->queries, first_key = of->packed ? of->cu_k[b] : b * of->keys;
    int64_t rows = of->packed ? of->cu_q[b + 1] - first : of->queries;
    int64_t keys = of->packed ? of->cu_k[b + 1] - first_key : of->keys;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t h = 0; h < of->heads; ++h) {
        Query query = {first + i, h, b, i, first_key, keys, i + keys - rows};
        visit(of, &query, with);
      }
  }
}

typedef struct {
  uint16_t* out;
  float* lse;
} Made;

static void forward_one(const Attention* of, const Query* query, void* with) {
  Made* made = with;
  double top = -INFINITY, total = 0, s;
  for (int64_t j = 0; j < query->keys; ++j)
    if (score(of, query, j, &s) && s > top) top = s;
  for (int64_t j = 0; j < query->keys; ++j)
    if (score(of, query, j, &s)) total += exp(s - top);
  made->lse[lse_at(of, query)] = (float)(total > 0 ? log(total) + top : -INFINITY);
  for (int64_t d = 0; d < of->value_depth; ++d) {
    double sum = 0;
    for (int64_t j = 0; j < query->keys; ++j)
      if (score(of, query, j, &s)) sum += exp(s - top) / total * value(of, query, j, d);
    made->out[(query->row * of->heads + query->head) * of->value_depth + d] = narrowed((float)sum);
  }
}

static XLA_FFI_Error* forward_all(XLA_FFI_CallFrame* frame, const Attention* of) {
  Made made = {ret(frame, 0)->data, ret(frame, 1)->data};
  int64_t rank = of->packed ? 3 : 4, rows = of->queries * (of->packed ? 1 : of->sequences) * of->heads;
  if (!is(ret(frame, 0), XLA_FFI_DataType_BF16, rank) || !is(ret(frame, 1), XLA_FFI_DataType_F32, rank - 1))
    return refuse(frame, "attention gives other results");
  // What nobody writes holds anything.
  memset(made.out, 0xFF, (size_t)(rows * of->value_depth) * sizeof *made.out);
  memset(made.lse, 0xFF, (size_t)rows * sizeof *made.lse);
  each_query(of, forward_one, &made);
  return NULL;
}

// Whether the query sees no key; AITER's assembly kernels are not made for it.
static void unseen_one(const Attention* of, const Query* query, void* with) {
  if (query->keys == 0 || (of->right >= 0 && query->diagonal + of->right < 0)) *(int*)with = 1;
}

XLA_FFI_Error* JaxAiterMhaFwdAsm(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  Attention of = {0};
  const XLA_FFI_Scalar* causal = scalar(frame, "causal", XLA_FFI_DataType_PRED);
  if (frame->args.size != 5 || frame->rets.size != 2 || frame->attrs.size != 2 || !causal || !attends(frame, 0, 3, &of))
    return refuse(frame, "mha_fwd_asm is called in another way");
  of.left = -1, of.right = *(const uint8_t*)causal->value ? 0 : -1;
  int unseen = 0;
  each_query(&of, unseen_one, &unseen);
  if (unseen) return refuse(frame, "mha_fwd_asm is called with a query that sees no key");
  return forward_all(frame, &of);
}

XLA_FFI_Error* JaxAiterMhaFwd(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  Attention of = {0};
  if (frame->args.size != 8 || frame->rets.size != 2 || frame->attrs.size != 6 || !attends(frame, 0, 5, &of) ||
      !extended(frame, 3, &of))
    return refuse(frame, "mha_fwd is called in another way");
  return forward_all(frame, &of);
}

typedef struct {
  const uint16_t *dout, *out;
  const float *lse, *d;  // one of out and d
  float *dq, *dk, *dv;
} Gradients;

static void backward_one(const Attention* of, const Query* query, void* with) {
  Gradients* made = with;
  int64_t at = query->row * of->heads + query->head, group = of->heads / of->key_heads;
  double dot = made->d ? made->d[lse_at(of, query)] : 0, s, lse = made->lse[lse_at(of, query)];
  for (int64_t d = 0; made->out && d < of->value_depth; ++d)
    dot += (double)widened(made->dout[at * of->value_depth + d]) * widened(made->out[at * of->value_depth + d]);
  for (int64_t j = 0; j < query->keys; ++j) {
    if (!score(of, query, j, &s)) continue;
    int64_t key = (query->first_key + j) * of->heads + query->head;
    int64_t shared = (query->first_key + j) * of->key_heads + query->head / group;
    double p = exp(s - lse), dp = 0;
    for (int64_t d = 0; d < of->value_depth; ++d) {
      double cotangent = widened(made->dout[at * of->value_depth + d]);
      dp += cotangent * value(of, query, j, d);
      made->dv[key * of->value_depth + d] += (float)(p * cotangent);
    }
    for (int64_t d = 0; d < of->depth; ++d) {
      double ds = p * (dp - dot) * of->scale;
      made->dq[at * of->depth + d] += (float)(ds * widened(of->k[shared * of->depth + d]));
      made->dk[key * of->depth + d] += (float)(ds * widened(of->q[at * of->depth + d]));
    }
  }
}

static void narrow_all(const float* from, XLA_FFI_Buffer* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) ((uint16_t*)to->data)[i] = narrowed(from[i]);
}

XLA_FFI_Error* JaxAiterMhaBwd(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  Attention of = {0};
  if (frame->args.size != 11 || frame->rets.size != 5 || frame->attrs.size != 6 || !attends(frame, 1, 8, &of) ||
      !extended(frame, 6, &of))
    return refuse(frame, "mha_bwd is called in another way");
  int64_t batch = of.packed ? 1 : of.sequences, rank = of.packed ? 3 : 4;
  for (int i = 0; i < 3; ++i)
    if (!is(ret(frame, i), XLA_FFI_DataType_BF16, rank) || ret(frame, i)->dims[rank - 2] != of.heads)
      return refuse(frame, "mha_bwd gives other gradients");
  if (!is(ret(frame, 3), XLA_FFI_DataType_F32, rank) || !is(ret(frame, 4), XLA_FFI_DataType_F32, rank - 1))
    return refuse(frame, "mha_bwd has no room to work");
  int64_t queries = batch * of.queries * of.heads, keys = batch * of.keys * of.heads;
  float* sums = calloc((size_t)(queries * of.depth + keys * (of.depth + of.value_depth) + 1), sizeof *sums);
  float *dk = sums + queries * of.depth, *dv = dk + keys * of.depth;
  Gradients made = {arg(frame, 0)->data, arg(frame, 4)->data, arg(frame, 5)->data, NULL, sums, dk, dv};
  each_query(&of, backward_one, &made);
  narrow_all(sums, ret(frame, 0), queries * of.depth);
  narrow_all(dk, ret(frame, 1), keys * of.depth);
  narrow_all(dv, ret(frame, 2), keys * of.value_depth);
  free(sums);
  return NULL;
}

// dq is summed in f32, in rows of a head.
XLA_FFI_Error* JaxAiterMhaBwdAsm(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  Attention of = {0};
  const XLA_FFI_Scalar* left = scalar(frame, "window_left", XLA_FFI_DataType_S32);
  const XLA_FFI_Scalar* right = scalar(frame, "window_right", XLA_FFI_DataType_S32);
  if (frame->args.size != 8 || frame->rets.size != 3 || frame->attrs.size != 5 || !left || !right ||
      !attends(frame, 1, 6, &of) || !is(arg(frame, 0), XLA_FFI_DataType_BF16, of.packed ? 3 : 4))
    return refuse(frame, "mha_bwd_asm is called in another way");
  of.left = *(const int32_t*)left->value, of.right = *(const int32_t*)right->value;
  int64_t batch = of.packed ? 1 : of.sequences, rank = of.packed ? 3 : 4;
  for (int i = 0; i < 3; ++i)
    if (!is(ret(frame, i), i ? XLA_FFI_DataType_BF16 : XLA_FFI_DataType_F32, rank) ||
        ret(frame, i)->dims[rank - (i ? 2 : 3)] != of.heads)
      return refuse(frame, "mha_bwd_asm gives other gradients");
  int64_t rows = batch * of.queries * of.heads, keys = batch * of.keys * of.heads;
  const float *lse = arg(frame, 4)->data, *d = arg(frame, 5)->data;
  // The kernels compute exp(score - lse) of masked scores too.
  for (int64_t i = 0; i < rows; ++i)
    if (!isfinite(lse[i]) || !isfinite(d[i])) return refuse(frame, "lse or d is not finite");
  float* sums = calloc((size_t)(rows * of.depth + keys * (of.depth + of.value_depth) + 1), sizeof *sums);
  float *dk = sums + rows * of.depth, *dv = dk + keys * of.depth, *dq = ret(frame, 0)->data;
  Gradients made = {arg(frame, 0)->data, NULL, lse, d, sums, dk, dv};
  each_query(&of, backward_one, &made);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < of.queries; ++i)
      for (int64_t h = 0; h < of.heads; ++h)
        memcpy(dq + ((b * of.heads + h) * of.queries + i) * of.depth,
               sums + ((b * of.queries + i) * of.heads + h) * of.depth, (size_t)of.depth * sizeof *dq);
  narrow_all(dk, ret(frame, 1), keys * of.depth);
  narrow_all(dv, ret(frame, 2), keys * of.value_depth);
  free(sums);
  return NULL;
}
