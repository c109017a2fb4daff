/* x W of every head, with W [depth, width] as it lies in memory: the other way round than in
   products.c. */
#include "vectors.h"

#define TALL 6  /* rows of x in a tile, each of one line of memory */
#define DEEP 64 /* rows of W in a tile */

/* Few rows: W is read row by row, as fast as memory gives it. */
static void few(float *out, const float *x, const float *w, long rows, long stride_out,
                long stride_x, long width, long depth) {
    for (long r = 0; r < rows; r++) memset(out + r * stride_out, 0, width * sizeof *out);
    for (long k = 0; k < depth; k += 4, w += 4 * width)
        for (long r = 0; r < rows; r++) {
            const float *known = x + r * stride_x + k;
            float *y = out + r * stride_out;
            for (long begin = 0; begin < width; begin += LINE) {
                if (!r) UNROLL for (int i = 0; i < 4; i++) soon(w + (4 + i) * width + begin);
                UNROLL for (long j = begin; j < begin + LINE; j += LANES)
                    store(y + j, load(y + j) + known[0] * load(w + j) + known[1] * load(w + width + j) +
                                     known[2] * load(w + 2 * width + j) +
                                     known[3] * load(w + 3 * width + j));
            }
        }
}

/* Adds a line of r rows of x times a tile of W [depth, LINE]. */
INLINE void tile(int r, float *out, const float *x, const float *w, long stride_out, long stride_x,
                 long depth) {
    floats found[TALL][2];
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < 2; j++)
        found[i][j] = load(out + i * stride_out + j * LANES);
    for (long k = 0; k < depth; k++) {
        floats first = load(w + k * LINE), second = load(w + k * LINE + LANES);
        UNROLL for (int i = 0; i < r; i++) {
            float known = x[i * stride_x + k];
            found[i][0] += known * first;
            found[i][1] += known * second;
        }
    }
    UNROLL for (int i = 0; i < r; i++) UNROLL for (int j = 0; j < 2; j++)
        store(out + i * stride_out + j * LANES, found[i][j]);
}

/* More rows: a tile of W is copied, and used for all of them. */
static void many(float *out, const float *x, const float *w, long rows, long stride_out,
                 long stride_x, long width, long depth) {
    float copy[DEEP * LINE];
    for (long r = 0; r < rows; r++) memset(out + r * stride_out, 0, width * sizeof *out);
    for (long begin = 0; begin < depth; begin += DEEP) {
        long deep = depth - begin < DEEP ? depth - begin : DEEP;
        for (long at = 0; at < width; at += LINE) {
            for (long k = 0; k < deep; k++) {
                const float *line = w + (begin + k) * width + at;
                memcpy(copy + k * LINE, line, LINE * sizeof *copy);
                if (at + LINE < width) soon(line + LINE);
            }
            for (long row = 0, tiles = (rows + TALL - 1) / TALL; tiles; tiles--) {
                long r = (rows - row + tiles - 1) / tiles;
                float *y = out + row * stride_out + at;
                const float *known = x + row * stride_x + begin;
                switch (r) {
                case 6: tile(6, y, known, copy, stride_out, stride_x, deep); break;
                case 5: tile(5, y, known, copy, stride_out, stride_x, deep); break;
                case 4: tile(4, y, known, copy, stride_out, stride_x, deep); break;
                case 3: tile(3, y, known, copy, stride_out, stride_x, deep); break;
                case 2: tile(2, y, known, copy, stride_out, stride_x, deep); break;
                default: tile(1, y, known, copy, stride_out, stride_x, deep);
                }
                row += r;
            }
        }
    }
}

/* Every head's own product: out [rows, heads, width], x [rows, heads, depth], w [heads, depth,
   width]. depth and width are multiples of 16. */
void multiply_heads_turned(float *out, const float *x, const float *w, long rows, long heads,
                           long width, long depth, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long h = 0; h < heads; h++)
        (rows <= 2 ? few : many)(out + h * width, x + h * depth, w + h * width * depth, rows,
                                 heads * width, heads * depth, width, depth);
}
