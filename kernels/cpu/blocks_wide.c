/* blocks.c for processors with AVX-512. */
#define WIDE 1
#include "blocks.c"
