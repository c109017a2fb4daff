/* x W^T in tiles of some rows and outputs, whose sums stay in registers. W is laid out in the order in
   which they read it. With INTEGERS, x is rounded to whole numbers row by row, and W is int8; else both
   are float. */
#ifndef SLIMWHISPER_TILES_H
#define SLIMWHISPER_TILES_H

#include "vectors.h"

#ifdef __x86_64__
#include <limits.h>
#include <math.h>

#define TILE_ROWS 6 /* of operands */
#define ROWS 96     /* of operands that a thread takes at a time: they stay in the second cache */
#define BLOCK 16    /* outputs whose weights lie side by side */
#if WIDE
#define VECTORS 4 /* of outputs, in a tile */
#define HALVES 1  /* vectors of sums for one of outputs */
#else
#define VECTORS (INTEGERS ? 1 : 2)
#define HALVES (INTEGERS ? 2 : 1)
#endif

#if INTEGERS
typedef int8_t weight;
typedef ints sums; /* GCC keeps an array of __m512i in memory */
#define GROUP 4    /* numbers of the depth that are multiplied together */
#define SUMMED LONG_MAX
#else
typedef float operand, weight;
typedef floats sums;
#define GROUP 1
#define SUMMED 384 /* products that are added one after the other, which rounds */
#endif
#if WIDE
typedef __m512i group; /* GROUP numbers, or weights of them, for each of LANES outputs */
#else
typedef __m256i group; /* or for LANES / HALVES outputs */
#endif
#if INTEGERS && WIDE
typedef uint8_t operand;
#elif INTEGERS
typedef int16_t operand;
#endif

struct product {
    float *out;           /* [rows, width] */
    const weight *w;      /* [width / 16, stride / GROUP, 16, GROUP], of which `depth` are multiplied */
    const int32_t *sums;  /* [width], of w, where it is int8 */
    const float *factors; /* [width], likewise */
    const float *bias;    /* [width] or null */
    const float *addend;  /* [rows, width] or null */
    const operand *x;     /* [rows, planes, depth] */
    const float *steps;   /* [rows, 2]: what whole numbers were divided by, and which is zero */
    long rows, width, depth, stride, planes;
    int gelu;
    long stride_out; /* from row to row of out, and of addend */
};

/* GROUP operands, for every output. */
INLINE group splat_group(const operand *x) {
#if INTEGERS && !WIDE
    int64_t bits;
    memcpy(&bits, x, sizeof bits);
    return _mm256_set1_epi64x(bits);
#else
    int bits;
    memcpy(&bits, x, sizeof bits);
#if WIDE
    return _mm512_set1_epi32(bits);
#else
    return _mm256_set1_epi32(bits);
#endif
#endif
}

/* `group` number j of a tile, from number k of the depth on. w: of the tile's first output. */
INLINE group load_group(const weight *w, long stride, int j, long k) {
#if WIDE
    return _mm512_loadu_si512(w + (j * stride + k) * LANES);
#else
    (void)stride;
    w += k * BLOCK + j * LANES * GROUP / HALVES;
#if INTEGERS
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w));
#else
    return _mm256_loadu_si256((const __m256i *)w);
#endif
#endif
}

INLINE sums add_group(sums total, group x, group w) {
#if INTEGERS && WIDE
    return (sums)_mm512_dpbusd_epi32((group)total, x, w);
#elif INTEGERS
    return total + (sums)_mm256_madd_epi16(x, w); /* two sums for each output */
#else
    return total + (floats)x * (floats)w;
#endif
}

/* The sums of vector j of outputs. */
INLINE sums joined(const sums *totals, int j) {
#if HALVES == 2
    group mixed = _mm256_hadd_epi32((group)totals[2 * j], (group)totals[2 * j + 1]);
    return (sums)_mm256_permute4x64_epi64(mixed, 0xd8);
#else
    return totals[j];
#endif
}

#if INTEGERS
#if WIDE
typedef __mmask16 lanes; /* the first ones of a vector */
INLINE lanes first_lanes(long n) { return n < LANES ? (1 << n) - 1 : 0xffff; }
INLINE floats load_lanes(lanes inside, const void *p) {
    return (floats)_mm512_maskz_loadu_ps(inside, p);
}
INLINE void store_lanes(lanes inside, float *p, floats v) {
    _mm512_mask_storeu_ps(p, inside, (__m512)v);
}
#else
typedef long lanes;
INLINE lanes first_lanes(long n) { return n; }
INLINE floats load_lanes(lanes inside, const void *p) {
    if (inside >= LANES) return load(p);
    float v[LANES] = {0};
    memcpy(v, p, inside * sizeof *v);
    return load(v);
}
INLINE void store_lanes(lanes inside, float *p, floats v) {
    if (inside >= LANES) store(p, v);
    else memcpy(p, &v, inside * sizeof *p);
}
#endif

/* The greatest operand of one plane: a byte or, where operands have 16 bits, what keeps sums of this
   depth below 2^31. */
INLINE int most_of(long depth) {
#if WIDE
    (void)depth;
    return 255;
#else
    long most = INT_MAX / 128 / depth;
    return most < 8191 ? most : 8191;
#endif
}

/* LANES operands, which are not negative. */
INLINE void store_operands(operand *p, ints v) {
#if WIDE
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((group)v));
#else
    store_shorts(p, v);
#endif
}

/* x [depth] as whole numbers from 0 to `most_of(depth)`, or to 65,535 in two rows of bytes, the upper
   first. */
static void round_row(operand *rounded, float *steps, const float *x, long depth, long planes) {
    floats least = splat(0), greatest = least, all = least;
    for (long k = 0; k < depth; k += LANES) {
        floats v = load(x + k);
        least = smaller(least, v);
        greatest = larger(greatest, v);
        all += v * 0.0f; /* NaN, if one is not finite */
    }
    float low = smallest(least), high = largest(greatest);
    int most = planes == 1 ? most_of(depth) : 65535;
    float step = (high - low) / most;
    step = fmaxf(step, 1e-30f) + sum_of(all);
    float zero = floorf(-low / step + 0.5f);
    floats offset = splat(zero + 0.5f), inverse = splat(1 / step);
    steps[0] = step;
    steps[1] = zero;
    for (long k = 0; k < depth; k += LANES) {
        ints v = __builtin_convertvector(load(x + k) * inverse + offset, ints);
        v = at_most(v, most);
        store_operands(rounded + (planes - 1) * depth + k, planes == 1 ? v : v & 255);
        if (planes == 2) store_operands(rounded + k, v >> 8);
    }
}

/* A vector of outputs of a row from the sums of its bytes; upper: if there are two of them. */
INLINE void write(const struct product *p, long row, long at, int planes, sums upper, sums lower) {
    lanes inside = first_lanes(p->width - at);
    float step = p->steps[2 * row];
    int zero = p->steps[2 * row + 1] >= 0 ? (int)p->steps[2 * row + 1] : 0; /* also if it is NaN */
    ints all = (ints)load_lanes(inside, p->sums + at);
    floats y = __builtin_convertvector(lower - all * (planes == 1 ? zero : zero & 255), floats);
    if (planes == 2) y += __builtin_convertvector(upper - all * (zero >> 8), floats) * 256.0f;
    y *= step * load_lanes(inside, p->factors + at);
    if (p->bias) y += load_lanes(inside, p->bias + at);
    long o = row * p->stride_out + at;
    if (p->addend) y += load_lanes(inside, p->addend + o);
    store_lanes(inside, p->out + o, p->gelu ? gelu(y) : y);
}
#else
/* A vector of outputs of a row. Their number is a multiple of BLOCK. */
INLINE void write(const struct product *p, long row, long at, int planes, sums upper, sums y) {
    (void)planes, (void)upper;
    if (p->bias) y += load(p->bias + at);
    long o = row * p->stride_out + at;
    if (p->addend) y += load(p->addend + o);
    store(p->out + o, p->gelu ? gelu(y) : y);
}
#endif

/* n vectors of outputs of r rows of operands, from row `first` of them. Without WIDE, they are in one
   BLOCK. */
INLINE void tile(const struct product *p, int r, int n, int planes, long first, long at) {
    sums totals[TILE_ROWS][VECTORS * HALVES], earlier[TILE_ROWS][VECTORS * HALVES];
    const operand *x = p->x + first * p->depth;
    const weight *w = p->w + at / BLOCK * BLOCK * p->stride + at % BLOCK * GROUP;
    int m = n * HALVES;
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < m; j++)
        totals[i][j] = earlier[i][j] = (sums){0};
    for (long begin = 0, end; begin < p->depth; begin = end) {
        end = p->depth - begin > SUMMED ? begin + SUMMED : p->depth;
        if (begin) UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < m; j++) {
            earlier[i][j] += totals[i][j];
            totals[i][j] = (sums){0};
        }
        for (long k = begin; k < end; k += GROUP) {
            group weights[VECTORS * HALVES];
            UNROLL for (int j = 0; j < m; j++) weights[j] = load_group(w, p->stride, j, k);
            UNROLL for (int i = 0; i < r; i++) {
                group inputs = splat_group(x + i * p->depth + k);
                UNROLL for (int j = 0; j < m; j++)
                    totals[i][j] = add_group(totals[i][j], inputs, weights[j]);
            }
        }
    }
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < m; j++)
        totals[i][j] += earlier[i][j];
    UNROLL for (int i = 0; i < r; i += planes) UNROLL for (int j = 0; j < n; j++)
        write(p, (first + i) / planes, at + j * LANES, planes, joined(totals[i], j),
              joined(totals[i + planes - 1], j));
}

/* n vectors of outputs of the rows of operands from `first` to `end`. */
INLINE void column(const struct product *p, int n, int planes, long first, long end, long at) {
    while (first < end) {
        long tiles = (end - first + TILE_ROWS - 1) / TILE_ROWS;
        long r = (end - first + tiles - 1) / tiles; /* tiles of about the same size */
        if (planes == 2) r += r % 2;
        switch (r) {
        case 6: tile(p, 6, n, planes, first, at); break;
        case 5: tile(p, 5, n, 1, first, at); break;
        case 4: tile(p, 4, n, planes, first, at); break;
        case 3: tile(p, 3, n, 1, first, at); break;
        case 2: tile(p, 2, n, planes, first, at); break;
        default: tile(p, 1, n, 1, first, at);
        }
        first += r;
    }
}

/* The outputs of all rows from vector `begin` to `end`. */
static void multiply_vectors(const struct product *p, long begin, long end) {
    long total = p->rows * p->planes;
    for (long first = 0; first < total; first += ROWS) {
        long last = first + ROWS < total ? first + ROWS : total, at = begin;
#define COLUMN(n)                                                                                  \
    if (INTEGERS && p->planes == 2) column(p, n, 2, first, last, at * LANES);                      \
    else column(p, n, 1, first, last, at * LANES)
        for (; at + VECTORS <= end; at += VECTORS) { COLUMN(VECTORS); }
        for (; at < end; at++) { COLUMN(1); }
    }
}
#endif

#endif
