/* softmax(Q K^T * scale) V for as many queries as positions, as in an encoder.

   The keys and values of a head are first laid out in the order in which the products read them.
   Then a thread takes some queries at a time, and goes through the positions block by block, with
   a running maximum and sum (online softmax, arXiv 1805.02867). Compiled for AVX2 and for AVX-512, and
   with BF16 for bfloat16 with sums in float, whose products take PAIR adjacent numbers of the depth
   at a time. So do those of whole numbers, with SHORTS: a query, a key and a column of values have
   a factor each, and are rounded to 14, 14 and 12 bits, weights to 15. */
#include <limits.h>
#include <math.h>

#include "bfloat16.h"
#include "threads.h"

#ifdef __x86_64__
#define PAIR (NUMBERS / LANES) /* numbers whose products are added in one lane */
#define BLOCK 256   /* positions whose keys and values stay in the second cache */
#define QUERIES 6   /* in a tile: their sums with VECTORS stay in registers */
#define CHUNK 96    /* queries that a thread takes at a time */
#define VECTORS (WIDE ? 4 : 2) /* of a tile: positions of scores, or columns of results */
#define STEP (VECTORS * LANES)
#define MAX_WIDTH 128 /* of a head */
#define HIDDEN -1e9f  /* a score */
#define LOG2_E 1.44269504f
#if SHORTS
#define SUMMED 16 /* pairs of products, whose sum is less than 2^31 */
#define MOST_QUERY 8191.0f
#define MOST_KEY 8191.0f
#define MOST_VALUE 2047.0f
#define MOST_WEIGHT 32767.0f
typedef ints sums_of_products;
#else
#define SUMMED LONG_MAX
#define MOST_WEIGHT 1.0f
typedef floats sums_of_products;
#endif

struct call {
    void *out;                   /* [windows, positions, heads, d], like `queries` */
    number *packed;              /* [windows, heads, 2, padded, d], with SHORTS twice as many */
    const void *queries, *keys, *values;
    long windows, heads, positions, d;
    long padded;                 /* positions up to a multiple of STEP */
    long window_stride, token_stride; /* numbers from window to window, and from token to token */
    float scale;
    int narrowed;                /* queries, keys, values and out are bfloat16, else float */
};

/* Of one head. */
struct packed {
    number *keys, *values;
    float *key_factors, *value_factors; /* [padded] and [d], with SHORTS */
};

static struct packed packed_of(const struct call *c, long head) {
    long size = c->padded * c->d;
    number *keys = c->packed + head * (SHORTS ? 4 : 2) * size, *values = keys + size;
    float *factors = (float *)(values + size);
    return (struct packed){keys, values, factors, factors + c->padded};
}

/* 2^x for x from -2e9 to about 0: scaled 2^r, |r| <= 1/2, by a polynomial with the least relative
   error. At most 4 units in the last place off; where it is rounded, 8e-5. */
INLINE floats power_of_two(floats x) {
#if WIDE
    floats whole = (floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
    floats whole = (floats)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#endif
    floats r = x - whole;
#if BF16 || SHORTS
    floats p = splat(5.517167e-2f);
    p = p * r + 2.426111e-1f;
    p = p * r + 6.932610e-1f;
    p = p * r + 9.999281e-1f;
#else
    floats p = splat(1.327647129e-3f);
    p = p * r + 9.675540961e-3f;
    p = p * r + 5.550713092e-2f;
    p = p * r + 2.402212024e-1f;
    p = p * r + 6.931469440e-1f;
    p = p * r + 1.0f;
#endif
#if WIDE
    return (floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    ints below = x < -126.0f;
    return (floats)(scaled(p, __builtin_convertvector(whole, ints)) & ~below);
#endif
}

/* A vector of queries, keys or values, as floats. */
INLINE floats floats_at(const void *p, long at, int narrowed) {
#if BF16
    if (narrowed) return widen((const bfloat16 *)p + at);
#endif
    (void)narrowed;
    return load((const float *)p + at);
}

#if SHORTS
/* Sizes so far and of v; as bits, of which those of NaN and infinity are the largest. */
INLINE floats largest_of(floats sizes, floats v) {
    __m256i size = _mm256_and_si256((__m256i)v, _mm256_set1_epi32(0x7fffffff));
    return (floats)_mm256_max_epi32((__m256i)sizes, size);
}

/* What makes numbers of these sizes at most `most` when they are divided by it; NaN, if one of them
   is not finite. */
INLINE float factor_of(floats sizes, float most) {
    return fmaxf(largest(sizes), 1e-30f) / most + sum_of(sizes * 0.0f);
}
#endif

/* Keys: LANES positions side by side, pairs of columns: [padded / LANES, d / PAIR, LANES, PAIR].
   Values: columns side by side, pairs of positions: [padded / PAIR, d, PAIR]. Zeros past the last
   position. */
static void pack_head(const void *arguments, long task) {
    const struct call *c = arguments;
    long begin = task / c->heads * c->window_stride + task % c->heads * c->d;
    struct packed packed = packed_of(c, task);
#if SHORTS
    floats most[MAX_WIDTH / LANES] = {{0}};
    for (long t = 0; t < c->padded; t++) {
        floats key = splat(0);
        for (long k = 0, at = begin + t * c->token_stride; t < c->positions && k < c->d; k += LANES) {
            key = largest_of(key, load((const float *)c->keys + at + k));
            most[k / LANES] = largest_of(most[k / LANES], load((const float *)c->values + at + k));
        }
        packed.key_factors[t] = factor_of(key, MOST_KEY);
    }
    for (long k = 0; k < c->d; k++)
        packed.value_factors[k] = factor_of(splat(most[k / LANES][k % LANES]), MOST_VALUE);
#endif
    for (long t = 0; t < c->padded; t += PAIR) {
        number *key = packed.keys + t / LANES * LANES * c->d + t % LANES * PAIR;
        for (long k = 0; k < c->d; k += LANES) {
            number rows[2][PAIR][LANES]; /* keys, and values */
            for (int i = 0; i < PAIR; i++) {
                long at = begin + (t + i) * c->token_stride + k;
                int inside = t + i < c->positions;
                floats key = inside ? floats_at(c->keys, at, c->narrowed) : splat(0);
                floats value = inside ? floats_at(c->values, at, c->narrowed) : splat(0);
#if SHORTS
                key /= packed.key_factors[t + i], value /= load(packed.value_factors + k);
#endif
                store_number(rows[0][i], key);
                store_number(rows[1][i], value);
            }
            for (int i = 0; i < PAIR; i++)
                for (int j = 0; j < LANES; j += PAIR)
                    memcpy(key + (k + j) * LANES + PAIR * i, rows[0][i] + j, PAIR * sizeof *key);
            for (int j = 0; j < LANES; j++)
                for (int i = 0; i < PAIR; i++)
                    packed.values[t * c->d + (k + j) * PAIR + i] = rows[1][i][j];
        }
    }
}

/* q rows of x [.., PAIR * pairs] times n vectors of w [pairs, stride_w] -> totals. */
INLINE void multiply(int q, int n, const number *x, long stride_x, const number *w, long stride_w,
                     long next, long pairs, floats totals[QUERIES][VECTORS]) {
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++) totals[i][j] = splat(0);
    for (long k = 0, end; k < pairs;) {
        sums_of_products sums[QUERIES][VECTORS];
        UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)
            sums[i][j] = (sums_of_products){0};
        for (end = pairs - k > SUMMED ? k + SUMMED : pairs; k < end; k++) {
            numbers columns[VECTORS];
            UNROLL for (int j = 0; j < n; j++) columns[j] = load_numbers(w + k * stride_w + j * next);
            UNROLL for (int i = 0; i < q; i++) {
                numbers pair = splat_numbers(x + i * stride_x + PAIR * k);
                UNROLL for (int j = 0; j < n; j++)
                    sums[i][j] = add_products(sums[i][j], pair, columns[j]);
            }
        }
        UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)
            totals[i][j] += __builtin_convertvector(sums[i][j], floats);
    }
}

/* Scores of which `inside` are of positions. */
INLINE floats hidden(floats scores, long inside) {
    if (inside >= LANES) return scores;
    float kept[LANES];
    store(kept, scores);
    for (long i = inside < 0 ? 0 : inside; i < LANES; i++) kept[i] = HIDDEN;
    return load(kept);
}

/* A block of `count` positions for q queries [q, d]: out [q, d], maxima (in powers of two) and
   sums [q] are those of the earlier positions. */
INLINE void attend_block(int q, const number *queries, const float *query_factors,
                         struct packed p, long d, long count, float *out, float *maxima,
                         float *sums) {
    float scores[QUERIES][BLOCK], before[QUERIES];
    number weights[QUERIES][BLOCK];
    floats totals[QUERIES][VECTORS], peaks[QUERIES];
    UNROLL for (int i = 0; i < q; i++) peaks[i] = splat(HIDDEN);
    long padded = (count + STEP - 1) / STEP * STEP;
    for (long t = 0; t < padded; t += STEP) {
        multiply(q, VECTORS, queries, d, p.keys + t * d, PAIR * LANES, LANES * d, d / PAIR, totals);
        UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < VECTORS; j++) {
            if (SHORTS) totals[i][j] *= query_factors[i] * load(p.key_factors + t + j * LANES);
            if (count - t < STEP) totals[i][j] = hidden(totals[i][j], count - t - j * LANES);
            store(scores[i] + t + j * LANES, totals[i][j]);
            peaks[i] = larger(peaks[i], totals[i][j]);
        }
    }
    for (int i = 0; i < q; i++) {
        float *s = scores[i];
        floats sum = splat(0);
        float peak = fmaxf(maxima[i], largest(peaks[i]) * LOG2_E);
        for (long t = 0; t < padded; t += LANES) {
            floats weight = power_of_two(load(s + t) * LOG2_E - peak);
            store_number(weights[i] + t, weight * MOST_WEIGHT);
            sum += weight;
        }
        before[i] = exp2f(maxima[i] - peak);
        sums[i] = sums[i] * before[i] + sum_of(sum);
        maxima[i] = peak;
    }
    for (long k = 0; k < d; k += STEP) {
#define COLUMNS(n, k)                                                                              \
    multiply(q, n, weights[0], BLOCK, p.values + PAIR * (k), PAIR * d, PAIR * LANES,                 \
             (count + PAIR - 1) / PAIR, totals);                                                   \
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++) {                        \
        float *o = out + i * d + (k) + j * LANES;                                                  \
        store(o, load(o) * before[i] + totals[i][j]);                                              \
    }
        if (d - k >= STEP) {
            COLUMNS(VECTORS, k)
        } else
            for (long at = k; at < d; at += LANES) { COLUMNS(1, at) }
    }
}

/* Some queries of one head of a window, for all positions. */
static void attend(const void *arguments, long task) {
    const struct call *c = arguments;
    long chunks = (c->positions + CHUNK - 1) / CHUNK, head = task / chunks, d = c->d;
    long first = task % chunks * CHUNK;
    long count = c->positions - first < CHUNK ? c->positions - first : CHUNK;
    struct packed packed = packed_of(c, head);
    long begin = head / c->heads * c->window_stride + head % c->heads * d;
    number queries[CHUNK * MAX_WIDTH];
    float out[CHUNK * MAX_WIDTH], maxima[CHUNK], sums[CHUNK], query_factors[CHUNK];
    for (long i = 0; i < count; i++) {
        maxima[i] = HIDDEN, sums[i] = 0;
#if SHORTS
        floats sizes = splat(0);
        const float *row = (const float *)c->queries + begin + (first + i) * c->token_stride;
        for (long k = 0; k < d; k += LANES) sizes = largest_of(sizes, load(row + k) * c->scale);
        query_factors[i] = factor_of(sizes, MOST_QUERY);
#endif
        for (long k = 0; k < d; k += LANES) {
            long at = begin + (first + i) * c->token_stride + k;
            floats query = floats_at(c->queries, at, c->narrowed) * c->scale;
            store_number(queries + i * d + k, SHORTS ? query / query_factors[i] : query);
            store(out + i * d + k, splat(0));
        }
    }
    for (long t = 0; t < c->positions; t += BLOCK) {
        long block = c->positions - t < BLOCK ? c->positions - t : BLOCK;
        struct packed p = {packed.keys + t * d, packed.values + t * d, packed.key_factors + t, 0};
        for (long i = 0, tiles = (count + QUERIES - 1) / QUERIES; tiles; tiles--) {
            long q = (count - i + tiles - 1) / tiles; /* tiles of about the same size */
#define TILE(q)                                                                                    \
    attend_block(q, queries + i * d, query_factors + i, p, d, block, out + i * d, maxima + i, sums + i)
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
            if (SHORTS) mixed *= load(packed.value_factors + k) / MOST_WEIGHT;
            if (c->narrowed) store_number((number *)c->out + at, mixed);
            else store((float *)c->out + at, mixed);
        }
}

/* out [windows, positions, heads, d]; queries, keys and values likewise, with `window_stride`
   numbers from window to window and `token_stride` from position to position. All are bfloat16 if
   `narrowed`, else float. packed: 2 * windows * heads * d * (positions up to a multiple of 64)
   numbers of workspace, with SHORTS twice as many. d is a multiple of 16, at most 128. */
void NAME(encoder_attention)(void *out, number *packed, const void *queries, const void *keys,
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
