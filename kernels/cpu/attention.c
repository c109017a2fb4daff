/* softmax(Q K^T * scale) V: queries against the keys and values of their head, or the queries of
   all heads against one latent that is both.

   Keys and values are read once: scores, probabilities and weighted sum of a block of positions are
   computed while the block is in the CPU's cache; a larger score scales down the earlier sums
   (online softmax, arXiv 1805.02867). Compiled seven times: with WIDE, for sixteen floats at a time,
   with BF16, for bfloat16 with scores and sums in float, with HALF, for floats that read keys and
   values in float16, also with WIDE: with many windows, it is memory that takes time; and with
   INTEGERS, also with WIDE, for floats that read a latent of whole numbers of 16 bits, which the
   processor multiplies twice as fast: each position has a factor, so that the row's norm is NORM.
   Queries are rounded in the same way, so no sum of their products is above 2^31 (Cauchy-Schwarz);
   nor is one of a block's values, as its weights are rounded so that they add up to MOST. */
#include "bfloat16.h"
#include "threads.h"

#include <math.h>

#ifndef HALF
#define HALF 0
#endif
#if INTEGERS
#define ATTEND NAME(attend_pages)
#define NORM 32767   /* of rows */
#define MOST 60000.0f
typedef int16_t stored, operand; /* of keys and values; of queries */
typedef ints sums;
#if WIDE
typedef __m512i operands;
INLINE operands load_operands(const operand *p) { return _mm512_loadu_si512(p); }
INLINE operands splat_operands(int pair) { return _mm512_set1_epi32(pair); }
INLINE sums add_operands(sums total, operands x, operands y) {
    return (sums)_mm512_dpwssd_epi32((__m512i)total, x, y);
}
INLINE operands first_of_two(operands x, operands y) { return _mm512_unpacklo_epi16(x, y); }
INLINE operands last_of_two(operands x, operands y) { return _mm512_unpackhi_epi16(x, y); }
INLINE void in_order(const sums totals[2], sums ordered[2]) {
    __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    ordered[0] = (sums)_mm512_permutex2var_epi32((__m512i)totals[0], first, (__m512i)totals[1]);
    ordered[1] = (sums)_mm512_permutex2var_epi32((__m512i)totals[0], last, (__m512i)totals[1]);
}
INLINE void store_rounded(operand *p, floats v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32((__m512)v)));
}
#else
typedef __m256i operands;
INLINE operands load_operands(const operand *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE operands splat_operands(int pair) { return _mm256_set1_epi32(pair); }
INLINE sums add_operands(sums total, operands x, operands y) {
    return (sums)_mm256_add_epi32((__m256i)total, _mm256_madd_epi16(x, y)); /* of NaN: wraps */
}
INLINE operands first_of_two(operands x, operands y) { return _mm256_unpacklo_epi16(x, y); }
INLINE operands last_of_two(operands x, operands y) { return _mm256_unpackhi_epi16(x, y); }
INLINE void in_order(const sums totals[2], sums ordered[2]) {
    ordered[0] = (sums)_mm256_permute2x128_si256((__m256i)totals[0], (__m256i)totals[1], 0x20);
    ordered[1] = (sums)_mm256_permute2x128_si256((__m256i)totals[0], (__m256i)totals[1], 0x31);
}
INLINE void store_rounded(operand *p, floats v) {
    store_shorts(p, (ints)_mm256_cvtps_epi32((__m256)v));
}
#endif
#define load_stored load_operands
INLINE floats to_floats(sums v) { return __builtin_convertvector(v, floats); }
#else
#if HALF
#define ATTEND NAME(attend_pages_half)
typedef uint16_t stored;
#define load_stored widened_half
#else
#define ATTEND NAME(attend_pages)
typedef number stored;
#define load_stored load_numbers
#endif
typedef number operand;
typedef numbers operands;
typedef floats sums;
#define load_operands load_numbers
#define add_operands add_products
INLINE floats to_floats(sums v) { return v; }
#endif
#define OPERANDS ((long)(sizeof(operands) / sizeof(operand)))
#define OPERAND_LINE (64 / (long)sizeof(operand))
#define STORED_LINE (64 / (long)sizeof(stored)) /* numbers that memory gives at a time */
#define BLOCK 64  /* positions that are read at a time */
#define QUERIES 6 /* in a tile */

/* Scores of q queries with n positions, q * n <= 12, or 24 with WIDE: rows of d floats. */
INLINE void score(int q, int n, int ahead, const operand *queries, const stored *z, long d,
                  float scale, float *scores) {
    sums totals[QUERIES * 4];
    floats wide[QUERIES * 4];
    float summed[QUERIES * 4];
    UNROLL for (int i = 0; i < QUERIES * 4; i++) totals[i] = (sums){0};
    for (long begin = 0; begin < d; begin += OPERAND_LINE) {
        if (ahead && (!HALF || begin % STORED_LINE == 0))
            UNROLL for (int j = 0; j < n; j++) prefetch(z + (j + ahead) * d + begin);
        UNROLL for (long k = begin; k < begin + OPERAND_LINE; k += OPERANDS) {
            operands keys[8];
            UNROLL for (int j = 0; j < n; j++) keys[j] = load_stored(z + j * d + k);
            UNROLL for (int i = 0; i < q; i++) {
                operands query = load_operands(queries + i * d + k);
                UNROLL for (int j = 0; j < n; j++)
                    totals[i * n + j] = add_operands(totals[i * n + j], query, keys[j]);
            }
        }
    }
    UNROLL for (int i = 0; i < QUERIES * 4; i++) wide[i] = to_floats(totals[i]);
    UNROLL for (int i = 0; i < q * n; i += 8) sums_of(wide + i, summed + i);
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)
        scores[i * BLOCK + j] = summed[i * n + j] * scale;
}

#if INTEGERS
/* Adds the values of `count` positions, weighted: two vectors of columns of q queries. */
INLINE void add_weighted_columns(int q, const operand *weights, const float *steps, const stored *z,
                                 long d, long count, float *out) {
    sums totals[QUERIES][2];
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < 2; j++) totals[i][j] = (sums){0};
    for (long t = 0; t < count; t += 2) { /* a weight past the last position is zero */
        operands first = load_operands(z + t * d);
        operands second = t + 1 < count ? load_operands(z + (t + 1) * d) : first;
        operands values[2] = {first_of_two(first, second), last_of_two(first, second)};
        UNROLL for (int i = 0; i < q; i++) {
            int pair;
            memcpy(&pair, weights + i * BLOCK + t, sizeof pair);
            UNROLL for (int j = 0; j < 2; j++)
                totals[i][j] = add_operands(totals[i][j], splat_operands(pair), values[j]);
        }
    }
    UNROLL for (int i = 0; i < q; i++) {
        sums ordered[2];
        in_order(totals[i], ordered);
        UNROLL for (int j = 0; j < 2; j++) {
            float *p = out + i * d + j * LANES;
            store(p, load(p) + to_floats(ordered[j]) * steps[i]);
        }
    }
}

/* weights [q, BLOCK], with zeros past `count`: times the positions' factors. */
INLINE void add_weighted(int q, const float *weights, const float *factors, const stored *z, long d,
                         long count, float *out) {
    operand rounded[QUERIES * BLOCK];
    float steps[QUERIES];
    for (int i = 0; i < q; i++) {
        floats sum = splat(0), most = sum, products[BLOCK / LANES];
        for (long t = 0; t < BLOCK; t += LANES) {
            floats w = load(weights + i * BLOCK + t) * load(factors + t);
            products[t / LANES] = w, sum += w, most = larger(most, w);
        }
        steps[i] = fmaxf(fmaxf(sum_of(sum) / MOST, largest(most) / NORM), 1e-30f) + 0 * sum_of(sum);
        for (long t = 0; t < BLOCK; t += LANES)
            store_rounded(rounded + i * BLOCK + t, products[t / LANES] * (1 / steps[i]));
    }
    for (long k = 0; k < d; k += OPERANDS)
        add_weighted_columns(q, rounded, steps, z + k, d, count, out + k);
}
#elif BF16
/* Adds the values of `count` positions, weighted: two vectors of columns of q queries. */
INLINE void add_weighted_columns(int q, const bfloat16 *weights, const bfloat16 *z, long d,
                                 long count, float *out) {
    floats totals[QUERIES][2];
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < 2; j++)
        totals[i][j] = load(out + i * d + j * LANES);
    for (long t = 0; t < count; t += 2) { /* a weight past the last position is zero */
        pairs values[2], first = load_pairs(z + t * d);
        interleaved(first, t + 1 < count ? load_pairs(z + (t + 1) * d) : first, values);
        UNROLL for (int i = 0; i < q; i++) {
            pairs pair = splat_pair(weights + i * BLOCK + t);
            UNROLL for (int j = 0; j < 2; j++)
                totals[i][j] = add_products(totals[i][j], pair, values[j]);
        }
    }
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < 2; j++)
        store(out + i * d + j * LANES, totals[i][j]);
}

INLINE void add_weighted(int q, const float *weights, const bfloat16 *z, long d, long count,
                         float *out) {
    bfloat16 rounded[QUERIES * BLOCK];
    for (int i = 0; i < q; i++) {
        for (long t = 0; t < count; t += LANES) {
            floats w = load(weights + i * BLOCK + t);
            narrow(rounded + i * BLOCK + t, w);
        }
        if (count % 2) rounded[i * BLOCK + count] = 0;
    }
    for (long k = 0; k < d; k += NUMBERS)
        add_weighted_columns(q, rounded, z + k, d, count, out + k);
}
#else
/* Adds the values of `count` positions, weighted: n vectors of columns of q queries. */
INLINE void add_weighted_columns(int q, int n, const float *weights, const stored *z, long d,
                                 long count, float *out) {
    floats totals[QUERIES][3];
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)
        totals[i][j] = load(out + i * d + j * LANES);
    for (long t = 0; t < count; t++) {
        floats values[3];
        UNROLL for (int j = 0; j < n; j++) values[j] = load_stored(z + t * d + j * LANES);
        UNROLL for (int i = 0; i < q; i++) {
            float weight = weights[i * BLOCK + t];
            UNROLL for (int j = 0; j < n; j++) totals[i][j] += weight * values[j];
        }
    }
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)
        store(out + i * d + j * LANES, totals[i][j]);
}

INLINE void add_weighted(int q, const float *weights, const stored *z, long d, long count,
                         float *out) {
    long k = 0;
    if (!WIDE && q > 1 && q <= 4) /* there are registers for three; the last four are two pairs */
        for (; k + 3 * LANES <= d && k + 4 * LANES != d; k += 3 * LANES)
            add_weighted_columns(q, 3, weights, z + k, d, count, out + k);
    for (; k + 2 * LANES <= d; k += 2 * LANES)
        add_weighted_columns(q, 2, weights, z + k, d, count, out + k);
    if (WIDE && k < d) add_weighted_columns(q, 1, weights, z + k, d, count, out + k);
}
#endif

/* `count` positions for q queries, in runs of `run` adjacent positions; out [q, d], maxima and
   total [q] are those of the earlier positions. */
INLINE void attend_block(int q, int n, const operand *queries, const float *steps,
                         const stored *const *keys, const stored *const *values,
                         const float *factors, long run, const float *bias, long d, long count,
                         float scale, float *out, float *maxima, float *total) {
    float scores[QUERIES * BLOCK + LANES]; /* a vector may begin before the end */
    long t, ahead = run < BLOCK ? 0 : BLOCK;
    for (long begin = 0; begin < count; begin += run) {
        const stored *z = keys[begin / run];
        long remaining = count - begin < run ? count - begin : run;
        for (t = 0; t + n <= remaining; t += n)
            score(q, n, ahead, queries, z + t * d, d, scale, scores + begin + t);
        for (; t < remaining; t++)
            score(q, 1, ahead, queries, z + t * d, d, scale, scores + begin + t);
    }
    for (int i = 0; i < q; i++) {
        float *s = scores + i * BLOCK, peak = maxima[i];
#if INTEGERS
        for (t = 0; t < BLOCK; t += LANES)
            store(s + t, load(s + t) * (load(factors + t) * steps[i]));
#endif
        for (t = 0; t < count; t++) {
            if (bias) s[t] += bias[t];
            if (s[t] > peak) peak = s[t];
        }
        for (t = count; t < BLOCK; t++) s[t] = -INFINITY;
        if (peak == -INFINITY) { /* all hidden */
            memset(s, 0, BLOCK * sizeof *s);
            continue;
        }
        floats sum = splat(0);
        for (t = 0; t < BLOCK; t += LANES) {
            floats p = exponential(load(s + t) - peak);
            store(s + t, p);
            sum += p;
        }
        float before = expf(maxima[i] - peak);
        total[i] = total[i] * before + sum_of(sum);
        maxima[i] = peak;
        if (before != 1)
            for (long k = 0; k < d; k += LANES)
                store(out + i * d + k, load(out + i * d + k) * before);
    }
#if INTEGERS
    add_weighted(q, scores, factors, values[0], d, count, out);
#else
    (void)steps, (void)factors;
    for (long begin = 0; begin < count; begin += run)
        add_weighted(q, scores + begin, values[begin / run], d,
                     count - begin < run ? count - begin : run, out);
#endif
}

struct work {
    const operand *queries;
    const float *steps, *factors; /* of whole numbers: of each query, and of each position */
    const stored *keys, *values;  /* keys and values of the slot, or of page 0 */
    const float *bias;
    const int64_t *table; /* the window's pages, or null */
    float *out, *maxima, *total;
    long count, d, page, stride; /* positions of a page, and numbers from page to page */
    float scale;
};

/* Where the positions from t on lie, `run` by run. */
static void locate(const struct work *w, long t, long count, long run, const stored **keys,
                   const stored **values) {
    for (long i = 0; i * run < count; i++, t += run) {
        long at = w->table ? w->table[t / w->page] * w->stride + t % w->page * w->d : t * w->d;
        keys[i] = w->keys + at, values[i] = w->values + at;
    }
}

/* Positions from `begin` to `end` of one group for all its queries. */
static void attend(const struct work *w, long begin, long end) {
    long d = w->d;
    memset(w->out, 0, w->count * d * sizeof(float));
    for (long i = 0; i < w->count; i++) w->maxima[i] = -INFINITY, w->total[i] = 0;
    long run = w->table && w->page < BLOCK ? w->page : BLOCK;
    for (long t = begin, count; t < end; t += count) {
        const stored *keys[BLOCK], *values[BLOCK];
        count = w->table && t % run ? run - t % run : BLOCK; /* then runs begin where pages do */
        if (count > end - t) count = end - t;
        locate(w, t, count, run, keys, values);
        const float *bias = w->bias ? w->bias + t : 0;
        float factors[BLOCK] = {0};
        if (INTEGERS) memcpy(factors, w->factors + t, count * sizeof *factors);
        for (long i = 0, tiles = (w->count + QUERIES - 1) / QUERIES; tiles; tiles--) {
            long q = (w->count - i + tiles - 1) / tiles; /* tiles of about the same size */
#define TILE(q, n)                                                                                 \
    attend_block(q, n, w->queries + i * d, w->steps + i, keys, values, factors, run, bias, d,      \
                 count, w->scale, w->out + i * d, w->maxima + i, w->total + i)
            switch (q) {
            case 6: TILE(6, (WIDE ? 4 : 2)); break;
            case 5: TILE(5, (WIDE ? 4 : 2)); break;
            case 4: TILE(4, (WIDE ? 4 : 3)); break;
            case 3: TILE(3, (WIDE ? 8 : 4)); break;
            case 2: TILE(2, (WIDE ? 8 : 4)); break;
            default: TILE(1, 8);
            }
            i += q;
        }
    }
}

/* The parts of a group's positions -> its result [count, d], which may be the first part. */
static void join(number *result, const float *out, float *maxima, float *total, long parts,
                 long count, long d) {
    for (long i = 0; i < count; i++) {
        float peak = -INFINITY, sum = 0;
        for (long s = 0; s < parts; s++)
            if (maxima[s * count + i] > peak) peak = maxima[s * count + i];
        for (long s = 0; s < parts; s++) {
            float *weight = total + s * count + i, share = expf(maxima[s * count + i] - peak);
            if (peak == -INFINITY) share = 0;
            sum += *weight * share;
            *weight = share;
        }
        for (long k = 0; k < d; k += LANES) {
            floats mixed = splat(0);
            for (long s = 0; s < parts; s++)
                mixed += load(out + (s * count + i) * d + k) * total[s * count + i];
            store_number(result + i * d + k, mixed / sum);
        }
    }
}

/* All arguments of a call, as below. */
struct call {
    number *result;
    float *out, *workspace;
    const number *queries;
    const stored *keys, *values;
    const int64_t *slots, *lengths;
    const float *bias;
    const int64_t *table;
    long heads, parts, count, positions, d, slot_stride, head_stride, bias_stride, page,
        table_stride;
    float scale;
    float *rounded; /* of each part, its queries in whole numbers, behind their steps */
};

#if INTEGERS
/* queries [count, d] as whole numbers times their steps [count]. */
static void round_queries(operand *rounded, float *steps, const float *queries, long count, long d) {
    for (long i = 0; i < count; i++, rounded += d, queries += d) {
        floats squares = splat(0);
        for (long k = 0; k < d; k += LANES) squares += load(queries + k) * load(queries + k);
        float norm = sqrtf(sum_of(squares));
        steps[i] = fmaxf(norm / NORM, 1e-30f) + 0 * norm;
        for (long k = 0; k < d; k += LANES)
            store_rounded(rounded + k, load(queries + k) * (1 / steps[i]));
    }
}
#endif

static void attend_part(const void *arguments, long task) {
    const struct call *c = arguments;
    long g = task / c->parts, part = task % c->parts, b = g / c->heads;
    long slot = c->table ? 0 : c->slots ? c->slots[b] : b;
    long length = c->lengths ? c->lengths[b] : c->positions;
    long begin = slot * c->slot_stride + g % c->heads * c->head_stride;
#if INTEGERS
    const stored *values = c->keys;
    const float *factors = (const float *)c->values + slot * c->positions;
    float *steps = c->rounded + task * c->count * (c->d / 2 + 1);
    operand *queries = (operand *)(steps + c->count);
    round_queries(queries, steps, c->queries + g * c->count * c->d, c->count, c->d);
#else
    const stored *values = c->values;
    const float *factors = 0, *steps = 0;
    const number *queries = c->queries + g * c->count * c->d;
#endif
    struct work w = {queries,
                     steps,
                     factors,
                     c->keys + begin,
                     values + begin,
                     c->bias ? c->bias + slot * c->bias_stride : 0,
                     c->table ? c->table + b * c->table_stride : 0,
                     c->out + task * c->count * c->d,
                     c->workspace + g * c->parts * 2 * c->count + part * c->count,
                     c->workspace + (g * c->parts * 2 + c->parts + part) * c->count,
                     c->count,
                     c->d,
                     c->page,
                     c->slot_stride,
                     c->scale};
    if (length > c->positions) length = c->positions;
    attend(&w, length * part / c->parts, length * (part + 1) / c->parts);
}

static void join_parts(const void *arguments, long g) {
    const struct call *c = arguments;
    join(c->result + g * c->count * c->d, c->out + g * c->parts * c->count * c->d,
         c->workspace + g * c->parts * 2 * c->count,
         c->workspace + (g * c->parts * 2 + c->parts) * c->count, c->parts, c->count, c->d);
}

/* A group is one head of a window, or a window with `heads` 1. result [groups, count, d]; out
   [groups, parts, count, d], workspace [groups, parts, 2, count]; result may be queries, or out if
   there is one part. queries [groups, count, d], keys and values [slots, heads, .., d] with `slot_stride`
   numbers from slot to slot and `head_stride` from head to head, slots and lengths [windows] or
   null, bias [slots, positions] with `bias_stride`, or null. With a block table [windows, ..] of
   pages, `table_stride` apart, a slot is a page of `page` positions, which divide BLOCK or are as
   many as are read. d is a multiple of 16, with BF16 of 32.
   With INTEGERS, there is no table, d is a multiple of 32, workspace is of [groups, parts, count,
   d / 2 + 3], keys are values, too, and `values` are the factors [slots, positions] instead. */
void ATTEND(number *result, float *out, float *workspace, const number *queries, const void *keys,
            const void *values, const int64_t *slots, const int64_t *lengths, const float *bias,
            const int64_t *table, long windows, long heads, long parts, long count, long positions,
            long d, long slot_stride, long head_stride, long bias_stride, long page,
            long table_stride, float scale, int threads) {
    struct call call = {result,      out,         workspace,   queries, keys,         values,
                        slots,       lengths,     bias,        table,   heads,        parts,
                        count,       positions,   d,           slot_stride, head_stride, bias_stride,
                        page,        table_stride, scale,
                        workspace + windows * heads * parts * 2 * count};
    run_parallel(attend_part, &call, windows * heads * parts, threads);
    run_parallel(join_parts, &call, windows * heads, threads);
}

END_OF_TARGET
