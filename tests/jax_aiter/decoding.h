// Attention of decoding in plain loops, as AITER's handlers are called for it; a part of handlers.c.

// A number of a buffer in bf16, s8 or an e4m3.
static double number(const XLA_FFI_Buffer* buffer, int64_t place) {
  const uint8_t* bytes = buffer->data;
  switch ((int)buffer->dtype) {
    case XLA_FFI_DataType_BF16: return widened(((const uint16_t*)buffer->data)[place]);
    case XLA_FFI_DataType_S8: return ((const int8_t*)buffer->data)[place];
    case XLA_FFI_DataType_F8E4M3FN: return e4m3(bytes[place], 7, 0);
    case XLA_FFI_DataType_F8E4M3FNUZ: return e4m3(bytes[place], 8, 1);
    default: return NAN;
  }
}

static int sized(const XLA_FFI_Buffer* buffer, int dtype, int64_t rank, const int64_t* dims) {
  if ((int)buffer->dtype != dtype || buffer->rank != rank) return 0;
  for (int64_t i = 0; i < rank; ++i)
    if (buffer->dims[i] != dims[i]) return 0;
  return 1;
}

XLA_FFI_Error* JaxAiterPagedAttention(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 8 || frame->rets.size != 1 || frame->attrs.size != 2) return refuse(frame, "counts");
  XLA_FFI_Buffer *q = arg(frame, 0), *keys = arg(frame, 1), *values = arg(frame, 2), *tables = arg(frame, 3);
  const XLA_FFI_Scalar* scale = scalar(frame, "scale", XLA_FFI_DataType_F32);
  if (!scale || !scalar(frame, "precision", XLA_FFI_DataType_S32) || q->rank != 4 || keys->rank != 5 ||
      tables->rank != 2)
    return refuse(frame, "paged_attention is called in another way");
  int64_t sequences = q->dims[0], queries = q->dims[1], heads = q->dims[2], depth = q->dims[3];
  int64_t pages = keys->dims[0], of_keys = keys->dims[1], page = keys->dims[3], piece = keys->dims[4];
  int64_t width = tables->dims[1], none = 0, quantised = (int)keys->dtype != XLA_FFI_DataType_BF16;
  int64_t starts = queries > 1 ? sequences + 1 : 0;
  if (page != 16 || piece != (quantised ? 16 : 8) || depth != 128 ||
      !sized(q, XLA_FFI_DataType_BF16, 4, q->dims) ||
      !sized(keys, (int)keys->dtype, 5, (int64_t[]){pages, of_keys, depth / piece, page, piece}) ||
      !sized(values, (int)keys->dtype, 5, (int64_t[]){pages, of_keys, page / piece, depth, piece}) ||
      !sized(tables, XLA_FFI_DataType_S32, 2, (int64_t[]){sequences, width}) ||
      !sized(arg(frame, 4), XLA_FFI_DataType_S32, 1, &sequences) ||
      !sized(arg(frame, 7), XLA_FFI_DataType_S32, 1, &starts) || !sized(ret(frame, 0), XLA_FFI_DataType_BF16, 4, q->dims))
    return refuse(frame, "paged_attention is called in another way");
  for (int i = 5; i < 7; ++i)
    if (quantised ? !sized(arg(frame, i), XLA_FFI_DataType_F32, 3, (int64_t[]){pages, of_keys, page})
                  : !sized(arg(frame, i), XLA_FFI_DataType_F32, 1, &none))
      return refuse(frame, "paged_attention has other scales");
  const int32_t *table = tables->data, *lengths = arg(frame, 4)->data, *start = arg(frame, 7)->data;
  const float *key_scale = arg(frame, 5)->data, *value_scale = arg(frame, 6)->data;
  double* scores = malloc(sizeof(double) * (size_t)(width * page + 1));
  for (int64_t row = 0; row < sequences * queries * heads; ++row) {
    int64_t head = row % heads, query = row / heads % queries, s = row / heads / queries, group = head / (heads / of_keys);
    if (queries > 1 && start[s + 1] - start[s] != queries) return refuse(frame, "starts of queries");
    int64_t count = lengths[s] - queries + query + 1;
    double most = -INFINITY, total = 0;
    for (int64_t j = 0; j < count; ++j) {
      int64_t place = table[s * width + j / page] * of_keys + group, token = j % page;
      double sum = 0;
      for (int64_t d = 0; d < depth; ++d)
        sum += number(q, row * depth + d) *
               number(keys, ((place * (depth / piece) + d / piece) * page + token) * piece + d % piece);
      scores[j] = sum * *(const float*)scale->value * (quantised ? key_scale[place * page + token] : 1);
      if (scores[j] > most) most = scores[j];
    }
    for (int64_t j = 0; j < count; ++j) total += scores[j] = exp(scores[j] - most);
    for (int64_t d = 0; d < depth; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < count; ++j) {
        int64_t place = table[s * width + j / page] * of_keys + group, token = j % page;
        double value = number(values, ((place * (page / piece) + token / piece) * depth + d) * piece + token % piece);
        sum += scores[j] / total * value * (quantised ? value_scale[place * page + token] : 1);
      }
      // As on a GPU, results without keys are no numbers.
      ((uint16_t*)ret(frame, 0)->data)[row * depth + d] = count > 0 ? narrowed((float)sum) : 0x7FFF;
    }
  }
  free(scores);
  return NULL;
}

// Parts of the tokens as AITER's kernels may make them: of whole granules, and those that nobody reads are no numbers.
XLA_FFI_Error* JaxAiterMlaDecode(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error;
  if (answered(frame, &error)) return error;
  if (frame->args.size != 9 || frame->rets.size != 3 || frame->attrs.size != 1) return refuse(frame, "counts");
  XLA_FFI_Buffer *q = arg(frame, 0), *cache = arg(frame, 1), *made = ret(frame, 1), *sums = ret(frame, 2);
  const XLA_FFI_Scalar* scale = scalar(frame, "scale", XLA_FFI_DataType_F32);
  if (!scale || q->rank != 4 || sums->rank != 4 || arg(frame, 3)->rank != 1)
    return refuse(frame, "mla_decode is called in another way");
  int64_t sequences = q->dims[0], queries = q->dims[1], heads = q->dims[2], parts = sums->dims[2];
  int64_t bounds = sequences + 1, fp8 = (int)q->dtype != XLA_FFI_DataType_BF16, granule = heads == 16 && queries == 1 ? 64 : 16;
  int64_t whole = parts == 1 && (fp8 || granule == 16), none = 0;
  if ((heads != 16 && heads != 128) || q->dims[3] != 576 || queries > 4 ||
      !sized(cache, (int)q->dtype, 2, (int64_t[]){cache->dims[0], 576}) ||
      !sized(arg(frame, 4), XLA_FFI_DataType_S32, 1, &sequences) ||
      !sized(ret(frame, 0), XLA_FFI_DataType_BF16, 4, (int64_t[]){sequences, queries, heads, 512}) ||
      !sized(sums, XLA_FFI_DataType_F32, 4, (int64_t[]){sequences, queries, parts, heads}) ||
      (whole ? !sized(made, XLA_FFI_DataType_F32, 1, &none)
             : !sized(made, XLA_FFI_DataType_F32, 5, (int64_t[]){sequences, queries, parts, heads, 512})))
    return refuse(frame, "mla_decode is called in another way");
  for (int i = 2; i < 9; ++i)
    if (i == 2 || i == 5 || i == 6 ? !sized(arg(frame, i), XLA_FFI_DataType_S32, 1, &bounds)
                                   : i > 6 && !sized(arg(frame, i), XLA_FFI_DataType_F32, 1, &fp8))
      return refuse(frame, "mla_decode is called in another way");
  const int32_t *start = arg(frame, 2)->data, *token = arg(frame, 3)->data, *last = arg(frame, 4)->data;
  const int32_t *rows = arg(frame, 5)->data, *part_of = arg(frame, 6)->data;
  double of_q = fp8 ? *(const float*)arg(frame, 7)->data : 1, of_cache = fp8 ? *(const float*)arg(frame, 8)->data : 1;
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t length = start[s + 1] - start[s], each = (length + parts - 1) / parts;
    each = (each + granule - 1) / granule * granule;
    if (last[s] != 1 || rows[s] != s * queries || part_of[s + 1] != (s + 1) * parts) return refuse(frame, "sequences");
    for (int64_t one = 0; one < queries * parts * heads; ++one) {
      int64_t head = one % heads, part = one / heads % parts, query = one / heads / parts, end = (part + 1) * each;
      int64_t at = (s * queries + query) * heads + head, to = ((s * queries + query) * parts + part) * heads + head;
      double total = 0, sum[512] = {0};
      if (end > length - queries + query + 1) end = length - queries + query + 1;
      for (int64_t j = part * each; j < end; ++j) {
        int64_t row = token[start[s] + j];
        double score = 0;
        for (int64_t d = 0; d < 576; ++d) score += number(q, at * 576 + d) * number(cache, row * 576 + d);
        score = exp(score * of_q * of_cache * *(const float*)scale->value);
        total += score;
        for (int64_t d = 0; d < 512; ++d) sum[d] += score * number(cache, row * 576 + d) * of_cache;
      }
      int written = part * granule < length;
      ((float*)sums->data)[to] = written ? (float)log(total) : NAN;
      for (int64_t d = 0; d < 512; ++d) {
        double value = !written ? NAN : total > 0 ? sum[d] / total : 0;
        if (whole)
          ((uint16_t*)ret(frame, 0)->data)[at * 512 + d] = narrowed((float)value);
        else
          ((float*)made->data)[to * 512 + d] = (float)value;
      }
    }
  }
  return NULL;
}
