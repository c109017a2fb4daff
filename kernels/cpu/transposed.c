/* x W of every head, with W [depth, width] as it lies in memory: transposed,
   compared with products.c. */
#include "threads.h"
#include "vectors.h"

#define TILE_ROWS 6   /* rows of x in a tile, each of one line of memory */
#define TILE_DEPTH 64 /* rows of W in a tile */

INLINE floats load_weights(int half, const void *w, long at) {
    return half ? widened_half((const uint16_t *)w + at) : load((const float *)w + at);
}

INLINE void prefetch_weights(int half, const void *w, long at) {
    prefetch((const char *)w + at * (half ? 2 : 4));
}

/* A few rows: W is read row by row, at the speed of memory. */
INLINE void small_batch(int half, float *out, const float *x, const void *w, long rows,
                        long stride_out, long stride_x, long width, long depth) {
    for (long r = 0; r < rows; r++) memset(out + r * stride_out, 0, width * sizeof *out);
    for (long k = 0; k < depth; k += 4)
        for (long r = 0; r < rows; r++) {
            const float *inputs = x + r * stride_x + k;
            float *y = out + r * stride_out;
            for (long begin = 0; begin < width; begin += LINE) {
                if (!r) UNROLL for (int i = 0; i < 4; i++)
                    prefetch_weights(half, w, (k + 4 + i) * width + begin);
                UNROLL for (long j = begin; j < begin + LINE; j += LANES) {
                    floats total = load(y + j);
                    UNROLL for (int i = 0; i < 4; i++)
                        total += inputs[i] * load_weights(half, w, (k + i) * width + j);
                    store(y + j, total);
                }
            }
        }
}

/* Adds a line of r rows of x times a tile of W [depth, LINE]. */
INLINE void tile(int r, float *out, const float *x, const float *w, long stride_out, long stride_x,
                 long depth) {
    floats totals[TILE_ROWS][2];
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < 2; j++)
        totals[i][j] = load(out + i * stride_out + j * LANES);
    for (long k = 0; k < depth; k++) {
        floats first = load(w + k * LINE), second = load(w + k * LINE + LANES);
        UNROLL for (int i = 0; i < r; i++) {
            float input = x[i * stride_x + k];
            totals[i][0] += input * first;
            totals[i][1] += input * second;
        }
    }
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < 2; j++)
        store(out + i * stride_out + j * LANES, totals[i][j]);
}

/* More rows: a tile of W is copied, and used for all of them. */
INLINE void large_batch(int half, float *out, const float *x, const void *w, long rows,
                        long stride_out, long stride_x, long width, long depth) {
    float copy[TILE_DEPTH * LINE];
    for (long r = 0; r < rows; r++) memset(out + r * stride_out, 0, width * sizeof *out);
    for (long begin = 0; begin < depth; begin += TILE_DEPTH) {
        long deep = depth - begin < TILE_DEPTH ? depth - begin : TILE_DEPTH;
        for (long at = 0; at < width; at += LINE) {
            for (long k = 0; k < deep; k++) {
                long line = (begin + k) * width + at;
                UNROLL for (int j = 0; j < LINE; j += LANES)
                    store(copy + k * LINE + j, load_weights(half, w, line + j));
                if (at + LINE < width) prefetch_weights(half, w, line + LINE);
            }
            for (long row = 0, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS; tiles; tiles--) {
                long r = (rows - row + tiles - 1) / tiles;
                float *y = out + row * stride_out + at;
                const float *inputs = x + row * stride_x + begin;
                switch (r) {
                case 6: tile(6, y, inputs, copy, stride_out, stride_x, deep); break;
                case 5: tile(5, y, inputs, copy, stride_out, stride_x, deep); break;
                case 4: tile(4, y, inputs, copy, stride_out, stride_x, deep); break;
                case 3: tile(3, y, inputs, copy, stride_out, stride_x, deep); break;
                case 2: tile(2, y, inputs, copy, stride_out, stride_x, deep); break;
                default: tile(1, y, inputs, copy, stride_out, stride_x, deep);
                }
                row += r;
            }
        }
    }
}

struct heads {
    float *out;
    const float *x;
    const void *w;
    long rows, heads, width, depth;
    int half;
};

static void outputs_of_head(const void *arguments, long head) {
    const struct heads *a = arguments;
    float *out = a->out + head * a->width;
    const float *x = a->x + head * a->depth;
    long at = head * a->width * a->depth, stride_out = a->heads * a->width;
    long stride_x = a->heads * a->depth;
    const void *w = (const char *)a->w + at * (a->half ? 2 : 4);
#define PRODUCT(size, half)                                                                        \
    size(half, out, x, w, a->rows, stride_out, stride_x, a->width, a->depth)
    if (a->rows <= 2 && a->half) PRODUCT(small_batch, 1);
    else if (a->rows <= 2) PRODUCT(small_batch, 0);
    else if (a->half) PRODUCT(large_batch, 1);
    else PRODUCT(large_batch, 0);
}

/* Every head's own product: out [rows, heads, width], x [rows, heads, depth], w [heads, depth,
   width], float16 if `half`. depth and width are multiples of 16. */
void multiply_heads_transposed(float *out, const float *x, const void *w, long rows, long heads,
                               long width, long depth, int half, int threads) {
    struct heads arguments = {out, x, w, rows, heads, width, depth, half};
    run_parallel(outputs_of_head, &arguments, heads, threads);
}

END_OF_TARGET
