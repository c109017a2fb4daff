/* choose_token.c for processors with AVX-512. */
#define WIDE 1
#include "choose_token.c"
