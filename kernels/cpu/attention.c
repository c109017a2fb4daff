/* softmax(Q K^T * scale) V: queries against the keys and values of their head, or the queries of all
   heads against one latent that is both.

   What is kept is read once: of some positions, the scores, the probabilities and their weighted sum
   are computed while they lie in the cache; a larger score scales down what was summed before
   (online softmax, arXiv 1805.02867). Compiled twice: with WIDE, for sixteen floats at a time. */
#include "vectors.h"

#include <math.h>

#define TOGETHER 64 /* positions */
#define MOST 6      /* queries in a tile */

/* e^x for x <= 0, at most 2 units in the last place off: 2^n e^r, |r| <= ln 2 / 2. */
INLINE floats exponential(floats x) {
    ints below = x < -87.0f;
    floats y = x * 1.44269504f;
    ints n = __builtin_convertvector(y - 0.5f, ints); /* rounds towards 0: to nearest, as y <= 0 */
    floats whole = __builtin_convertvector(n, floats);
    floats r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    floats e = all(1.9875691500e-4f);
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    ints scaled = (ints)e + (n << 23);
    return (floats)(scaled & ~below);
}

/* Scores of q queries with n positions, q * n <= 12, or 24 with WIDE: rows of d floats. */
INLINE void score(int q, int n, int ahead, const float *queries, const float *z, long d, float scale,
                  float *scores) {
    floats found[MOST * 4];
    float sums[MOST * 4];
    UNROLL for (int i = 0; i < MOST * 4; i++) found[i] = all(0);
    for (long begin = 0; begin < d; begin += LINE) {
        if (ahead) UNROLL for (int j = 0; j < n; j++) soon(z + (j + ahead) * d + begin);
        UNROLL for (long k = begin; k < begin + LINE; k += LANES) {
            floats keys[8];
            UNROLL for (int j = 0; j < n; j++) keys[j] = load(z + j * d + k);
            UNROLL for (int i = 0; i < q; i++) {
                floats asked = load(queries + i * d + k);
                UNROLL for (int j = 0; j < n; j++) found[i * n + j] += asked * keys[j];
            }
        }
    }
    UNROLL for (int i = 0; i < q * n; i += 8) sums_of(found + i, sums + i);
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)
        scores[i * TOGETHER + j] = sums[i * n + j] * scale;
}

/* Adds the values of `count` positions, weighted: n vectors of columns of q queries. */
INLINE void mix_columns(int q, int n, const float *weights, const float *z, long d, long count,
                        float *out) {
    floats found[MOST][2];
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)
        found[i][j] = load(out + i * d + j * LANES);
    for (long t = 0; t < count; t++) {
        floats values[2];
        UNROLL for (int j = 0; j < n; j++) values[j] = load(z + t * d + j * LANES);
        UNROLL for (int i = 0; i < q; i++) {
            float weight = weights[i * TOGETHER + t];
            UNROLL for (int j = 0; j < n; j++) found[i][j] += weight * values[j];
        }
    }
    UNROLL for (int i = 0; i < q; i++) UNROLL for (int j = 0; j < n; j++)
        store(out + i * d + j * LANES, found[i][j]);
}

INLINE void mix(int q, const float *weights, const float *z, long d, long count, float *out) {
    long k = 0;
    for (; k + 2 * LANES <= d; k += 2 * LANES)
        mix_columns(q, 2, weights, z + k, d, count, out + k);
    if (WIDE && k < d) mix_columns(q, 1, weights, z + k, d, count, out + k);
}

/* `count` positions for q queries, in runs of `run` that lie apart; out [q, d], greatest and total [q]
   are of the earlier ones. */
INLINE void some(int q, int n, const float *queries, const float *const *keys,
                 const float *const *values, long run, const float *bias, long d, long count,
                 float scale, float *out, float *greatest, float *total) {
    float scores[MOST * TOGETHER];
    long t, ahead = run < TOGETHER ? 0 : TOGETHER;
    for (long begin = 0; begin < count; begin += run) {
        const float *z = keys[begin / run];
        long left = count - begin < run ? count - begin : run;
        for (t = 0; t + n <= left; t += n)
            score(q, n, ahead, queries, z + t * d, d, scale, scores + begin + t);
        for (; t < left; t++)
            score(q, 1, ahead, queries, z + t * d, d, scale, scores + begin + t);
    }
    for (int i = 0; i < q; i++) {
        float *s = scores + i * TOGETHER, most = greatest[i];
        for (t = 0; t < count; t++) {
            if (bias) s[t] += bias[t];
            if (s[t] > most) most = s[t];
        }
        for (t = count; t < TOGETHER; t++) s[t] = -INFINITY;
        if (most == -INFINITY) { /* all hidden */
            memset(s, 0, TOGETHER * sizeof *s);
            continue;
        }
        floats sum = all(0);
        for (t = 0; t < TOGETHER; t += LANES) {
            floats p = exponential(load(s + t) - most);
            store(s + t, p);
            sum += p;
        }
        float before = expf(greatest[i] - most);
        total[i] = total[i] * before + sum_of(sum);
        greatest[i] = most;
        if (before != 1)
            for (long k = 0; k < d; k += LANES)
                store(out + i * d + k, load(out + i * d + k) * before);
    }
    for (long begin = 0; begin < count; begin += run)
        mix(q, scores + begin, values[begin / run], d, count - begin < run ? count - begin : run,
            out);
}

struct work {
    const float *queries, *keys, *values, *bias; /* keys and values of the slot, or of page 0 */
    const int64_t *table;                        /* the window's pages, or null */
    float *out, *greatest, *total;
    long count, d, page, stride; /* positions of a page, and floats from page to page */
    float scale;
};

/* Where the positions from t on lie, `run` by run. */
static void locate(const struct work *w, long t, long count, long run, const float **keys,
                   const float **values) {
    for (long i = 0; i * run < count; i++, t += run) {
        long at = w->table ? w->table[t / w->page] * w->stride + t % w->page * w->d : t * w->d;
        keys[i] = w->keys + at, values[i] = w->values + at;
    }
}

/* Positions from `begin` to `end` of one group for all its queries. */
static void attend(const struct work *w, long begin, long end) {
    long d = w->d;
    memset(w->out, 0, w->count * d * sizeof(float));
    for (long i = 0; i < w->count; i++) w->greatest[i] = -INFINITY, w->total[i] = 0;
    long run = w->table && w->page < TOGETHER ? w->page : TOGETHER;
    for (long t = begin, count; t < end; t += count) {
        const float *keys[TOGETHER], *values[TOGETHER];
        count = w->table && t % run ? run - t % run : TOGETHER; /* then runs begin where pages do */
        if (count > end - t) count = end - t;
        locate(w, t, count, run, keys, values);
        const float *bias = w->bias ? w->bias + t : 0;
        for (long i = 0, tiles = (w->count + MOST - 1) / MOST; tiles; tiles--) {
            long q = (w->count - i + tiles - 1) / tiles; /* tiles of about the same size */
#define TILE(q, n)                                                                             \
    some(q, n, w->queries + i * d, keys, values, run, bias, d, count, w->scale, w->out + i * d,  \
         w->greatest + i, w->total + i)
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

/* The parts of a group's positions -> its result, in the first part. */
static void join(float *out, float *greatest, float *total, long parts, long count, long d) {
    for (long i = 0; i < count; i++) {
        float most = -INFINITY, sum = 0;
        for (long s = 0; s < parts; s++)
            if (greatest[s * count + i] > most) most = greatest[s * count + i];
        for (long s = 0; s < parts; s++) {
            float *weight = total + s * count + i, share = expf(greatest[s * count + i] - most);
            if (most == -INFINITY) share = 0;
            sum += *weight * share;
            *weight = share;
        }
        for (long k = 0; k < d; k += LANES) {
            floats mixed = all(0);
            for (long s = 0; s < parts; s++)
                mixed += load(out + (s * count + i) * d + k) * total[s * count + i];
            store(out + i * d + k, mixed / sum);
        }
    }
}

/* A group is one head of a window, or a window with `heads` 1. out [groups, parts, count, d], of which
   [:, 0] is the result; room [groups, parts, 2, count]. queries [groups, count, d], keys and values
   [slots, heads, .., d] with `stride` floats from slot to slot and `apart` from head to head, slots and
   lengths [windows] or null, bias [slots, positions] with `bias_stride`, or null. With a table
   [windows, ..] of pages, `table_stride` apart, a slot is a page of `page` positions, which divide
   TOGETHER or are as many as are read. d is a multiple of 16. */
void NAME(paged_attention)(float *out, float *room, const float *queries, const float *keys,
                           const float *values, const int64_t *slots, const int64_t *lengths,
                           const float *bias, const int64_t *table, long windows, long heads,
                           long parts, long count, long positions, long d, long stride, long apart,
                           long bias_stride, long page, long table_stride, float scale,
                           int threads) {
    long groups = windows * heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (long task = 0; task < groups * parts; task++) {
        long g = task / parts, part = task % parts, b = g / heads;
        long slot = table ? 0 : slots ? slots[b] : b, length = lengths ? lengths[b] : positions;
        long begin = slot * stride + g % heads * apart;
        struct work w = {queries + g * count * d,
                         keys + begin,
                         values + begin,
                         bias ? bias + slot * bias_stride : 0,
                         table ? table + b * table_stride : 0,
                         out + task * count * d,
                         room + g * parts * 2 * count + part * count,
                         room + (g * parts * 2 + parts + part) * count,
                         count,
                         d,
                         page,
                         stride,
                         scale};
        if (length > positions) length = positions;
        attend(&w, length * part / parts, length * (part + 1) / parts);
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && groups > 1)
    for (long g = 0; g < groups; g++)
        join(out + g * parts * count * d, room + g * parts * 2 * count,
             room + (g * parts * 2 + parts) * count, parts, count, d);
}
