#include "vectors.h"

#ifdef __x86_64__
#pragma GCC target("no-avx")
int usable(void) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? 2 : 1;
}
#else
int usable(void) { return 1; }
#endif
