/* blocks.c for processors with AVX512-BF16. */
#define WIDE 1
#define BF16 1
#include "bfloat16.h"
#ifdef HAS_BF16
#include "blocks.c"
#endif
