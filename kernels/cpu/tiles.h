/* x W^T in tiles of some rows and outputs, whose sums stay in registers. W is laid out in the order in
   which they read it. With INTEGERS, x is rounded to whole numbers row by row, and W is int8; else both
   are float. For processors with AVX-512; a file that includes it defines WIDE. */
#ifndef SLIMWHISPER_TILES_H
#define SLIMWHISPER_TILES_H

#include "vectors.h"

#ifdef __x86_64__
#include <limits.h>
#include <math.h>

#define TILE_ROWS 6 /* of operands */
#define VECTORS 4   /* of outputs, in a tile */
#define ROWS 96     /* of operands that a thread takes at a time: they stay in the second cache */

typedef __m512i group; /* sixteen times the operands, or the weights, of 32 bits */
#if INTEGERS
typedef uint8_t operand;
typedef int8_t weight;
typedef ints sums; /* GCC keeps an array of __m512i in memory */
#define SUMMED LONG_MAX
#else
typedef float operand, weight;
typedef floats sums;
#define SUMMED 384 /* products that are added one after the other, which rounds */
#endif
#define GROUP (4 / (long)sizeof(weight)) /* numbers in 32 bits */

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
};

INLINE sums add_group(sums total, group x, group w) {
#if INTEGERS
    return (sums)_mm512_dpbusd_epi32((group)total, x, w);
#else
    return total + (floats)x * (floats)w;
#endif
}

#if INTEGERS
/* x [depth] as whole numbers from 0 to 255, or to 65,535 in two rows of bytes, the upper first. */
static void round_row(uint8_t *bytes, float *steps, const float *x, long depth, long planes) {
    __m512 least = _mm512_setzero_ps(), greatest = least, all = least;
    for (long k = 0; k < depth; k += LANES) {
        __m512 v = (__m512)load(x + k);
        least = _mm512_min_ps(least, v);
        greatest = _mm512_max_ps(greatest, v);
        all = _mm512_fmadd_ps(v, _mm512_setzero_ps(), all); /* NaN, if one is not finite */
    }
    float low = _mm512_reduce_min_ps(least), high = _mm512_reduce_max_ps(greatest);
    float step = (high - low) / (planes == 1 ? 255 : 65535);
    step = fmaxf(step, 1e-30f) + _mm512_reduce_add_ps(all);
    float zero = floorf(-low / step + 0.5f);
    floats offset = splat(zero + 0.5f), inverse = splat(1 / step);
    steps[0] = step;
    steps[1] = zero;
    for (long k = 0; k < depth; k += LANES) {
        group v = _mm512_cvttps_epi32((__m512)(load(x + k) * inverse + offset));
        __m128i lower;
        if (planes == 1) lower = _mm512_cvtusepi32_epi8(v);
        else {
            v = _mm512_min_epu32(v, _mm512_set1_epi32(65535));
            lower = _mm512_cvtepi32_epi8(v);
            __m128i upper = _mm512_cvtepi32_epi8(_mm512_srli_epi32(v, 8));
            _mm_storeu_si128((__m128i *)(bytes + k), upper);
        }
        _mm_storeu_si128((__m128i *)(bytes + (planes - 1) * depth + k), lower);
    }
}

/* A vector of outputs of a row from the sums of its bytes; upper: if there are two of them. */
INLINE void write(const struct product *p, long row, long at, int planes, sums upper, sums lower) {
    __mmask16 inside = p->width - at < LANES ? (1 << (p->width - at)) - 1 : 0xffff;
    float step = p->steps[2 * row];
    int zero = p->steps[2 * row + 1] >= 0 ? (int)p->steps[2 * row + 1] : 0; /* also if it is NaN */
    ints all = (ints)_mm512_maskz_loadu_epi32(inside, p->sums + at);
    floats y = (floats)_mm512_cvtepi32_ps((group)(lower - all * (zero & 255)));
    if (planes == 2)
        y += (floats)_mm512_cvtepi32_ps((group)(upper - all * (zero >> 8))) * 256.0f;
    y *= step * (floats)_mm512_maskz_loadu_ps(inside, p->factors + at);
    if (p->bias) y += (floats)_mm512_maskz_loadu_ps(inside, p->bias + at);
    long o = row * p->width + at;
    if (p->addend) y += (floats)_mm512_maskz_loadu_ps(inside, p->addend + o);
    if (p->gelu) y = gelu(y);
    _mm512_mask_storeu_ps(p->out + o, inside, (__m512)y);
}
#else
/* A vector of outputs of a row. Their number is a multiple of LANES. */
INLINE void write(const struct product *p, long row, long at, int planes, sums upper, sums y) {
    (void)planes, (void)upper;
    if (p->bias) y += load(p->bias + at);
    long o = row * p->width + at;
    if (p->addend) y += load(p->addend + o);
    store(p->out + o, p->gelu ? gelu(y) : y);
}
#endif

/* n vectors of outputs of r rows of operands, from row `first` of them. */
INLINE void tile(const struct product *p, int r, int n, int planes, long first, long at) {
    sums totals[TILE_ROWS][VECTORS], earlier[TILE_ROWS][VECTORS];
    const operand *x = p->x + first * p->depth;
    const weight *w = p->w + at * p->stride;
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < n; j++)
        totals[i][j] = earlier[i][j] = (sums){0};
    for (long begin = 0, end; begin < p->depth; begin = end) {
        end = p->depth - begin > SUMMED ? begin + SUMMED : p->depth;
        if (begin) UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < n; j++) {
            earlier[i][j] += totals[i][j];
            totals[i][j] = (sums){0};
        }
        for (long k = begin; k < end; k += GROUP) {
            group weights[VECTORS];
            UNROLL for (int j = 0; j < n; j++)
                weights[j] = _mm512_loadu_si512(w + (j * p->stride + k) * LANES);
            UNROLL for (int i = 0; i < r; i++) {
                int bits;
                memcpy(&bits, x + i * p->depth + k, sizeof bits);
                group inputs = _mm512_set1_epi32(bits);
                UNROLL for (int j = 0; j < n; j++)
                    totals[i][j] = add_group(totals[i][j], inputs, weights[j]);
            }
        }
    }
    UNROLL for (int i = 0; i < r; i += planes) UNROLL for (int j = 0; j < n; j++)
        write(p, (first + i) / planes, at + j * LANES, planes, totals[i][j] + earlier[i][j],
              totals[i + planes - 1][j] + earlier[i + planes - 1][j]);
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
