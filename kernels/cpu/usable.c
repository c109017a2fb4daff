/* Of the functions' arguments; `library.VERSION` is the same number. */
int version(void) { return 8; }

/* What this processor can run: 0 nothing here, 1 all but WIDE, 2 WIDE as well, 3 WIDE with
   INTEGERS as well, 4 BF16 as well. Compiled for any processor, as it is called before the answer is
   known. */
#ifdef __x86_64__
#include <cpuid.h>

int usable(void) {
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return 0;
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!wide) return 1;
    if (!__builtin_cpu_supports("avx512vnni")) return 2;
#if defined __clang__ || __GNUC__ >= 10
    if (__builtin_cpu_supports("avx512bf16")) return 4;
#endif
    return 3;
}
#else
int usable(void) { return 1; }
#endif
