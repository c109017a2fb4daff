/* x W^T, with W as it lies in memory: with a few rows of x, only reading W once takes time;
   with more, a tile of W in the first cache serves all of them. Compiled three times: with WIDE,
   for sixteen floats at a time, and with BF16, for bfloat16 with sums in float. */
#include "bfloat16.h"
#include "threads.h"

#define TILE_ROWS 4 /* of x */
#define SUMS 24     /* of a tile, in registers */
#define ROWS 64     /* of x, in the second cache */
#define DEPTH (BF16 ? 1536 : 768) /* of W, in the first */

/* n outputs of r rows. w: numbers, or int8. ahead: prefetch the next n rows of w. */
INLINE void dots(int r, int n, int is_int8, int ahead, const number *x, long stride_x,
                 const void *w, long stride_w, long depth, float sums[SUMS]) {
    const number *values = w;
    const int8_t *bytes = w;
    floats totals[SUMS];
    UNROLL for (int i = 0; i < SUMS; i++) totals[i] = splat(0);
    for (long begin = 0; begin < depth; begin += NUMBER_LINE) {
        if (ahead && !is_int8) UNROLL for (int j = 0; j < n; j++)
            prefetch(values + (n + j) * stride_w + begin);
        if (ahead && is_int8 && begin % (4 * LINE) == 0) UNROLL for (int j = 0; j < n; j++)
            prefetch(bytes + (2 * n + j) * stride_w + begin);
        UNROLL for (long k = begin; k < begin + NUMBER_LINE; k += NUMBERS) {
            numbers inputs[TILE_ROWS];
            UNROLL for (int i = 0; i < r; i++) inputs[i] = load_numbers(x + i * stride_x + k);
            UNROLL for (int j = 0; j < n; j++) {
                numbers weights = is_int8 ? (numbers)widened(bytes + j * stride_w + k)
                                          : load_numbers(values + j * stride_w + k);
                UNROLL for (int i = 0; i < r; i++)
                    totals[i * n + j] = add_products(totals[i * n + j], inputs[i], weights);
            }
        }
    }
    UNROLL for (int i = 0; i < r * n; i += 8) sums_of(totals + i, sums + i);
}

struct product {
    number *out;          /* [rows, width] */
    float *partial;       /* like out: sums of a part of the depth, and those of earlier parts */
    const number *x;      /* [rows, depth] */
    const void *w;        /* [width, depth], numbers or int8 */
    const float *factors; /* [width] of an int8 w, else null */
    const number *bias;   /* [width] or null */
    const number *addend; /* [rows, width] or null */
    long rows, width, depth;
    long stride_out, stride_x, stride_w; /* from row to row */
    int begun, unfinished;               /* there are parts before, and after this one */
};

struct parts {
    const struct product *product;
    long count;
};

INLINE void tile(const struct product *p, int r, int n, int ahead, long row, long at) {
    float sums[SUMS];
    const number *x = p->x + row * p->stride_x;
    long start = at * p->stride_w;
    if (p->factors)
        dots(r, n, 1, ahead, x, p->stride_x, (const int8_t *)p->w + start, p->stride_w, p->depth,
             sums);
    else
        dots(r, n, 0, ahead, x, p->stride_x, (const number *)p->w + start, p->stride_w,
             p->depth, sums);
    for (int i = 0; i < r; i++)
        for (int j = 0; j < n; j++) {
            long o = (row + i) * p->stride_out + at + j;
            float y = sums[i * n + j];
            if (p->factors) y *= p->factors[at + j];
            if (p->begun) y += p->partial[o];
            if (p->bias) y += to_float(p->bias[at + j]);
            if (p->addend) y += to_float(p->addend[o]);
            if (p->unfinished) p->partial[o] = y;
            else p->out[o] = to_number(y);
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
    long step = (p->depth / NUMBER_LINE + parts - 1) / parts * NUMBER_LINE;
    for (long row = 0; row < p->rows; row += ROWS)
        for (long k = 0; k < p->depth; k += step) {
            struct product part = *p;
            part.rows = p->rows - row < ROWS ? p->rows - row : ROWS;
            part.depth = p->depth - k < step ? p->depth - k : step;
            part.x += row * p->stride_x + k;
            part.w = p->factors ? (const void *)((const int8_t *)p->w + k)
                                : (const void *)((const number *)p->w + k);
            part.out += row * p->stride_out;
            part.partial += row * p->stride_out;
            part.addend = k || !p->addend ? 0 : p->addend + row * p->stride_out;
            part.bias = k ? 0 : p->bias;
            part.begun = k > 0;
            part.unfinished = p->unfinished || k + step < p->depth;
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
   of 16, with BF16 of 32. partial: workspace like out, which may be out; it is not used where depth
   is at most DEPTH. unrounded: the result goes there, and out is not used. */
void NAME(multiply_rows)(number *out, float *partial, const number *x, const void *w,
                    const float *factors, const number *bias, const number *addend, long rows,
                    long width, long depth, int unrounded, int threads) {
    struct product product = {out,   partial, x,     w,     factors, bias, addend,   rows,
                              width, depth,   width, depth, depth,   0,    unrounded};
    struct parts parts = {&product, threads};
    run_parallel(outputs_of_thread, &parts, threads, threads);
}

/* One head: the pointers are moved to it. */
static void outputs_of_head(const void *arguments, long head) {
    struct product product = *(const struct product *)arguments;
    product.out += head * product.width;
    product.partial += head * product.width;
    product.x += head * product.depth;
    product.w = (const number *)product.w + head * product.width * product.depth;
    outputs(&product, 0, product.width);
}

/* Every head's own product: out [rows, heads, width], x [rows, heads, depth], w [heads, width,
   depth]. depth and partial as above. */
void NAME(multiply_head_rows)(number *out, float *partial, const number *x, const number *w, long rows,
                          long heads, long width, long depth, int threads) {
    struct product product = {out,  partial, x,     w,     0,
                              0,    0,       rows,  width, depth,
                              heads * width, heads * depth, depth, 0, 0};
    run_parallel(outputs_of_head, &product, heads, threads);
}

END_OF_TARGET
