/* x W^T with W in int8, laid out for vpdpbusd, and x rounded to whole numbers row by row: for
   processors with AVX512-VNNI. With 16 bits, x is two rows of bytes, `planes`, that are multiplied
   each: where there are few rows that takes little longer, as W is read once. */
#include "integers.h"
#include "threads.h"

#ifdef HAS_INTEGERS

struct shared {
    struct product product;
    long count; /* of threads */
};

static void round_one(const void *arguments, long row) {
    round_row(&((const struct shared *)arguments)->product, row);
}

static void outputs_of_thread(const void *arguments, long thread) {
    const struct shared *s = arguments;
    long vectors = (s->product.width + LANES - 1) / LANES;
    multiply_vectors(&s->product, vectors * thread / s->count, vectors * (thread + 1) / s->count);
}

/* out [rows, width] = x [rows, depth] W^T * factors + bias + addend, with x rounded, then GELU if
   `gelu`. w [width / 16, depth / 4, 16, 4], with zeros for outputs past `width`; sums [width] of its rows; bias [width] and
   addend, like out, may be null. planes: 1 or 2, bytes of an input. bytes [rows, planes, depth],
   steps [rows, 2]: workspace. depth is a multiple of 16. */
void multiply_integers(float *out, const float *x, const int8_t *w, const int32_t *sums,
                       const float *factors, const float *bias, const float *addend,
                       uint8_t *bytes, float *steps, long rows, long width, long depth,
                       long planes, int gelu, int threads) {
    struct shared shared = {{out, w, sums, factors, bias, addend, x, bytes, steps, rows, width, depth,
                             depth, planes, gelu},
                            threads};
    run_parallel(round_one, &shared, rows, threads);
    run_parallel(outputs_of_thread, &shared, threads, threads);
}
#endif

END_OF_TARGET
