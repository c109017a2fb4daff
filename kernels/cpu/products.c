/* x W^T of a few rows x. W is read once, as it lies in memory, which is all that takes time: blocked
   layouts, made for many rows, leave a third to a half of the memory's speed unused. */
#include "vectors.h"

/* n outputs of r rows: r * n <= 12 sums, which stay in 16 registers. w: floats, or int8. */
INLINE void dots(int r, int n, int narrow, const float *x, long stride, const void *w,
                 long depth, float sums[4][8]) {
    const float *wide = w;
    const int8_t *bytes = w;
    floats found[4][8];
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 8; j++) found[i][j] = all(0);
    for (long begin = 0; begin < depth; begin += LINE) {
        UNROLL for (int j = 0; j < n; j++)
            if (!narrow) soon(wide + (n + j) * depth + begin);
            else if (begin % (4 * LINE) == 0) soon(bytes + (2 * n + j) * depth + begin);
        UNROLL for (long k = begin; k < begin + LINE; k += LANES) {
            floats known[4];
            UNROLL for (int i = 0; i < r; i++) known[i] = load(x + i * stride + k);
            UNROLL for (int j = 0; j < n; j++) {
                floats weights = narrow ? widened(bytes + j * depth + k) : load(wide + j * depth + k);
                UNROLL for (int i = 0; i < r; i++) found[i][j] += known[i] * weights;
            }
        }
    }
    UNROLL for (int i = 0; i < r; i++) store(sums[i], sums_of(found[i]));
}

struct product {
    float *out;           /* [rows, width] */
    const float *x;       /* [rows, depth] */
    const void *w;        /* [width, depth], float or int8 */
    const float *factors; /* [width] of an int8 w, else null */
    const float *bias;    /* [width] or null */
    const float *onto;    /* [rows, width] or null */
    long rows, width, depth;
    long stride_out, stride_x; /* from row to row */
};

INLINE void tile(const struct product *p, int r, int n, long row, long at) {
    float sums[4][8];
    const float *x = p->x + row * p->stride_x;
    if (p->factors)
        dots(r, n, 1, x, p->stride_x, (const int8_t *)p->w + at * p->depth, p->depth, sums);
    else
        dots(r, n, 0, x, p->stride_x, (const float *)p->w + at * p->depth, p->depth, sums);
    for (int i = 0; i < r; i++)
        for (int j = 0; j < n; j++) {
            long o = (row + i) * p->stride_out + at + j;
            float y = sums[i][j];
            if (p->factors) y *= p->factors[at + j];
            if (p->bias) y += p->bias[at + j];
            if (p->onto) y += p->onto[o];
            p->out[o] = y;
        }
}

/* Outputs from `begin` to `end`, some of them at a time for all rows. */
static void outputs(const struct product *p, long begin, long end) {
    for (long row = 0; row < p->rows; row += 4) {
        long at = begin;
#define TILES(r, n) for (; at + n <= end; at += n) tile(p, r, n, row, at)
        switch (p->rows - row) {
        case 1:
            TILES(1, 8);
            TILES(1, 1);
            break;
        case 2:
            TILES(2, 4);
            TILES(2, 1);
            break;
        case 3:
            TILES(3, 4);
            TILES(3, 1);
            break;
        default:
            TILES(4, 3);
            TILES(4, 1);
        }
    }
}

/* out [rows, width] = x [rows, depth] W^T * factors + bias + onto; W [width, depth] is int8 where
   factors [width] is not null; bias [width] and onto, like out, may be null. depth is a multiple
   of 16. */
void multiply(float *out, const float *x, const void *w, const float *factors, const float *bias,
              const float *onto, long rows, long width, long depth, int threads) {
    struct product p = {out, x, w, factors, bias, onto, rows, width, depth, width, depth};
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) outputs(&p, width * t / threads, width * (t + 1) / threads);
}

/* Every head's own product: out [rows, heads, width], x [rows, heads, depth], w [heads, width,
   depth]. depth is a multiple of 16. */
void multiply_heads(float *out, const float *x, const float *w, long rows, long heads, long width,
                    long depth, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long h = 0; h < heads; h++) {
        struct product p = {out + h * width, x + h * depth, w + h * width * depth, 0, 0, 0,
                            rows, width, depth, heads * width, heads * depth};
        outputs(&p, 0, width);
    }
}

/* The same with w [heads, depth, width]. depth is a multiple of 4, width of 16. */
static void turned(float *out, const float *x, const float *w, long rows, long stride_out,
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

void multiply_heads_turned(float *out, const float *x, const float *w, long rows, long heads,
                           long width, long depth, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long h = 0; h < heads; h++)
        turned(out + h * width, x + h * depth, w + h * width * depth, rows, heads * width,
               heads * depth, width, depth);
}
