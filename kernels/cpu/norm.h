/* A layer norm. */
#ifndef SLIMWHISPER_NORM_H
#define SLIMWHISPER_NORM_H

#include "bfloat16.h"

#include <math.h>

#define EPSILON 1e-5f

/* normed [d] = the layer norm of x [d]; weight, bias: [d]. d is a multiple of 16. */
INLINE void normalize(number *normed, const number *x, const float *weight, const float *bias,
                      long d) {
    floats sum = splat(0), squares = splat(0);
    for (long k = 0; k < d; k += LANES) sum += load_floats(x + k);
    float mean = sum_of(sum) / d;
    for (long k = 0; k < d; k += LANES) {
        floats y = load_floats(x + k) - mean;
        squares += y * y;
    }
    float factor = 1 / sqrtf(sum_of(squares) / d + EPSILON);
    for (long k = 0; k < d; k += LANES)
        store_number(normed + k, (load_floats(x + k) - mean) * factor * load(weight + k) +
                                     load(bias + k));
}

#endif
