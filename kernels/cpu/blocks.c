/* Whole blocks of a decoder layer: between single products, Python would take as long as a small
   model's step. Compiled three times: with WIDE, for sixteen floats at a time, and with BF16, for
   bfloat16 with sums in float. */
#include "norm.h"
#include "threads.h"

#define FEW 8         /* rows that one thread norms sooner than several start */

void NAME(multiply_rows)(number *, float *, const number *, const void *, const float *,
                         const number *, const number *, long, long, long, int, int, int);
void NAME(multiply_head_rows)(number *, float *, const number *, const void *, long, long, long,
                              long, int, int);
typedef void attend(number *, float *, float *, const number *, const void *, const void *,
                    const int64_t *, const int64_t *, const float *, const int64_t *, long, long,
                    long, long, long, long, long, long, long, long, long, float, int);
attend NAME(attend_pages);
#if BF16
#define multiply_heads_transposed multiply_heads_transposed_bf16
#define ATTEND_HALF attend_pages_bf16 /* never asked for */
#else
#define ATTEND_HALF NAME(attend_pages_half)
attend ATTEND_HALF;
#endif
void multiply_heads_transposed(number *, const number *, const void *, long, long, long, long, int,
                               int);

struct norm {
    number *total, *normed;
    const number *x, *addend;
    const float *weight, *bias;
    number *cache;
    const int64_t *ids, *positions;
    long d, id_stride, position_stride;
};

static void norm_row(const void *arguments, long row) {
    const struct norm *n = arguments;
    long d = n->d, at = row * d;
    number *total = n->total + at, *normed = n->normed + at;
    if (n->addend)
        for (long k = 0; k < d; k += LANES)
            store_number(total + k, load_floats(n->x + at + k) + load_floats(n->addend + at + k));
    normalize(normed, total, n->weight, n->bias, d);
    if (n->cache)
        memcpy(n->cache + n->ids[row] * n->id_stride + n->positions[row] * n->position_stride,
               normed, d * sizeof *normed);
}

/* total [rows, d] = x + addend, and its layer norm, normed; total may be addend. With no addend, total
   is x. weight, bias: [d]. cache: where normed row r is stored too, at ids[r] and positions[r], or
   null. d is a multiple of 16. */
void NAME(add_norm)(number *total, number *normed, const number *x, const number *addend,
                    const float *weight, const float *bias, number *cache, const int64_t *ids,
                    const int64_t *positions, long rows, long d, long id_stride,
                    long position_stride, int threads) {
    struct norm norm = {total, normed,    x, addend,    weight,         bias, cache,
                        ids,   positions, d, id_stride, position_stride};
    run_parallel(norm_row, &norm, rows, rows < FEW ? 1 : threads);
}

struct latent_weights {
    const void *query, *key_map, *value_map, *out; /* [d, d], twice [heads, d / heads, d], [d, d] */
    const number *query_bias, *out_bias;           /* [d] */
    long heads, d;
    float scale;
    int half; /* the matrices are in float16 */
};

/* out [rows, d]: latent attention of the normed x [rows, d], with all its projections. numbers [rows,
   1 + heads, d] and sums [windows, parts, queries, d + 2], of queries = heads * rows / windows:
   workspace. half: the latent is in float16. The others as in attend_pages. */
void NAME(latent_block)(number *out, number *numbers, float *sums, const number *x,
                        const struct latent_weights *w, const void *latent, const int64_t *slots,
                        const int64_t *lengths, const float *bias, const int64_t *table, long rows,
                        long windows, long parts, long positions, long slot_stride,
                        long bias_stride, long page, long table_stride, int half, int threads) {
    long d = w->d, heads = w->heads, size = d / heads, queries = heads * rows / windows;
    number *q = numbers, *folded = numbers + rows * d;
    NAME(multiply_rows)(q, sums, x, w->query, 0, w->query_bias, 0, rows, d, d, w->half, 0, threads);
    multiply_heads_transposed(folded, q, w->key_map, rows, heads, d, size, w->half, threads);
    (half ? ATTEND_HALF : NAME(attend_pages))(
        folded, sums, sums + windows * parts * queries * d, folded, latent, latent, slots, lengths,
        bias, table, windows, 1, parts, queries, positions, d, slot_stride, 0, bias_stride, page,
        table_stride, w->scale, threads);
    NAME(multiply_head_rows)(q, sums, folded, w->value_map, rows, heads, size, d, w->half, threads);
    NAME(multiply_rows)(out, sums, q, w->out, 0, w->out_bias, 0, rows, d, d, w->half, 0, threads);
}

struct mlp_weights {
    const void *up, *down;             /* [wide, d], [d, wide] */
    const number *up_bias, *down_bias; /* [wide], [d] */
    long d, wide;
    int half; /* the matrices are in float16 */
};

struct hidden {
    number *values; /* [rows, wide] */
    long wide;
};

static void gelu_row(const void *arguments, long row) {
    const struct hidden *h = arguments;
    number *x = h->values + row * h->wide;
    for (long k = 0; k < h->wide; k += LANES) store_number(x + k, gelu(load_floats(x + k)));
}

/* out [rows, d] = gelu(x W_up^T + b_up) W_down^T + b_down: x [rows, d]; hidden [rows, wide] and
   partial [rows, d]: workspace. */
void NAME(mlp)(number *out, number *hidden, float *partial, const number *x,
               const struct mlp_weights *w, long rows, int threads) {
    struct hidden h = {hidden, w->wide};
    NAME(multiply_rows)(hidden, (float *)hidden, x, w->up, 0, w->up_bias, 0, rows, w->wide, w->d,
                        w->half, 0, threads);
    run_parallel(gelu_row, &h, rows, threads);
    NAME(multiply_rows)(out, partial, hidden, w->down, 0, w->down_bias, 0, rows, w->d, w->wide,
                        w->half, 0, threads);
}

END_OF_TARGET
