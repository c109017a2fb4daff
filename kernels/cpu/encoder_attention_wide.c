/* encoder_attention.c for processors with AVX-512. */
#define WIDE 1
#include "encoder_attention.c"
