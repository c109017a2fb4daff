/* x W^T, with W as it lies in memory: with a few rows of x, only reading W once takes time;
   with more, a tile of W in the first cache serves all of them. Compiled three times: with WIDE,
   for sixteen floats at a time, and with BF16, for bfloat16 with sums in float. */
#include "bfloat16.h"
#include "threads.h"

#define TILE_ROWS (WIDE ? 6 : 3) /* of x */
#define OUTPUTS 4                /* of TILE_ROWS rows: with inputs and weights, the sums fit registers */
#define SUMS 24     /* of a tile, in registers */
#define ROWS 64     /* of x, in the second cache */
#define DEPTH (BF16 ? 1536 : 768) /* of W, in the first */

/* What W holds. Float16 is read by the variants for float alone. */
enum { NUMBERS_OF_X, INT8, FLOAT16 };

INLINE long size_of(int kind) {
    return kind == INT8 ? 1 : kind == FLOAT16 ? 2 : (long)sizeof(number);
}

INLINE numbers load_weights(int kind, const void *w) {
    return kind == INT8      ? (numbers)widened(w)
           : kind == FLOAT16 ? (numbers)widened_half(w)
                             : load_numbers(w);
}

/* A line of memory of each of the n rows that come next; of int8, which is read faster, of those
   after them. */
INLINE void prefetch_rows(int kind, int n, const char *w, long stride_w, long begin) {
    if (begin % (64 / size_of(kind)) == 0) UNROLL for (int j = 0; j < n; j++)
        prefetch(w + ((kind == INT8 ? 2 * n : n) + j) * stride_w + begin * size_of(kind));
}

/* n outputs of r rows. stride_w: in bytes. ahead: prefetch the next n rows of w. */
INLINE void dots(int r, int n, int kind, int ahead, const number *x, long stride_x, const char *w,
                 long stride_w, long depth, float sums[SUMS]) {
    floats totals[SUMS];
    UNROLL for (int i = 0; i < SUMS; i++) totals[i] = splat(0);
    for (long begin = 0; begin < depth; begin += NUMBER_LINE) {
        if (ahead) prefetch_rows(kind, n, w, stride_w, begin);
        UNROLL for (long k = begin; k < begin + NUMBER_LINE; k += NUMBERS) {
            numbers inputs[TILE_ROWS];
            UNROLL for (int i = 0; i < r; i++) inputs[i] = load_numbers(x + i * stride_x + k);
            UNROLL for (int j = 0; j < n; j++) {
                numbers weights = load_weights(kind, w + j * stride_w + k * size_of(kind));
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
    const char *w;        /* [width, depth] */
    const float *factors; /* [width] of an int8 w, else null */
    const number *bias;   /* [width] or null */
    const number *addend; /* [rows, width] or null */
    long rows, width, depth;
    long stride_out, stride_x, stride_w; /* from row to row */
    int kind;                            /* of w */
    int begun, unfinished;               /* there are parts before, and after this one */
};

struct parts {
    const struct product *product;
    long count;
};

/* n outputs of r rows, from `row` and `at` on. w: of the n, of that kind, stride_w bytes apart. */
INLINE void tile(const struct product *p, int r, int n, int kind, int ahead, const char *w,
                 long stride_w, long row, long at) {
    float sums[SUMS];
    dots(r, n, kind, ahead, p->x + row * p->stride_x, p->stride_x, w, stride_w, p->depth, sums);
    for (int i = 0; i < r; i++)
        for (int j = 0; j < n; j++) {
            long o = (row + i) * p->stride_out + at + j;
            float y = sums[i * n + j];
            if (kind == INT8) y *= p->factors[at + j];
            if (p->begun) y += p->partial[o];
            if (p->bias) y += to_float(p->bias[at + j]);
            if (p->addend) y += to_float(p->addend[o]);
            if (p->unfinished) p->partial[o] = y;
            else p->out[o] = to_number(y);
        }
}

/* Outputs from `begin` to `end` of up to TILE_ROWS rows: W is read once, at the speed of memory. */
INLINE void small_batch(const struct product *p, int kind, long begin, long end) {
    long at = begin, stride = p->stride_w * size_of(kind);
#define TILES(r, n)                                                                                \
    for (; at + n <= end; at += n) tile(p, r, n, kind, 1, p->w + at * stride, stride, 0, at);      \
    for (; at < end; at++) tile(p, r, 1, kind, 1, p->w + at * stride, stride, 0, at);
    switch (p->rows) {
    case 1: TILES(1, 8); break;
    case 2: TILES(2, (WIDE ? 8 : 4)); break;
    case 3: TILES(3, (WIDE ? 8 : 4)); break;
#if WIDE
    case 4: TILES(4, 6); break;
    case 5: TILES(5, 4); break;
    case 6: TILES(6, 4); break;
#endif
    }
}

/* The same of any number of rows, n outputs at a time for all of them. */
INLINE void column(const struct product *p, int n, int kind, long at) {
    long stride = p->stride_w * size_of(kind);
    const char *w = p->w + at * stride;
    for (long row = 0, tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS; tiles; tiles--) {
        long r = (p->rows - row + tiles - 1) / tiles; /* tiles of about the same size */
        int first = row == 0;
        switch (r) {
#if WIDE
        case 6: tile(p, 6, n, kind, first, w, stride, row, at); break;
        case 5: tile(p, 5, n, kind, first, w, stride, row, at); break;
        case 4: tile(p, 4, n, kind, first, w, stride, row, at); break;
#endif
        case 3: tile(p, 3, n, kind, first, w, stride, row, at); break;
        case 2: tile(p, 2, n, kind, first, w, stride, row, at); break;
        default: tile(p, 1, n, kind, first, w, stride, row, at);
        }
        row += r;
    }
}

INLINE void large_batch(const struct product *p, int kind, long begin, long end) {
    long at = begin;
    for (; at + OUTPUTS <= end; at += OUTPUTS) column(p, OUTPUTS, kind, at);
    for (; at < end; at++) column(p, 1, kind, at);
}

/* Outputs from `begin` to `end`, block by block of rows and of depth. */
INLINE void outputs_of_kind(const struct product *p, int kind, long begin, long end) {
    if (p->rows <= TILE_ROWS) {
        small_batch(p, kind, begin, end);
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
            part.w += k * size_of(kind);
            part.out += row * p->stride_out;
            part.partial += row * p->stride_out;
            part.addend = k || !p->addend ? 0 : p->addend + row * p->stride_out;
            part.bias = k ? 0 : p->bias;
            part.begun = k > 0;
            part.unfinished = p->unfinished || k + step < p->depth;
            large_batch(&part, kind, begin, end);
        }
}

static void outputs(const struct product *p, long begin, long end) {
    if (p->kind == INT8) outputs_of_kind(p, INT8, begin, end);
    else if (p->kind == FLOAT16 && !BF16) outputs_of_kind(p, FLOAT16, begin, end);
    else outputs_of_kind(p, NUMBERS_OF_X, begin, end);
}

static void outputs_of_part(const void *arguments, long part) {
    const struct parts *parts = arguments;
    long width = parts->product->width, count = parts->count;
    outputs(parts->product, width * part / count, width * (part + 1) / count);
}

/* out [rows, width] = x [rows, depth] W^T * factors + bias + addend; W [width, depth] is int8 where
   factors [width] is not null, float16 if `half`; bias [width] and addend, like out, may be null.
   depth is a multiple of 16, with BF16 of 32. partial: workspace like out, which may be out; it is
   not used where depth is at most DEPTH. unrounded: the result goes there, and out is not used. */
void NAME(multiply_rows)(number *out, float *partial, const number *x, const void *w,
                         const float *factors, const number *bias, const number *addend, long rows,
                         long width, long depth, int half, int unrounded, int threads) {
    int kind = factors ? INT8 : half ? FLOAT16 : NUMBERS_OF_X;
    struct product product = {out,   partial, x,     w,     factors, bias, addend, rows,
                              width, depth,   width, depth, depth,   kind, 0,      unrounded};
    struct parts parts = {&product, parts_for(rows, threads)};
    run_parallel(outputs_of_part, &parts, parts.count, threads);
}

/* One head: the pointers are moved to it. */
static void outputs_of_head(const void *arguments, long head) {
    struct product product = *(const struct product *)arguments;
    product.out += head * product.width;
    product.partial += head * product.width;
    product.x += head * product.depth;
    product.w += head * product.width * product.depth * size_of(product.kind);
    outputs(&product, 0, product.width);
}

/* Every head's own product: out [rows, heads, width], x [rows, heads, depth], w [heads, width,
   depth]. depth, partial and half as above. */
void NAME(multiply_head_rows)(number *out, float *partial, const number *x, const void *w, long rows,
                              long heads, long width, long depth, int half, int threads) {
    int kind = half ? FLOAT16 : NUMBERS_OF_X;
    struct product product = {out,  partial, x,     w,     0,
                              0,    0,       rows,  width, depth,
                              heads * width, heads * depth, depth, kind, 0, 0};
    run_parallel(outputs_of_head, &product, heads, threads);
}

END_OF_TARGET
