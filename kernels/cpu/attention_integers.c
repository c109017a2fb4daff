/* attention.c for a latent in whole numbers. */
#define INTEGERS 1
#include "vectors.h"
#ifdef __x86_64__
#include "attention.c"
#endif
