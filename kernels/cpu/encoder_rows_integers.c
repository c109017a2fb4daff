/* encoder_rows.c for processors with AVX512-VNNI. */
#define INTEGERS 1
#include "encoder_rows.c"
