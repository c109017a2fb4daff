/* Numbers in bfloat16, where the compiler HAS_BF16; and `number`, which is bfloat16 in files with
   BF16, a whole number of 16 bits in those with SHORTS (for AVX2), and else float. */
#ifndef SLIMWHISPER_BFLOAT16_H
#define SLIMWHISPER_BFLOAT16_H

#include "vectors.h"

#ifndef SHORTS
#define SHORTS 0
#endif

#ifdef HAS_BF16
typedef uint16_t bfloat16;
typedef __m512i pairs; /* sixteen pairs of bfloat16 */

/* Sixteen numbers as floats. */
INLINE floats widen(const bfloat16 *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return (floats)_mm512_slli_epi32(wide, 16);
}

/* Sixteen floats, rounded to nearest. clang 16 crashes on its own functions of bfloat16. */
INLINE void narrow(bfloat16 *p, floats v) {
#ifdef __clang__
    __m256i rounded;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(v));
#else
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh((__m512)v);
#endif
    _mm256_storeu_si256((__m256i *)p, rounded);
}

INLINE pairs load_pairs(const bfloat16 *p) { return _mm512_loadu_si512(p); }

/* One pair, sixteen times. */
INLINE pairs splat_pair(const bfloat16 *p) {
    int pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* total + x[0] * y[0] + x[1] * y[1] of every pair, summed in float. */
INLINE floats add_products(floats total, pairs x, pairs y) {
#ifdef __clang__
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(x), "v"(y));
    return total;
#else
    return (floats)_mm512_dpbf16_ps((__m512)total, (__m512bh)x, (__m512bh)y);
#endif
}

/* Two rows of thirty-two numbers -> thirty-two pairs of one of each, in order. */
INLINE void interleaved(pairs first, pairs second, pairs both[2]) {
    pairs order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39,
                                   7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    pairs upper = _mm512_add_epi16(order, _mm512_set1_epi16(16));
    both[0] = _mm512_permutex2var_epi16(first, order, second);
    both[1] = _mm512_permutex2var_epi16(first, upper, second);
}

INLINE float to_float(bfloat16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Rounded to nearest. */
INLINE bfloat16 to_number(float x) {
    bfloat16 y[LANES];
    narrow(y, splat(x));
    return y[0];
}

typedef bfloat16 number;
typedef pairs numbers;
#define load_numbers load_pairs
#define splat_numbers splat_pair
#define load_floats widen
#define store_number narrow
#elif SHORTS
typedef int16_t number;
typedef __m256i numbers;
INLINE numbers load_numbers(const number *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE numbers splat_numbers(const number *p) {
    int pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
}
INLINE void store_number(number *p, floats v) {
    store_shorts(p, (ints)_mm256_cvtps_epi32((__m256)v));
}
INLINE ints add_products(ints total, numbers x, numbers y) {
    return (ints)_mm256_add_epi32((__m256i)total, _mm256_madd_epi16(x, y)); /* of NaN: wraps */
}
#else
typedef float number;
typedef floats numbers;
#define load_numbers load
#define load_floats load
#define store_number store
INLINE floats splat_numbers(const float *p) { return splat(*p); }

INLINE float to_float(number x) { return x; }
INLINE number to_number(float x) { return x; }
INLINE floats add_products(floats total, floats x, floats y) { return total + x * y; }
#endif
#define NUMBERS ((long)(sizeof(numbers) / sizeof(number)))
#define NUMBER_LINE (64 / (long)sizeof(number)) /* numbers that memory gives at a time */

#endif
