/* attention.c for keys and values in float16, and processors with AVX-512. */
#define WIDE 1
#define HALF 1
#include "attention.c"
