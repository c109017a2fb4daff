/* transposed.c in bfloat16 with sums in float, for processors with AVX512-BF16: pairs of rows of W
   are laid out as vdpbf16ps multiplies them, two vectors of columns at a time. */
#define WIDE 1
#define BF16 1
#include "bfloat16.h"
#include "threads.h"

#ifdef HAS_BF16
#define TILE_ROWS 6
#define MAX_DEPTH 128
#define COLUMNS NUMBER_LINE

struct heads {
    bfloat16 *out;
    const bfloat16 *x, *w;
    long rows, heads, width, depth;
};

/* r rows of x [.., depth] times columns of W as pairs, two vectors for every two rows. */
INLINE void tile(int r, bfloat16 *out, const bfloat16 *x, const pairs *w, long stride_out, long stride_x,
                 long depth) {
    floats totals[TILE_ROWS][2];
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < 2; j++) totals[i][j] = splat(0);
    for (long k = 0; k < depth; k += 2) {
        UNROLL for (int i = 0; i < r; i++) {
            pairs pair = splat_pair(x + i * stride_x + k);
            totals[i][0] = add_products(totals[i][0], pair, w[k]);
            totals[i][1] = add_products(totals[i][1], pair, w[k + 1]);
        }
    }
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < 2; j++)
        narrow(out + i * stride_out + j * LANES, totals[i][j]);
}

static void outputs_of_head(const void *arguments, long head) {
    const struct heads *a = arguments;
    const bfloat16 *w = a->w + head * a->width * a->depth;
    pairs copy[MAX_DEPTH]; /* two for every two rows of W */
    long stride_out = a->heads * a->width, stride_x = a->heads * a->depth;
    for (long at = 0; at < a->width; at += COLUMNS) {
        for (long k = 0; k < a->depth; k += 2) {
            const bfloat16 *line = w + k * a->width + at;
            interleaved(load_pairs(line), load_pairs(line + a->width), copy + k);
            if (at + COLUMNS < a->width) {
                prefetch(line + COLUMNS);
                prefetch(line + a->width + COLUMNS);
            }
        }
        for (long row = 0, tiles = (a->rows + TILE_ROWS - 1) / TILE_ROWS; tiles; tiles--) {
            long r = (a->rows - row + tiles - 1) / tiles; /* tiles of about the same size */
            bfloat16 *y = a->out + head * a->width + row * stride_out + at;
            const bfloat16 *x = a->x + head * a->depth + row * stride_x;
            switch (r) {
            case 6: tile(6, y, x, copy, stride_out, stride_x, a->depth); break;
            case 5: tile(5, y, x, copy, stride_out, stride_x, a->depth); break;
            case 4: tile(4, y, x, copy, stride_out, stride_x, a->depth); break;
            case 3: tile(3, y, x, copy, stride_out, stride_x, a->depth); break;
            case 2: tile(2, y, x, copy, stride_out, stride_x, a->depth); break;
            default: tile(1, y, x, copy, stride_out, stride_x, a->depth);
            }
            row += r;
        }
    }
}

/* Every head's own product: out [rows, heads, width], x [rows, heads, depth], w [heads, depth,
   width]. depth is even and at most 128, width a multiple of 32. */
void multiply_heads_transposed_bf16(bfloat16 *out, const bfloat16 *x, const bfloat16 *w, long rows,
                                    long heads, long width, long depth, int half, int threads) {
    (void)half; /* for float alone */
    struct heads arguments = {out, x, w, rows, heads, width, depth};
    run_parallel(outputs_of_head, &arguments, heads, threads);
}
#endif

END_OF_TARGET
