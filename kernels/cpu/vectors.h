/* Eight floats at a time, sixteen with WIDE, in GCC's vectors: the compiler finds the instructions. */
#ifndef SLIMWHISPER_VECTORS_H
#define SLIMWHISPER_VECTORS_H

#include <stdint.h>
#include <string.h>

#ifndef WIDE
#define WIDE 0
#endif

#ifdef __x86_64__
#include <immintrin.h>
#if WIDE
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#else
#pragma GCC target("avx2,fma")
#endif
#endif

/* What this processor can run: 0 nothing here, 1 all but WIDE, 2 WIDE as well. */
int usable(void);

#if WIDE
#define LANES 16
#define NAME(name) name##_wide
#else
#define LANES 8
#define NAME(name) name
#endif
#define LINE 16 /* floats that memory gives at a time */
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int ints __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

INLINE floats load(const float *p) {
    floats v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, floats v) { memcpy(p, &v, sizeof v); }

INLINE floats all(float x) { return (floats){0} + x; }

/* Small integers as floats. */
INLINE floats widened(const int8_t *p) {
#if defined __x86_64__ && WIDE
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined __x86_64__
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    floats v;
    for (int i = 0; i < LANES; i++) v[i] = p[i];
    return v;
#endif
}

typedef float eight __attribute__((vector_size(32)));

/* The sum of its halves, of sixteen floats. */
INLINE eight folded(floats v) {
#if WIDE
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return v;
#endif
}

INLINE float sum_of(floats wide) {
    eight v = folded(wide);
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* Sums of eight vectors, by halves: 14 shuffles and 7 additions. */
INLINE void sums_of(const floats v[8], float sums[8]) {
    eight e[8], s[4], t[2];
    UNROLL for (int i = 0; i < 8; i++) e[i] = folded(v[i]);
    UNROLL for (int i = 0; i < 4; i++)
        s[i] = __builtin_shufflevector(e[2 * i], e[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
               __builtin_shufflevector(e[2 * i], e[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    UNROLL for (int i = 0; i < 2; i++)
        t[i] = __builtin_shufflevector(s[2 * i], s[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(s[2 * i], s[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    eight all = __builtin_shufflevector(t[0], t[1], 0, 1, 2, 3, 8, 9, 10, 11) +
                __builtin_shufflevector(t[0], t[1], 4, 5, 6, 7, 12, 13, 14, 15);
    memcpy(sums, &all, sizeof all);
}

/* Memory reads ahead by itself within a page of 4 kB; rows are shorter, so it is told. */
INLINE void soon(const void *p) { __builtin_prefetch(p, 0, 2); }

#endif
