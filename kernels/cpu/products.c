/* x W^T, with W as it lies in memory: with a few rows of x, only reading W once takes time;
   with more, a tile of W in the first cache serves all of them. Compiled twice: with
   WIDE, for sixteen floats at a time. */
#include "threads.h"
#include "vectors.h"

#define TILE_ROWS 4 /* of x */
#define SUMS 24     /* of a tile, in registers */
#define ROWS 64     /* of x, in the second cache */
#define DEPTH 768   /* of W, in the first */

/* n outputs of r rows. w: floats, or int8. ahead: prefetch the next n rows of w. */
INLINE void dots(int r, int n, int is_int8, int ahead, const float *x, long stride_x, const void *w,
                 long stride_w, long depth, float sums[SUMS]) {
    const float *values = w;
    const int8_t *bytes = w;
    floats totals[SUMS];
    UNROLL for (int i = 0; i < SUMS; i++) totals[i] = splat(0);
    for (long begin = 0; begin < depth; begin += LINE) {
        if (ahead && !is_int8) UNROLL for (int j = 0; j < n; j++)
            prefetch(values + (n + j) * stride_w + begin);
        if (ahead && is_int8 && begin % (4 * LINE) == 0) UNROLL for (int j = 0; j < n; j++)
            prefetch(bytes + (2 * n + j) * stride_w + begin);
        UNROLL for (long k = begin; k < begin + LINE; k += LANES) {
            floats inputs[TILE_ROWS];
            UNROLL for (int i = 0; i < r; i++) inputs[i] = load(x + i * stride_x + k);
            UNROLL for (int j = 0; j < n; j++) {
                floats weights =
                    is_int8 ? widened(bytes + j * stride_w + k) : load(values + j * stride_w + k);
                UNROLL for (int i = 0; i < r; i++) totals[i * n + j] += inputs[i] * weights;
            }
        }
    }
    UNROLL for (int i = 0; i < r * n; i += 8) sums_of(totals + i, sums + i);
}

struct product {
    float *out;           /* [rows, width] */
    const float *x;       /* [rows, depth] */
    const void *w;        /* [width, depth], float or int8 */
    const float *factors; /* [width] of an int8 w, else null */
    const float *bias;    /* [width] or null */
    const float *addend;  /* [rows, width] or null; may be out */
    long rows, width, depth;
    long stride_out, stride_x, stride_w; /* from row to row */
};

struct parts {
    const struct product *product;
    long count;
};

INLINE void tile(const struct product *p, int r, int n, int ahead, long row, long at) {
    float sums[SUMS];
    const float *x = p->x + row * p->stride_x;
    long start = at * p->stride_w;
    if (p->factors)
        dots(r, n, 1, ahead, x, p->stride_x, (const int8_t *)p->w + start, p->stride_w, p->depth,
             sums);
    else
        dots(r, n, 0, ahead, x, p->stride_x, (const float *)p->w + start, p->stride_w, p->depth,
             sums);
    for (int i = 0; i < r; i++)
        for (int j = 0; j < n; j++) {
            long o = (row + i) * p->stride_out + at + j;
            float y = sums[i * n + j];
            if (p->factors) y *= p->factors[at + j];
            if (p->bias) y += p->bias[at + j];
            if (p->addend) y += p->addend[o];
            p->out[o] = y;
        }
}

/* Outputs from `begin` to `end` of up to TILE_ROWS rows: W is read once, at the speed of memory. */
static void small_batch(const struct product *p, long begin, long end) {
    long at = begin;
#define TILES(r, n)                                                                                \
    for (; at + n <= end; at += n) tile(p, r, n, 1, 0, at);                                        \
    for (; at < end; at++) tile(p, r, 1, 1, 0, at);
    switch (p->rows) {
    case 1: TILES(1, 8); break;
    case 2: TILES(2, (WIDE ? 8 : 4)); break;
    case 3: TILES(3, (WIDE ? 8 : 4)); break;
    default: TILES(4, (WIDE ? 6 : 3));
    }
}

/* The same of any number of rows, n outputs at a time for all of them. */
INLINE void column(const struct product *p, int n, long at) {
    for (long row = 0, tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS; tiles; tiles--) {
        long r = (p->rows - row + tiles - 1) / tiles; /* tiles of about the same size */
        int first = row == 0;
        switch (r) {
        case 4: tile(p, 4, n, first, row, at); break;
        case 3: tile(p, 3, n, first, row, at); break;
        case 2: tile(p, 2, n, first, row, at); break;
        default: tile(p, 1, n, first, row, at);
        }
        row += r;
    }
}

static void large_batch(const struct product *p, long begin, long end) {
    long at = begin, n = WIDE ? 6 : 3;
    for (; at + n <= end; at += n) column(p, WIDE ? 6 : 3, at);
    for (; at < end; at++) column(p, 1, at);
}

/* Outputs from `begin` to `end`, block by block of rows and of depth. */
static void outputs(const struct product *p, long begin, long end) {
    if (p->rows <= TILE_ROWS) {
        small_batch(p, begin, end);
        return;
    }
    long parts = (p->depth + DEPTH - 1) / DEPTH;
    long step = (p->depth / LINE + parts - 1) / parts * LINE;
    for (long row = 0; row < p->rows; row += ROWS)
        for (long k = 0; k < p->depth; k += step) {
            struct product part = *p;
            part.rows = p->rows - row < ROWS ? p->rows - row : ROWS;
            part.depth = p->depth - k < step ? p->depth - k : step;
            part.x += row * p->stride_x + k;
            part.w = p->factors ? (const void *)((const int8_t *)p->w + k)
                                : (const void *)((const float *)p->w + k);
            part.out += row * p->stride_out;
            if (k) {
                part.addend = part.out;
                part.bias = 0;
            } else if (p->addend) part.addend += row * p->stride_out;
            large_batch(&part, begin, end);
        }
}

static void outputs_of_thread(const void *arguments, long thread) {
    const struct parts *parts = arguments;
    long width = parts->product->width, count = parts->count;
    outputs(parts->product, width * thread / count, width * (thread + 1) / count);
}

/* out [rows, width] = x [rows, depth] W^T * factors + bias + addend; W [width, depth] is int8 where
   factors [width] is not null; bias [width] and addend, like out, may be null. depth is a multiple
   of 16. */
void NAME(multiply)(float *out, const float *x, const void *w, const float *factors,
                    const float *bias, const float *addend, long rows, long width, long depth,
                    int threads) {
    struct product product = {out,  x,     w,     factors, bias,  addend,
                              rows, width, depth, width,   depth, depth};
    struct parts parts = {&product, threads};
    run_parallel(outputs_of_thread, &parts, threads, threads);
}

/* One head: the pointers are moved to it. */
static void outputs_of_head(const void *arguments, long head) {
    struct product product = *(const struct product *)arguments;
    product.out += head * product.width;
    product.x += head * product.depth;
    product.w = (const float *)product.w + head * product.width * product.depth;
    outputs(&product, 0, product.width);
}

/* Every head's own product: out [rows, heads, width], x [rows, heads, depth], w [heads, width,
   depth]. depth is a multiple of 16. */
void NAME(multiply_heads)(float *out, const float *x, const float *w, long rows, long heads,
                          long width, long depth, int threads) {
    struct product product = {out,           x,    w, 0, 0, 0, rows, width, depth, heads * width,
                              heads * depth, depth};
    run_parallel(outputs_of_head, &product, heads, threads);
}

END_OF_TARGET
