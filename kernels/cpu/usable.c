/* What this processor can run: 0 nothing here, 1 all but WIDE, 2 WIDE as well, 3 BF16 as well.
   Compiled for any processor, as it is called before the answer is known. */
#ifdef __x86_64__
int usable(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if defined __clang__ || __GNUC__ >= 10
    if (wide && __builtin_cpu_supports("avx512bf16")) return 3;
#endif
    return wide ? 2 : 1;
}
#else
int usable(void) { return 1; }
#endif
