/* Eight floats at a time, sixteen with WIDE, in the vectors that GCC and clang share: the compiler
   chooses the instructions. */
#ifndef SLIMWHISPER_VECTORS_H
#define SLIMWHISPER_VECTORS_H

#include <stdint.h>
#include <string.h>

#ifndef WIDE
#define WIDE 0
#endif
#ifndef BF16 /* with WIDE: for processors with AVX512-BF16 */
#define BF16 0
#endif
#ifndef INTEGERS /* with WIDE: for processors with AVX512-VNNI; without, for AVX2 */
#define INTEGERS 0
#endif

#ifdef __x86_64__
#include <immintrin.h>
#if BF16 && (defined __clang__ || __GNUC__ >= 10)
#define HAS_BF16
#define TARGET "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#elif INTEGERS && WIDE
#define TARGET "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#elif WIDE
#define TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#else
#define TARGET "avx2,fma,f16c"
#endif
/* A file that begins with this ends with END_OF_TARGET. */
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define BEGIN_TARGET(features) \
    PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define END_OF_TARGET PRAGMA(clang attribute pop)
#else
#define BEGIN_TARGET(features) PRAGMA(GCC target(features))
#define END_OF_TARGET
#endif
BEGIN_TARGET(TARGET)
#else
#define END_OF_TARGET
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#define LANES (WIDE ? 16 : 8)
#if BF16
#define NAME(name) name##_bf16
#elif INTEGERS && WIDE
#define NAME(name) name##_integers_wide
#elif INTEGERS
#define NAME(name) name##_integers
#elif WIDE
#define NAME(name) name##_wide
#else
#define NAME(name) name
#endif
#define LINE 16 /* floats that memory gives at a time */
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int ints __attribute__((vector_size(4 * LANES)));
typedef unsigned words __attribute__((vector_size(4 * LANES)));
typedef float floats8 __attribute__((vector_size(32)));
typedef int ints8 __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)") /* "enable" leaves loops that call others */
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Some of the floats of a and b, by their numbers; GCC has clang's builtin from version 12 on. */
#if defined __clang__ || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ints8){__VA_ARGS__})
#endif

INLINE floats load(const float *p) {
    floats v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, floats v) { memcpy(p, &v, sizeof v); }

INLINE floats splat(float x) { return x - (floats){0}; } /* x + 0 would be computed, for -0 */

#if defined __aarch64__ && !WIDE
INLINE floats joined(float32x4_t lower, float32x4_t upper) {
    float32x4_t halves[2] = {lower, upper};
    floats v;
    memcpy(&v, halves, sizeof v);
    return v;
}
#endif

/* int8 as floats. */
INLINE floats widened(const int8_t *p) {
#if defined __x86_64__ && WIDE
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined __x86_64__
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#elif defined __aarch64__ && !WIDE
    int16x8_t wide = vmovl_s8(vld1_s8(p));
    return joined(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))),
                  vcvtq_f32_s32(vmovl_high_s16(wide)));
#else
    floats v;
    for (int i = 0; i < LANES; i++) v[i] = p[i];
    return v;
#endif
}

/* Finite float16 as floats. */
INLINE floats widened_half(const uint16_t *p) {
#if defined __x86_64__ && WIDE
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined __x86_64__
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined __aarch64__ && !WIDE
    float16x8_t narrow = vreinterpretq_f16_u16(vld1q_u16(p));
    return joined(vcvt_f32_f16(vget_low_f16(narrow)), vcvt_high_f32_f16(narrow));
#else
    ints bits;
    for (int i = 0; i < LANES; i++) bits[i] = p[i];
    floats magnitude = (floats)((bits & 0x7fff) << 13) * 0x1p112f;
    return (floats)((ints)magnitude | (bits & 0x8000) << 16);
#endif
}

#if defined __x86_64__ && WIDE
INLINE floats smaller(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE floats larger(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE float smallest(floats v) { return _mm512_reduce_min_ps((__m512)v); }
INLINE float largest(floats v) { return _mm512_reduce_max_ps((__m512)v); }
INLINE ints at_most(ints v, int most) { /* where v is negative too */
    return (ints)_mm512_min_epu32((__m512i)v, _mm512_set1_epi32(most));
}
#elif defined __x86_64__
INLINE floats smaller(floats a, floats b) { return (floats)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE floats larger(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE float largest(floats v) {
    float most = v[0];
    for (int i = 1; i < LANES; i++) most = most < v[i] ? v[i] : most;
    return most;
}
INLINE float smallest(floats v) { return -largest(-v); }
INLINE ints at_most(ints v, int most) {
    return (ints)_mm256_min_epu32((__m256i)v, _mm256_set1_epi32(most));
}
INLINE void store_shorts(int16_t *p, ints v) { /* what is out of their range becomes its end */
    __m128i upper = _mm256_extracti128_si256((__m256i)v, 1);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), upper));
}
#endif

/* The sum of the halves of sixteen floats; eight floats stay as they are. */
INLINE floats8 folded(floats v) {
#if defined __x86_64__ && WIDE
    return (floats8)_mm512_castps512_ps256((__m512)v) +
           (floats8)_mm512_extractf32x8_ps((__m512)v, 1);
#elif WIDE
    floats8 halves[2];
    memcpy(halves, &v, sizeof v);
    return halves[0] + halves[1];
#else
    return v;
#endif
}

INLINE float sum_of(floats wide) {
    floats8 v = folded(wide);
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* Sums of eight vectors, by halves: 14 shuffles and 7 additions. */
INLINE void sums_of(const floats v[8], float sums[8]) {
    floats8 e[8], s[4], t[2];
    UNROLL for (int i = 0; i < 8; i++) e[i] = folded(v[i]);
    UNROLL for (int i = 0; i < 4; i++)
        s[i] = SHUFFLE(e[2 * i], e[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
               SHUFFLE(e[2 * i], e[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    UNROLL for (int i = 0; i < 2; i++)
        t[i] = SHUFFLE(s[2 * i], s[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               SHUFFLE(s[2 * i], s[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    floats8 total = SHUFFLE(t[0], t[1], 0, 1, 2, 3, 8, 9, 10, 11) +
                    SHUFFLE(t[0], t[1], 4, 5, 6, 7, 12, 13, 14, 15);
    memcpy(sums, &total, sizeof total);
}

/* 2^n x where that is a normal number; nothing that means anything elsewhere. */
INLINE ints scaled(floats x, ints n) { return (ints)((words)x + ((words)n << 23)); }

/* e^x for x <= 0, at most 2 units in the last place off: 2^n e^r, |r| <= ln 2 / 2. */
INLINE floats exponential(floats x) {
    ints below = x < -87.0f;
    floats y = x * 1.44269504f;
    ints n = __builtin_convertvector(y - 0.5f, ints); /* rounds towards 0: to nearest, as y <= 0 */
    floats whole = __builtin_convertvector(n, floats);
    floats r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    floats e = splat(1.9875691500e-4f);
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    return (floats)(scaled(e, n) & ~below);
}

/* x (1 + erf(x / sqrt 2)) / 2, the result at most 2e-7 |x| off: Abramowitz and Stegun 7.1.26. */
INLINE floats gelu(floats x) {
    ints sign = (ints)x & (int)0x80000000;
    floats z = (floats)((ints)x ^ sign) * 0.70710678f, t = 1 / (1 + 0.3275911f * z);
    floats series = splat(1.061405429f);
    series = series * t - 1.453152027f;
    series = series * t + 1.421413741f;
    series = series * t - 0.284496736f;
    series = series * t + 0.254829592f;
    floats upper = 1 - series * t * exponential(-z * z);
    return 0.5f * x * (1 + (floats)((ints)upper | sign));
}

/* The hardware prefetches within a page of 4 kB only, and rows are shorter. */
INLINE void prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }

#endif
