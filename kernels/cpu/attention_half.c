/* attention.c for keys and values in float16. */
#define HALF 1
#include "attention.c"
