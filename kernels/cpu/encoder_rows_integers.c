/* encoder_rows.c for weights in int8. */
#define INTEGERS 1
#include "encoder_rows.c"
