/* Eight floats at a time, in GCC's vectors: the compiler finds the instructions. */
#ifndef SLIMWHISPER_VECTORS_H
#define SLIMWHISPER_VECTORS_H

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#pragma GCC target("avx2,fma")
#endif

/* Whether this processor has what the code was compiled for. */
int usable(void);

#define LANES 8
#define LINE 16 /* floats that memory gives at a time */
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int ints __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

INLINE floats load(const float *p) {
    floats v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, floats v) { memcpy(p, &v, sizeof v); }

INLINE floats all(float x) { return (floats){0} + x; }

/* Eight small integers as floats. */
INLINE floats widened(const int8_t *p) {
#ifdef __x86_64__
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    floats v;
    for (int i = 0; i < LANES; i++) v[i] = p[i];
    return v;
#endif
}

INLINE float sum_of(floats v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* Sums of eight vectors, by halves: 14 shuffles and 7 additions. */
INLINE floats sums_of(const floats v[8]) {
    floats s[4], t[2];
    UNROLL for (int i = 0; i < 4; i++)
        s[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
               __builtin_shufflevector(v[2 * i], v[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    UNROLL for (int i = 0; i < 2; i++)
        t[i] = __builtin_shufflevector(s[2 * i], s[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(s[2 * i], s[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(t[0], t[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(t[0], t[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

/* Memory reads ahead by itself within a page of 4 kB; rows are shorter, so it is told. */
INLINE void soon(const void *p) { __builtin_prefetch(p, 0, 2); }

#endif
