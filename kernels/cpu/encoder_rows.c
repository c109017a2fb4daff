/* What an encoder computes between two attentions. That is row by row, so a thread takes some rows
   through all of it: they stay in its core's second cache. Compiled for AVX2 and for AVX-512, for
   float and with INTEGERS for weights in int8. */
#include "norm.h"
#include "threads.h"
#include "tiles.h"

#ifdef __x86_64__

#define PART 1536 /* hidden values of an MLP at a time */

struct linear {
    const weight *w;      /* as in tiles.h */
    const int32_t *sums;  /* [parts, width]: of every PART of its depth; for int8 */
    const float *factors; /* [width], for int8 */
    const float *bias;    /* [width] or null */
};

struct encoder_weights {
    struct linear out, up, down;          /* of the block before */
    struct linear query, key, value;      /* of the block after; query.w is null after the last */
    const float *mlp_weight, *mlp_bias;   /* [d], of the norm before the MLP */
    const float *norm_weight, *norm_bias; /* [d], of the norm after it */
    long d, wide;
};

struct call {
    float *x, *results[3];
    const float *attended;
    const struct encoder_weights *w;
    float *workspace;
    long rows, workspace_size;
    long at_a_time; /* rows that a thread takes */
    long *next;     /* the first row that no thread has taken */
};

/* Some rows, and the workspace of their thread. */
struct chunk {
    long rows, d;
    float *normed;     /* [ROWS, d] */
    float *hidden;     /* [ROWS, PART] */
    float *steps;      /* [ROWS, 2] */
    operand *operands; /* [ROWS, PART], of a product, where they are not floats */
};

static void norm_rows(const struct chunk *c, float *normed, const float *x, const float *weight,
                      const float *bias) {
    for (long i = 0; i < c->rows; i++)
        normalize(normed + i * c->d, x + i * c->d, weight, bias, c->d);
}

/* x [rows, depth], for `multiply`. */
static const operand *prepare(const struct chunk *c, const float *x, long depth) {
#if INTEGERS
    for (long i = 0; i < c->rows; i++)
        round_row(c->operands + i * depth, c->steps + 2 * i, x + i * depth, depth, 1);
    return c->operands;
#else
    (void)c, (void)depth;
    return x;
#endif
}

/* out [rows, width] = x [rows, depth] W^T + bias + addend. stride: of W, of which `depth` numbers are
   multiplied. */
static void multiply(const struct chunk *c, float *out, const operand *x, struct linear l,
                     const float *addend, long width, long depth, long stride, int gelu) {
    struct product p = {out,      l.w,     l.sums, l.factors, l.bias, addend, x,
                        c->steps, c->rows, width,  depth,     stride, 1,      gelu,   width};
    multiply_vectors(&p, 0, width / LANES);
}

/* x [rows, d] += MLP(normed) */
static void add_mlp(const struct chunk *c, float *x, const struct encoder_weights *w) {
    for (long at = 0; at < w->wide; at += PART) {
        long width = w->wide - at < PART ? w->wide - at : PART;
        struct linear up = w->up, down = w->down;
        up.w += at * w->d, up.bias += at;
        down.w += at * BLOCK, down.bias = at ? 0 : down.bias;
#if INTEGERS
        up.sums += at, up.factors += at, down.sums += at / PART * w->d;
#endif
        multiply(c, c->hidden, prepare(c, c->normed, w->d), up, 0, width, w->d, w->d, 1);
        multiply(c, x, prepare(c, c->hidden, width), down, x, w->d, width, w->wide, 0);
    }
}

static void rows_of_thread(const void *arguments, long thread) {
    const struct call *call = arguments;
    const struct encoder_weights *w = call->w;
    long begin, end, d = w->d;
    float *normed = call->workspace + thread * call->workspace_size;
    float *hidden = normed + ROWS * d, *steps = hidden + ROWS * PART;
    struct chunk c = {0, d, normed, hidden, steps, (operand *)(steps + ROWS * 2)};
    while ((begin = __atomic_fetch_add(call->next, call->at_a_time, __ATOMIC_RELAXED)) < call->rows) {
        end = begin + call->at_a_time;
        c.rows = (end < call->rows ? end : call->rows) - begin;
        long at = begin * d;
        float *x = call->x + at;
        if (call->attended) {
            multiply(&c, x, prepare(&c, call->attended + at, d), w->out, x, d, d, d, 0);
            norm_rows(&c, normed, x, w->mlp_weight, w->mlp_bias);
            add_mlp(&c, x, w);
        }
        if (!w->query.w) {
            norm_rows(&c, call->results[0] + at, x, w->norm_weight, w->norm_bias);
            continue;
        }
        norm_rows(&c, normed, x, w->norm_weight, w->norm_bias);
        const operand *operands = prepare(&c, normed, d);
        multiply(&c, call->results[0] + at, operands, w->query, 0, d, d, d, 0);
        multiply(&c, call->results[1] + at, operands, w->key, 0, d, d, d, 0);
        multiply(&c, call->results[2] + at, operands, w->value, 0, d, d, d, 0);
    }
}

/* x [rows, d] += attended W_out^T, then += MLP(LN(x)), unless `attended` [rows, d] is null; query, key
   and value [rows, d] are the projections of LN(x) or, after the last block, query is LN(x). d and
   wide are multiples of 16, and d is at most PART. workspace: for each thread `workspace_size`
   floats, ROWS * (d + PART + 2 + PART / 2) or more. */
void NAME(encoder_rows)(float *x, float *query, float *key, float *value, const float *attended,
                        const struct encoder_weights *w, float *workspace, long workspace_size,
                        long rows, int threads) {
    long next = 0, share = (rows + threads - 1) / threads; /* in whole tiles, for each thread one */
    share = (share + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    struct call call = {x,         {query, key, value}, attended,       w,
                        workspace, rows,                workspace_size, share < ROWS ? share : ROWS,
                        &next};
    run_parallel(rows_of_thread, &call, threads, threads);
}
#if INTEGERS
#include "integers.h" /* which has the same tiles */
#endif
#endif

END_OF_TARGET
