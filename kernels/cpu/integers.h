/* Products of integers, in tiles of some rows and outputs; see integers.c. */
#ifndef SLIMWHISPER_INTEGERS_H
#define SLIMWHISPER_INTEGERS_H

#define WIDE 1
#define INTEGERS 1
#include "vectors.h"

#ifdef HAS_INTEGERS
#include <math.h>

#define TILE_ROWS 6 /* of bytes */
#define VECTORS 4   /* of outputs, in a tile */
#define ROWS 96     /* of bytes that a thread takes at a time: they stay in the second cache */

typedef __m512i integers;

struct product {
    float *out;           /* [rows, width] */
    const int8_t *w;      /* [width / 16, stride / 4, 16, 4], of which `depth` are multiplied */
    const int32_t *sums;  /* [width], of w */
    const float *factors; /* [width] */
    const float *bias;    /* [width] or null */
    const float *addend;  /* [rows, width] or null */
    const float *x;       /* [rows, depth] */
    uint8_t *bytes;       /* [rows, planes, depth] */
    float *steps;         /* [rows, 2]: what x was divided by, and which number became zero */
    long rows, width, depth, stride, planes;
    int gelu;
};

/* A row of x as whole numbers from 0 to 255, or to 65,535 in two rows of bytes, the upper first. */
static void round_row(const struct product *p, long row) {
    const float *x = p->x + row * p->depth;
    uint8_t *bytes = p->bytes + row * p->planes * p->depth;
    __m512 least = _mm512_setzero_ps(), greatest = least, all = least;
    for (long k = 0; k < p->depth; k += LANES) {
        __m512 v = (__m512)load(x + k);
        least = _mm512_min_ps(least, v);
        greatest = _mm512_max_ps(greatest, v);
        all = _mm512_fmadd_ps(v, _mm512_setzero_ps(), all); /* NaN, if one is not finite */
    }
    float low = _mm512_reduce_min_ps(least), high = _mm512_reduce_max_ps(greatest);
    float step = (high - low) / (p->planes == 1 ? 255 : 65535);
    step = fmaxf(step, 1e-30f) + _mm512_reduce_add_ps(all);
    float zero = floorf(-low / step + 0.5f);
    floats offset = splat(zero + 0.5f), inverse = splat(1 / step);
    p->steps[2 * row] = step;
    p->steps[2 * row + 1] = zero;
    for (long k = 0; k < p->depth; k += LANES) {
        integers v = _mm512_cvttps_epi32((__m512)(load(x + k) * inverse + offset));
        __m128i lower;
        if (p->planes == 1) lower = _mm512_cvtusepi32_epi8(v);
        else {
            v = _mm512_min_epu32(v, _mm512_set1_epi32(65535));
            lower = _mm512_cvtepi32_epi8(v);
            __m128i upper = _mm512_cvtepi32_epi8(_mm512_srli_epi32(v, 8));
            _mm_storeu_si128((__m128i *)(bytes + k), upper);
        }
        _mm_storeu_si128((__m128i *)(bytes + (p->planes - 1) * p->depth + k), lower);
    }
}

/* A vector of outputs of a row from the sums of its bytes; upper: if there are two of them. */
INLINE void write(const struct product *p, long row, long at, int planes, integers upper,
                  integers lower) {
    __mmask16 inside = p->width - at < LANES ? (1 << (p->width - at)) - 1 : 0xffff;
    float step = p->steps[2 * row];
    int zero = p->steps[2 * row + 1] >= 0 ? (int)p->steps[2 * row + 1] : 0; /* also if it is NaN */
    integers sums = _mm512_maskz_loadu_epi32(inside, p->sums + at);
    lower = _mm512_sub_epi32(lower, _mm512_mullo_epi32(sums, _mm512_set1_epi32(zero & 255)));
    floats y = (floats)_mm512_cvtepi32_ps(lower);
    if (planes == 2) {
        upper = _mm512_sub_epi32(upper, _mm512_mullo_epi32(sums, _mm512_set1_epi32(zero >> 8)));
        y += (floats)_mm512_cvtepi32_ps(upper) * 256.0f;
    }
    y *= step * (floats)_mm512_maskz_loadu_ps(inside, p->factors + at);
    if (p->bias) y += (floats)_mm512_maskz_loadu_ps(inside, p->bias + at);
    long o = row * p->width + at;
    if (p->addend) y += (floats)_mm512_maskz_loadu_ps(inside, p->addend + o);
    if (p->gelu) y = gelu(y);
    _mm512_mask_storeu_ps(p->out + o, inside, (__m512)y);
}

/* n vectors of outputs of r rows of bytes, from row `first` of bytes. */
INLINE void tile(const struct product *p, int r, int n, int planes, long first, long at) {
    ints totals[TILE_ROWS][VECTORS]; /* GCC keeps an array of __m512i in memory */
    const uint8_t *x = p->bytes + first * p->depth;
    const int8_t *w = p->w + at * p->stride;
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < n; j++)
        totals[i][j] = (ints)_mm512_setzero_si512();
    for (long k = 0; k < p->depth; k += 4) {
        integers weights[VECTORS];
        UNROLL for (int j = 0; j < n; j++)
            weights[j] = _mm512_loadu_si512(w + (j * p->stride + k) * LANES);
        UNROLL for (int i = 0; i < r; i++) {
            int four;
            memcpy(&four, x + i * p->depth + k, sizeof four);
            integers inputs = _mm512_set1_epi32(four);
            UNROLL for (int j = 0; j < n; j++)
                totals[i][j] =
                    (ints)_mm512_dpbusd_epi32((integers)totals[i][j], inputs, weights[j]);
        }
    }
    UNROLL for (int i = 0; i < r; i += planes) UNROLL for (int j = 0; j < n; j++)
        write(p, (first + i) / planes, at + j * LANES, planes, (integers)totals[i][j],
              (integers)totals[i + planes - 1][j]);
}

/* n vectors of outputs of the rows of bytes from `first` to `end`. */
INLINE void column(const struct product *p, int n, int planes, long first, long end, long at) {
    while (first < end) {
        long tiles = (end - first + TILE_ROWS - 1) / TILE_ROWS;
        long r = (end - first + tiles - 1) / tiles; /* tiles of about the same size */
        if (planes == 2) r += r % 2;
#define TILE(r)                                                                                    \
    if (planes == 2) tile(p, r, n, 2, first, at);                                                  \
    else tile(p, r, n, 1, first, at)
        switch (r) {
        case 6: TILE(6); break;
        case 5: tile(p, 5, n, 1, first, at); break;
        case 4: TILE(4); break;
        case 3: tile(p, 3, n, 1, first, at); break;
        case 2: TILE(2); break;
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
    if (p->planes == 2) column(p, n, 2, first, last, at * LANES);                                  \
    else column(p, n, 1, first, last, at * LANES)
        for (; at + VECTORS <= end; at += VECTORS) { COLUMN(VECTORS); }
        for (; at < end; at++) { COLUMN(1); }
    }
}
#endif

#endif
