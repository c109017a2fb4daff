#include "vectors.h"

#ifdef __x86_64__
#pragma GCC target("no-avx")
int usable(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
int usable(void) { return 1; }
#endif
