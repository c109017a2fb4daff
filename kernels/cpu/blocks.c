/* Whole blocks of a decoder, and a whole step: between single products, Python would take as long as
   a small model's step. Compiled three times: with WIDE, for sixteen floats at a time, and with BF16,
   for bfloat16 with sums in float. */
#include "norm.h"
#include "threads.h"

void NAME(multiply_rows)(number *, float *, const number *, const void *, const float *,
                         const number *, const number *, long, long, long, int, int, int);
void NAME(multiply_head_rows)(number *, float *, const number *, const void *, long, long, long,
                              long, int, int);
typedef void attend(number *, float *, float *, const number *, const void *, const void *,
                    const int64_t *, const int64_t *, const float *, const int64_t *, long, long,
                    long, long, long, long, long, long, long, long, long, float, int);
#if BF16
#define multiply_heads_transposed multiply_heads_transposed_bf16
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

#define FINE_ROWS 8 /* that products of integers round to 16 bits, as in library.py */

typedef void multiply_integers(float *, const float *, const int8_t *, const int32_t *,
                               const float *, const float *, const float *, void *, float *, long,
                               long, long, long, int, int);
typedef void multiply_head_integers(float *, const float *, const int8_t *, const int32_t *,
                                    const float *, void *, float *, long, long, long, long, int);

/* out [rows, width] = x [rows, depth] W^T + bias [width]. run: of a W in int8, which has sums and
   factors, else null; it rounds x to `planes` bytes, and applies GELU if `gelu`. workspace: of floats,
   like out, and with `run` [rows, depth + 2]. */
static void multiply(number *out, float *workspace, const number *x, const void *w,
                     const int32_t *sums, const float *factors, const number *bias,
                     multiply_integers *run, long rows, long width, long depth, int half, int planes,
                     int gelu, int threads) {
    if (run)
        run((float *)out, (const float *)x, w, sums, factors, (const float *)bias, 0, workspace,
            workspace + rows * depth, rows, width, depth, planes, gelu, threads);
    else
        NAME(multiply_rows)(out, workspace, x, w, 0, bias, 0, rows, width, depth, half, 0, threads);
}

struct latent_weights {
    const void *query, *key_map, *value_map, *out; /* [d, d], twice [heads, d / heads, d], [d, d] */
    const number *query_bias, *out_bias;           /* [d] */
    /* of matrices in int8, of which there are four of [d, d] or, of each head, [d, d / heads] and
       [d / heads, d], as in integers.h */
    const int32_t *query_sums, *key_sums, *value_sums, *out_sums;
    const float *query_factors, *key_factors, *value_factors, *out_factors;
    multiply_integers *multiply; /* null: the matrices are not in int8 */
    multiply_head_integers *multiply_heads;
    long heads, d;
    float scale;
    int half; /* the matrices are in float16 */
};

/* What a latent block reads, and by which function; the rest as in attend_pages. */
struct reads {
    attend *attend;
    const float *factors; /* of a latent in whole numbers, else null */
    const int64_t *slots, *lengths, *table;
    const float *bias;
    long windows, parts, positions, page, slot_stride, table_stride, bias_stride;
};

/* out [rows, d]: latent attention of the normed x [rows, d], with all its projections. numbers [rows,
   1 + heads, d] and sums [windows, parts, queries, 3 / 2 d + 3], of queries = heads * rows /
   windows: workspace. */
void NAME(latent_block)(number *out, number *numbers, float *sums, const number *x,
                        const struct latent_weights *w, const void *latent, const struct reads *r,
                        long rows, int threads) {
    long d = w->d, heads = w->heads, size = d / heads, queries = heads * rows / r->windows;
    number *q = numbers, *folded = numbers + rows * d;
    multiply_head_integers *run = w->multiply_heads;
    multiply(q, sums, x, w->query, w->query_sums, w->query_factors, w->query_bias, w->multiply, rows,
             d, d, w->half, 2, 0, threads);
    if (run)
        run((float *)folded, (float *)q, w->key_map, w->key_sums, w->key_factors, sums,
            sums + rows * d, rows, heads, d, size, threads);
    else multiply_heads_transposed(folded, q, w->key_map, rows, heads, d, size, w->half, threads);
    r->attend(folded, sums, sums + r->windows * r->parts * queries * d, folded, latent,
              r->factors ? r->factors : latent, r->slots, r->lengths, r->bias, r->table, r->windows,
              1, r->parts, queries, r->positions, d, r->slot_stride, 0, r->bias_stride, r->page,
              r->table_stride, w->scale, threads);
    if (run)
        run((float *)q, (float *)folded, w->value_map, w->value_sums, w->value_factors, sums,
            sums + rows * heads * d, rows, heads, size, d, threads);
    else
        NAME(multiply_head_rows)(q, sums, folded, w->value_map, rows, heads, size, d, w->half, threads);
    multiply(out, sums, q, w->out, w->out_sums, w->out_factors, w->out_bias, w->multiply, rows, d, d,
             w->half, 2, 0, threads);
}

struct mlp_weights {
    const void *up, *down;                  /* [wide, d], [d, wide], or as in integers.h */
    const number *up_bias, *down_bias;      /* [wide], [d] */
    const int32_t *up_sums, *down_sums;     /* [wide], [d], of matrices in int8 */
    const float *up_factors, *down_factors; /* likewise */
    multiply_integers *multiply;            /* null: the matrices are not in int8 */
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
   workspace [rows, wide + 2]: workspaces. */
void NAME(mlp)(number *out, number *hidden, float *workspace, const number *x,
               const struct mlp_weights *w, long rows, int threads) {
    int planes = rows <= FINE_ROWS ? 2 : 1;
    struct hidden h = {hidden, w->wide};
    multiply(hidden, workspace, x, w->up, w->up_sums, w->up_factors, w->up_bias, w->multiply, rows,
             w->wide, w->d, w->half, planes, 1, threads);
    if (!w->multiply) run_parallel(gelu_row, &h, rows, threads);
    multiply(out, workspace, hidden, w->down, w->down_sums, w->down_factors, w->down_bias, w->multiply,
             rows, w->d, w->wide, w->half, planes, 0, threads);
}

struct decoder_layer {
    const float *norm_weight, *norm_bias, *cross_norm_weight, *cross_norm_bias, *mlp_norm_weight,
        *mlp_norm_bias; /* [d] */
    const struct latent_weights *self, *cross;
    const struct mlp_weights *mlp;
    number *text; /* the latent of the text: [pages, page, d] */
};

/* One step of all layers: x [rows, d], the embeddings -> normed [rows, d], after the last norm, of
   weight and bias [d]. x is overwritten. ids, positions [rows]: where each row's latent is stored.
   latent: of the audio, for all layers. The others as in `latent_block` and `mlp`. */
void NAME(decoder_layers)(number *normed, number *x, number *out, number *numbers, float *sums,
                          number *hidden, float *workspace, const struct decoder_layer *layers,
                          const float *weight, const float *bias, const int64_t *ids,
                          const int64_t *positions, const void *latent, const struct reads *text,
                          const struct reads *audio, long count, long rows, int threads) {
    const number *addend = 0;
    long d = layers->self->d;
#define NORM(name, cache)                                                                          \
    NAME(add_norm)(x, normed, x, addend, name##weight, name##bias, cache, ids, positions, rows, d, \
                   text->slot_stride, d, threads)
    for (const struct decoder_layer *l = layers; l < layers + count; l++) {
        NORM(l->norm_, l->text);
        addend = out;
        NAME(latent_block)(out, numbers, sums, normed, l->self, l->text, text, rows, threads);
        NORM(l->cross_norm_, 0);
        NAME(latent_block)(out, numbers, sums, normed, l->cross, latent, audio, rows, threads);
        NORM(l->mlp_norm_, 0);
        NAME(mlp)(out, hidden, workspace, normed, l->mlp, rows, threads);
    }
    NORM(, 0);
}

END_OF_TARGET
