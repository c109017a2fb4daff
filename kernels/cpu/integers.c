/* x W^T with W in int8, laid out for vpdpbusd, and x rounded to whole numbers row by row: for
   processors with AVX512-VNNI. With 16 bits, x is two rows of bytes, `planes`, that are multiplied
   each: where there are few rows that takes little longer, as W is read once. */
#define WIDE 1
#define INTEGERS 1
#include "tiles.h"
#include "threads.h"

#ifdef HAS_INTEGERS

struct call {
    struct product product;
    const float *x; /* [rows, depth] */
    uint8_t *bytes; /* [rows, planes, depth] */
    float *steps;
    long threads;
};

static void round_one(const void *arguments, long row) {
    const struct call *c = arguments;
    long depth = c->product.depth, planes = c->product.planes;
    round_row(c->bytes + row * planes * depth, c->steps + 2 * row, c->x + row * depth, depth, planes);
}

static void outputs_of_thread(const void *arguments, long thread) {
    const struct call *c = arguments;
    long vectors = (c->product.width + LANES - 1) / LANES;
    multiply_vectors(&c->product, vectors * thread / c->threads, vectors * (thread + 1) / c->threads);
}

/* out [rows, width] = x [rows, depth] W^T * factors + bias + addend, with x rounded, then GELU if
   `gelu`. w [width / 16, depth / 4, 16, 4], with zeros for outputs past `width`; sums [width] of its rows; bias [width] and
   addend, like out, may be null. planes: 1 or 2, bytes of an input. bytes [rows, planes, depth],
   steps [rows, 2]: workspace. depth is a multiple of 16. */
void multiply_integers(float *out, const float *x, const int8_t *w, const int32_t *sums,
                       const float *factors, const float *bias, const float *addend,
                       uint8_t *bytes, float *steps, long rows, long width, long depth,
                       long planes, int gelu, int threads) {
    struct call call = {{out, w, sums, factors, bias, addend, bytes, steps, rows, width, depth, depth,
                         planes, gelu},
                        x, bytes, steps, threads};
    run_parallel(round_one, &call, rows, threads);
    run_parallel(outputs_of_thread, &call, threads, threads);
}
#endif

END_OF_TARGET
