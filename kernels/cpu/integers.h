/* x W^T with W in int8 and x rounded to whole numbers row by row. With 16 bits, x is two rows of bytes,
   `planes`, that are multiplied each: where there are few rows that takes little longer, as W is read
   once. The results are the same with AVX2 and with AVX512-VNNI. */
#ifndef SLIMWHISPER_INTEGERS_H
#define SLIMWHISPER_INTEGERS_H

#include "threads.h"
#include "tiles.h"

struct integers_call {
    struct product product;
    const float *x;   /* [rows, depth] */
    operand *rounded; /* [rows, planes, depth] */
    float *steps;
    long parts;
};

static void round_one(const void *arguments, long row) {
    const struct integers_call *c = arguments;
    long depth = c->product.depth, planes = c->product.planes;
    round_row(c->rounded + row * planes * depth, c->steps + 2 * row, c->x + row * depth, depth, planes);
}

static void outputs_of_part(const void *arguments, long part) {
    const struct integers_call *c = arguments;
    long vectors = (c->product.width + LANES - 1) / LANES;
    multiply_vectors(&c->product, vectors * part / c->parts, vectors * (part + 1) / c->parts);
}

/* out [rows, width] = x [rows, depth] W^T * factors + bias + addend, with x rounded, then GELU if
   `gelu`. w [width / 16, depth / 4, 16, 4], with zeros for outputs past `width`; sums [width] of its
   rows; bias [width] and addend, like out, may be null. planes: 1 or 2, bytes of an input. rounded
   [rows, planes, depth] of at most 16 bits, steps [rows, 2]: workspace. depth is a multiple of 16. */
void NAME(multiply)(float *out, const float *x, const int8_t *w, const int32_t *sums,
                    const float *factors, const float *bias, const float *addend, void *rounded,
                    float *steps, long rows, long width, long depth, long planes, int gelu,
                    int threads) {
    struct integers_call call = {{out, w, sums, factors, bias, addend, rounded, steps, rows, width,
                                  depth, depth, planes, gelu, width},
                                 x, rounded, steps, parts_for(rows, threads)};
    run_parallel(round_one, &call, rows, rows < FEW ? 1 : threads);
    run_parallel(outputs_of_part, &call, call.parts, threads);
}

/* One head: the pointers are moved to it. `parts`: heads. */
static void outputs_of_head(const void *arguments, long head) {
    struct integers_call c = *(const struct integers_call *)arguments;
    struct product *p = &c.product;
    long rows = p->rows, depth = p->depth, width = p->width, operands = p->planes * depth;
    c.rounded += head * rows * operands, c.steps += head * rows * 2;
    for (long row = 0; row < rows; row++)
        round_row(c.rounded + row * operands, c.steps + 2 * row, c.x + (row * c.parts + head) * depth,
                  depth, p->planes);
    p->x = c.rounded, p->steps = c.steps;
    p->out += head * width, p->w += head * width * depth;
    p->sums += head * width, p->factors += head * width;
    multiply_vectors(p, 0, width / LANES);
}

/* Every head's own product: out [rows, heads, width], x [rows, heads, depth], w [heads, width / 16,
   depth / 4, 16, 4], sums and factors [heads, width]; x is rounded to two bytes. rounded [heads, rows,
   2, depth], steps [heads, rows, 2]: as above. width and depth are multiples of 16. */
void NAME(multiply_heads)(float *out, const float *x, const int8_t *w, const int32_t *sums,
                          const float *factors, void *rounded, float *steps, long rows, long heads,
                          long width, long depth, int threads) {
    struct integers_call call = {{out, w, sums, factors, 0, 0, rounded, steps, rows, width, depth,
                                  depth, 2, 0, heads * width},
                                 x, rounded, steps, heads};
    run_parallel(outputs_of_head, &call, heads, threads);
}

#endif
