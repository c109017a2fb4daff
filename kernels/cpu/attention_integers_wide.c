/* attention.c for a latent in whole numbers, and processors with AVX512-VNNI. */
#define WIDE 1
#define INTEGERS 1
#include "vectors.h"
#ifdef __x86_64__
#include "attention.c"
#endif
