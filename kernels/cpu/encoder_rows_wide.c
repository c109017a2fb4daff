/* encoder_rows.c for processors with AVX-512. */
#define WIDE 1
#include "encoder_rows.c"
