/* encoder_attention.c for AVX2, with products of whole numbers of 16 bits. */
#ifdef __x86_64__
#define INTEGERS 1
#define SHORTS 1
#include "encoder_attention.c"
#endif
