/* encoder_rows.c for weights in int8, for processors with AVX512-VNNI. */
#define WIDE 1
#define INTEGERS 1
#include "encoder_rows.c"
