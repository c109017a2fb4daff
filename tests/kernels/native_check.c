/* Calls a function of kernels/cpu on arguments from standard input, and writes its result.

   In: int64 numbers [function, a, b, c, d], then float32 data. Out: float32.
   0 multiply: rows, width, depth, int8 -> [rows, width]
   1 multiply_heads, 2 multiply_heads_transposed: rows, heads, width, depth -> [rows, heads, width]
   3 paged_attention: heads, queries, pages of 16, d -> [heads, queries, d] */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DECLARE(suffix)                                                                            \
    void multiply##suffix(float *, const float *, const void *, const float *, const float *,      \
                          const float *, long, long, long, int);                                   \
    void multiply_heads##suffix(float *, const float *, const float *, long, long, long, long,     \
                                int);                                                              \
    void paged_attention##suffix(float *, float *, const float *, const float *, const float *,    \
                                 const int64_t *, const int64_t *, const float *, const int64_t *, \
                                 long, long, long, long, long, long, long, long, long, long, long, \
                                 float, int);
DECLARE()
DECLARE(_wide)
void multiply_heads_transposed(float *, const float *, const float *, long, long, long, long, int);
int usable(void);

static float *read_floats(long count) {
    float *data = malloc((count + 1024) * sizeof *data); /* what is prefetched lies behind it */
    if (!data || fread(data, sizeof *data, count, stdin) != (size_t)count) exit(3);
    return data;
}

int main(int argc, char **argv) {
    int64_t n[5];
    int wide = argc > 1 && argv[1][0] == 'w';
    if (usable() <= (wide ? 1 : 0)) return 2;
    if (fread(n, sizeof *n, 5, stdin) != 5) return 3;
    long a = n[1], b = n[2], c = n[3], d = n[4], size;
    float *out;
    if (n[0] == 0) {
        float *x = read_floats(a * c), *w = read_floats(b * c), *bias = read_floats(b);
        float *addend = read_floats(a * b), *factors = 0;
        int8_t *bytes = malloc(b * c + 4096);
        if (d) {
            factors = read_floats(b);
            for (long i = 0; i < b * c; i++) bytes[i] = (int8_t)w[i];
        }
        out = malloc((size = a * b) * sizeof *out);
        (wide ? multiply_wide : multiply)(out, x, d ? (void *)bytes : w, factors, bias, addend, a, b,
                                          c, 2);
    } else if (n[0] < 3) {
        float *x = read_floats(a * b * d), *w = read_floats(b * c * d);
        out = malloc((size = a * b * c) * sizeof *out);
        if (n[0] == 2) multiply_heads_transposed(out, x, w, a, b, c, d, 2);
        else (wide ? multiply_heads_wide : multiply_heads)(out, x, w, a, b, c, d, 2);
    } else {
        float *queries = read_floats(a * b * d), *keys = read_floats(c * a * 16 * d);
        float *values = read_floats(c * a * 16 * d);
        int64_t *table = malloc(c * sizeof *table), length = 16 * c - 3;
        for (long i = 0; i < c; i++) table[i] = c - 1 - i; /* the last page first */
        out = malloc((size = a * b * d) * sizeof *out);
        float *workspace = malloc(a * 2 * b * sizeof *workspace);
        (wide ? paged_attention_wide : paged_attention)(
            out, workspace, queries, keys, values, 0, &length, 0, table, 1, a, 1, b, 16 * c, d,
            a * 16 * d, 16 * d, 0, 16, c, 0.125f, 2);
    }
    return fwrite(out, sizeof *out, size, stdout) == (size_t)size ? 0 : 4;
}
