/* softmax(Q K^T * scale) V for as many queries as positions, as in an encoder, in bfloat16 with
   sums in float: for processors with AVX512-BF16.

   The keys and values of a head are first laid out in the order in which the products read them:
   vdpbf16ps multiplies pairs. Then a thread takes some queries at a time, and goes through the
   positions block by block, with a running maximum and sum (online softmax, arXiv 1805.02867). */
#define WIDE 1
#define BF16 1
#include "bfloat16.h"
#include "threads.h"

#ifdef HAS_BF16
#include <math.h>

#define BLOCK 128   /* positions whose keys and values stay in the first cache */
#define QUERIES 6   /* in a tile: their sums with four vectors stay in registers */
#define CHUNK 48    /* queries that a thread takes at a time */
#define VECTORS 4   /* of a tile: positions of scores, or columns of results */
#define STEP (VECTORS * LANES)
#define MAX_WIDTH 128 /* of a head */

struct call {
    void *out;                   /* [windows, positions, heads, d], like `queries` */
    bfloat16 *packed;            /* [windows, heads, 2, padded, d] */
    const void *queries, *keys, *values;
    long windows, heads, positions, d;
    long padded;                 /* positions up to a multiple of STEP */
    long window_stride, token_stride; /* numbers from window to window, and from token to token */
    float scale;
    int narrowed;                /* the numbers are bfloat16, else float */
};

/* A vector of numbers, as floats. */
INLINE floats floats_at(const void *p, long at, int narrowed) {
    return narrowed ? widen((const bfloat16 *)p + at) : load((const float *)p + at);
}

/* Keys: 16 positions side by side, pairs of columns: [padded / 16, d / 2, 16, 2]. Values: columns
   side by side, pairs of positions: [padded / 2, d, 2]. Zeros past the last position. */
static void pack_head(const void *arguments, long task) {
    const struct call *c = arguments;
    long begin = task / c->heads * c->window_stride + task % c->heads * c->d;
    bfloat16 *keys = c->packed + task * 2 * c->padded * c->d, *values = keys + c->padded * c->d;
    for (long t = 0; t < c->padded; t += 2) {
        bfloat16 *key = keys + t / LANES * LANES * c->d + t % LANES * 2;
        for (long k = 0; k < c->d; k += LANES) {
            bfloat16 rows[2][LANES];
            for (int i = 0; i < 2; i++) {
                long at = begin + (t + i) * c->token_stride + k;
                int inside = t + i < c->positions;
                narrow(rows[i], inside ? floats_at(c->keys, at, c->narrowed) : splat(0));
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < LANES; j += 2)
                    memcpy(key + (k + j) * LANES + 2 * i, rows[i] + j, 2 * sizeof(bfloat16));
            for (int i = 0; i < 2; i++) {
                long at = begin + (t + i) * c->token_stride + k;
                int inside = t + i < c->positions;
                narrow(rows[i], inside ? floats_at(c->values, at, c->narrowed) : splat(0));
            }
            for (int j = 0; j < LANES; j++) {
                values[t * c->d + (k + j) * 2] = rows[0][j];
                values[t * c->d + (k + j) * 2 + 1] = rows[1][j];
            }
        }
    }
}

/* q rows of x [.., 2 * pairs] times n vectors of w [pairs, stride_w], of pairs, added to totals. */
INLINE void multiply_pairs(int q, int n, const bfloat16 *x, long stride_x, const bfloat16 *w,
                           long stride_w, long next, long depth, floats totals[QUERIES][VECTORS]) {
    for (long k = 0; k < depth; k++) {
        pairs columns[VECTORS];
        UNROLL for (int j = 0; j < n; j++) columns[j] = load_pairs(w + k * stride_w + j * next);
        UNROLL for (int i = 0; i < q; i++) {
            pairs pair = splat_pair(x + i * stride_x + 2 * k);
            UNROLL for (int j = 0; j < n; j++)
                totals[i][j] = add_products(totals[i][j], pair, columns[j]);
        }
    }
}

/* A block of `count` positions for q queries [q, d]: out [q, d], maxima and sums [q] are those of
   the earlier positions. */
INLINE void attend_block(int q, const bfloat16 *queries, const bfloat16 *keys,
                         const bfloat16 *values, long d, long count, float *out, float *maxima,
                         float *sums) {
    float scores[QUERIES][BLOCK];
    bfloat16 weights[QUERIES][BLOCK];
    long padded = (count + STEP - 1) / STEP * STEP;
    for (long t = 0; t < padded; t += STEP) {
        floats totals[QUERIES][VECTORS];
        UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < VECTORS; j++)
            totals[i][j] = splat(0);
        multiply_pairs(q, VECTORS, queries, d, keys + t * d, 2 * LANES, LANES * d, d / 2, totals);
        UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < VECTORS; j++)
            store(scores[i] + t + j * LANES, totals[i][j]);
    }
    for (int i = 0; i < q; i++) {
        float *s = scores[i];
        for (long t = count; t < padded; t++) s[t] = -INFINITY;
        floats peaks = splat(maxima[i]);
        for (long t = 0; t < padded; t += LANES) peaks = (floats)_mm512_max_ps((__m512)peaks, (__m512)load(s + t));
        float peak = _mm512_reduce_max_ps((__m512)peaks), before = expf(maxima[i] - peak);
        floats sum = splat(0);
        for (long t = 0; t < padded; t += LANES) {
            floats p = exponential(load(s + t) - peak);
            narrow(weights[i] + t, p);
            sum += p;
        }
        sums[i] = sums[i] * before + sum_of(sum);
        maxima[i] = peak;
        if (before != 1)
            for (long k = 0; k < d; k += LANES)
                store(out + i * d + k, load(out + i * d + k) * before);
    }
    for (long k = 0; k < d; k += STEP) {
        floats totals[QUERIES][VECTORS];
#define COLUMNS(n)                                                                                 \
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)                          \
        totals[i][j] = load(out + i * d + k + j * LANES);                                          \
    multiply_pairs(q, n, weights[0], BLOCK, values + 2 * k, 2 * d, 2 * LANES, (count + 1) / 2,     \
                   totals);                                                                        \
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)                          \
        store(out + i * d + k + j * LANES, totals[i][j])
        if (d - k >= STEP) {
            COLUMNS(VECTORS);
        } else
            for (; k < d; k += LANES) { COLUMNS(1); }
    }
}

/* Some queries of one head of a window, for all positions. */
static void attend(const void *arguments, long task) {
    const struct call *c = arguments;
    long chunks = (c->positions + CHUNK - 1) / CHUNK, head = task / chunks, d = c->d;
    long first = task % chunks * CHUNK;
    long count = c->positions - first < CHUNK ? c->positions - first : CHUNK;
    const bfloat16 *keys = c->packed + head * 2 * c->padded * d, *values = keys + c->padded * d;
    long begin = head / c->heads * c->window_stride + head % c->heads * d;
    bfloat16 queries[CHUNK * MAX_WIDTH];
    float out[CHUNK * MAX_WIDTH], maxima[CHUNK], sums[CHUNK];
    for (long i = 0; i < count; i++) {
        maxima[i] = -INFINITY, sums[i] = 0;
        for (long k = 0; k < d; k += LANES) {
            long at = begin + (first + i) * c->token_stride + k;
            narrow(queries + i * d + k, floats_at(c->queries, at, c->narrowed) * c->scale);
            store(out + i * d + k, splat(0));
        }
    }
    for (long t = 0; t < c->positions; t += BLOCK) {
        long block = c->positions - t < BLOCK ? c->positions - t : BLOCK;
        for (long i = 0, tiles = (count + QUERIES - 1) / QUERIES; tiles; tiles--) {
            long q = (count - i + tiles - 1) / tiles; /* tiles of about the same size */
#define TILE(q)                                                                                    \
    attend_block(q, queries + i * d, keys + t * d, values + t * d, d, block, out + i * d,          \
                 maxima + i, sums + i)
            switch (q) {
            case 6: TILE(6); break;
            case 5: TILE(5); break;
            case 4: TILE(4); break;
            case 3: TILE(3); break;
            case 2: TILE(2); break;
            default: TILE(1);
            }
            i += q;
        }
    }
    long width = c->heads * d, row = head / c->heads * c->positions + first;
    for (long i = 0; i < count; i++)
        for (long k = 0; k < d; k += LANES) {
            long at = (row + i) * width + head % c->heads * d + k;
            floats mixed = load(out + i * d + k) / sums[i];
            if (c->narrowed) narrow((bfloat16 *)c->out + at, mixed);
            else store((float *)c->out + at, mixed);
        }
}

/* out [windows, positions, heads, d]; queries, keys and values likewise, with `window_stride`
   numbers from window to window and `token_stride` from position to position. All are bfloat16 if
   `narrowed`, else float. packed: 2 * windows * heads * d * (positions up to a multiple of 64)
   bfloat16 of workspace. d is a multiple of 16, at most 128. */
void encoder_attention(void *out, void *packed, const void *queries, const void *keys,
                       const void *values, long windows, long heads, long positions, long d,
                       long window_stride, long token_stride, float scale, int narrowed,
                       int threads) {
    long padded = (positions + STEP - 1) / STEP * STEP, chunks = (positions + CHUNK - 1) / CHUNK;
    struct call call = {out,    packed,        queries,      keys,  values, windows, heads, positions, d,
                        padded, window_stride, token_stride, scale, narrowed};
    run_parallel(pack_head, &call, windows * heads, threads);
    run_parallel(attend, &call, windows * heads * chunks, threads);
}

#endif

END_OF_TARGET
