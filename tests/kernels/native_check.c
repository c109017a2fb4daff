/* Calls a function of kernels/cpu on arguments from standard input, and writes its result.

   In: int64 numbers [function, a, b, c, d], then float32 data. Out: float32.
   0 multiply_rows: rows, width, depth, 0 or 1 int8 or 2 float16 -> [rows, width]
   1 multiply_head_rows, 2 multiply_heads_transposed: rows, heads, width, depth -> [rows, heads,
     width]; with 10 added: of maps in float16
   3 attend_pages: heads, queries, pages of 16, d -> [heads, queries, d]; 13: keys and values in
     float16; 23, on x86: 1, queries, positions, d: a latent of whole numbers, and its factors
   4 encoder_attention, on x86: windows, positions, heads, d -> [windows, positions, heads, d]
   5 multiply_integers, on x86: rows, width (a multiple of 16), depth, bytes of an input -> [rows, width];
     15 multiply_heads_integers: rows, heads, width, depth -> [rows, heads, width]
   6 mlp: rows, wide, d, 2 of matrices in float16 -> [rows, d]
   7 add_norm: rows, d -> [rows, d], the norm
   8 choose_token, not of bfloat16: rows, size -> [rows, 2], without rules: token, log-probability
   9 encoder_rows, on x86: rows, wide, d -> [rows, d], the norm after the last block; 10 of integers */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(suffix)                                                                            \
    WEAK void multiply_rows##suffix(void *, float *, const void *, const void *, const float *,    \
                                    const void *, const void *, long, long, long, int, int, int);  \
    WEAK void multiply_head_rows##suffix(void *, float *, const void *, const void *, long, long,  \
                                         long, long, int, int);                                    \
    WEAK void attend_pages##suffix(void *, float *, float *, const void *, const void *,           \
                                   const void *, const int64_t *, const int64_t *, const float *,  \
                                   const int64_t *, long, long, long, long, long, long, long,      \
                                   long, long, long, long, float, int);                            \
    WEAK void mlp##suffix(void *, void *, float *, const void *, const struct mlp_weights *, long, \
                          int);                                                                    \
    WEAK void add_norm##suffix(void *, void *, const void *, const void *, const float *,          \
                               const float *, void *, const int64_t *, const int64_t *, long,      \
                               long, long, long, int);
struct mlp_weights {
    const void *up, *down, *up_bias, *down_bias, *up_sums, *down_sums, *up_factors, *down_factors,
        *multiply;
    long d, wide;
    int half;
};
#define CHOOSE_TOKEN(name)                                                                         \
    void name(const float *, const uint8_t *, const int64_t *, const uint8_t *, const uint8_t *,   \
              const int64_t *, const int64_t *, const float *, const int64_t *, const float *,     \
              int64_t *, float *, long, long, long, long, long, long, long, long, int, int);
CHOOSE_TOKEN(choose_token)
CHOOSE_TOKEN(choose_token_wide)
#define WEAK
DECLARE()
DECLARE(_wide)
void attend_pages_half(void *, float *, float *, const void *, const void *, const void *,
                       const int64_t *, const int64_t *, const float *, const int64_t *, long, long,
                       long, long, long, long, long, long, long, long, long, float, int);
void attend_pages_half_wide(void *, float *, float *, const void *, const void *, const void *,
                            const int64_t *, const int64_t *, const float *, const int64_t *, long,
                            long, long, long, long, long, long, long, long, long, long, float, int);
void multiply_heads_transposed(void *, const void *, const void *, long, long, long, long, int, int);
#undef WEAK
#define WEAK __attribute__((weak)) /* not every compiler has bfloat16 */
DECLARE(_bf16)
WEAK void multiply_heads_transposed_bf16(void *, const void *, const void *, long, long, long, long,
                                         int, int);
#define DECLARE_ENCODER(suffix)                                                                    \
    WEAK void encoder_attention##suffix(void *, void *, const void *, const void *, const void *,  \
                                        long, long, long, long, long, long, float, int, int);
DECLARE_ENCODER() /* for x86 */
DECLARE_ENCODER(_wide)
DECLARE_ENCODER(_bf16)
#define DECLARE_INTEGERS(suffix)                                                                   \
    WEAK void multiply_integers##suffix(float *, const float *, const int8_t *, const int32_t *,   \
                                        const float *, const float *, const float *, void *,       \
                                        float *, long, long, long, long, int, int);                \
    WEAK void multiply_heads_integers##suffix(float *, const float *, const int8_t *,              \
                                              const int32_t *, const float *, void *, float *,     \
                                              long, long, long, long, int);                        \
    WEAK void attend_pages_integers##suffix(                                                       \
        void *, float *, float *, const void *, const void *, const void *, const int64_t *,       \
        const int64_t *, const float *, const int64_t *, long, long, long, long, long, long, long, \
        long, long, long, long, float, int);
DECLARE_INTEGERS() /* for x86 */
DECLARE_INTEGERS(_wide)
struct linear {
    const void *w;
    const int32_t *sums;
    const float *factors, *bias;
};
struct encoder_weights {
    struct linear out, up, down, query, key, value;
    const float *mlp_weight, *mlp_bias, *norm_weight, *norm_bias;
    long d, wide;
};
#define DECLARE_ROWS(suffix)                                                                       \
    WEAK void encoder_rows##suffix(float *, float *, float *, float *, const float *,              \
                                   const struct encoder_weights *, float *, long, long, int);
DECLARE_ROWS() /* for x86 */
DECLARE_ROWS(_wide)
DECLARE_ROWS(_integers)
DECLARE_ROWS(_integers_wide)
int usable(void);

static int bfloat16;

static float *read_floats(long count) {
    float *data = malloc((count + 1024) * sizeof *data); /* what is prefetched lies behind it */
    if (!data || fread(data, sizeof *data, count, stdin) != (size_t)count) exit(3);
    return data;
}

/* Numbers of the variant: float, or bfloat16 in half of the memory. */
static void *read_numbers(long count) {
    float *data = read_floats(count);
    uint16_t *half = (uint16_t *)data;
    if (bfloat16)
        for (long i = 0; i < count; i++) memcpy(half + i, (char *)(data + i) + 2, 2);
    return data;
}

/* float16 in the memory of floats that it holds exactly. */
static void *to_half(float *data, long count) {
    uint16_t *half = (uint16_t *)data;
    for (long i = 0; i < count; i++) {
        float scaled = data[i] * 0x1p-112f; /* the exponents of float16 */
        uint32_t bits;
        memcpy(&bits, &scaled, 4);
        half[i] = (bits >> 16 & 0x8000) | (bits >> 13 & 0x7fff);
    }
    return data;
}

static void *allocate(long bytes) {
    void *data = malloc(bytes);
    if (!data) exit(3);
    return data;
}

/* A weight [width, depth] of whole numbers, factors and bias, as multiply_integers takes it. */
static struct linear read_integers(long width, long depth) {
    float *w = read_floats(width * depth), *factors = read_floats(width);
    int8_t *blocks = allocate(width * depth);
    int32_t *sums = allocate(width * sizeof *sums);
    for (long i = 0; i < width; i++) {
        sums[i] = 0;
        for (long k = 0; k < depth; k++) {
            int8_t byte = (int8_t)w[i * depth + k];
            sums[i] += byte;
            blocks[i / 16 * 16 * depth + k / 4 * 64 + i % 16 * 4 + k % 4] = byte;
        }
    }
    return (struct linear){blocks, sums, factors, read_floats(width)};
}

/* A weight [width, depth] and bias, as the float variant of encoder_rows takes them. */
static struct linear read_tiles(long width, long depth) {
    float *w = read_floats(width * depth), *blocks = allocate(width * depth * sizeof *blocks);
    for (long i = 0; i < width; i++)
        for (long k = 0; k < depth; k++)
            blocks[i / 16 * 16 * depth + k * 16 + i % 16] = w[i * depth + k];
    return (struct linear){blocks, 0, 0, read_floats(width)};
}

int main(int argc, char **argv) {
    int64_t n[5];
    char variant = argc > 1 ? argv[1][0] : 'n';
    int wide = variant == 'w';
    bfloat16 = variant == 'b';
    if (fread(n, sizeof *n, 5, stdin) != 5) return 3;
    int integers = n[0] == 5 || n[0] == 10 || n[0] == 15 || n[0] == 23;
    if (usable() < (bfloat16 ? 4 : wide ? 2 + integers : 1)) return 2;
    long a = n[1], b = n[2], c = n[3], d = n[4], size;
    void *out;
#define VARIANT(name) (bfloat16 ? name##_bf16 : wide ? name##_wide : name)
    if (n[0] == 0) {
        void *x = read_numbers(a * c), *w = read_numbers(b * c), *bias = read_numbers(b);
        void *addend = read_numbers(a * b);
        float *factors = 0;
        int8_t *bytes = allocate(b * c + 4096);
        if (d == 1) {
            factors = read_floats(b);
            for (long i = 0; i < b * c; i++) bytes[i] = (int8_t)((float *)w)[i];
        }
        out = allocate((size = a * b) * sizeof(float));
        float *partial = allocate(size * sizeof *partial);
        if (d == 2) to_half(w, b * c);
        VARIANT(multiply_rows)(out, partial, x, factors ? (void *)bytes : w, factors, bias, addend,
                               a, b, c, d == 2, 0, 2);
    } else if (n[0] < 3 || n[0] == 11 || n[0] == 12) {
        void *x = read_numbers(a * b * d), *w = read_numbers(b * c * d);
        out = allocate((size = a * b * c) * sizeof(float));
        float *partial = allocate(size * sizeof *partial);
        int half = n[0] > 10;
        if (half) to_half(w, b * c * d);
        if (n[0] % 10 == 1) VARIANT(multiply_head_rows)(out, partial, x, w, a, b, c, d, half, 2);
        else
            (bfloat16 ? multiply_heads_transposed_bf16 : multiply_heads_transposed)(
                out, x, w, a, b, c, d, half, 2);
    } else if (n[0] == 23) {
        float *queries = read_floats(b * d), *z = read_floats(c * d), *factors = read_floats(c);
        int16_t *latent = allocate(c * d * sizeof *latent);
        for (long i = 0; i < c * d; i++) latent[i] = (int16_t)z[i];
        out = allocate((size = b * d) * sizeof(float));
        (wide ? attend_pages_integers_wide : attend_pages_integers)(
            out, allocate(2 * size * sizeof(float)), allocate(2 * b * (d / 2 + 3) * sizeof(float)),
            queries, latent, factors, 0, 0, 0, 0, 1, 1, 2, b, c, d, c * d, 0, 0, c, 0, 0.125f, 2);
    } else if (n[0] % 10 == 3) {
        void *queries = read_numbers(a * b * d), *keys = read_numbers(c * a * 16 * d);
        void *values = read_numbers(c * a * 16 * d);
        int64_t *table = allocate(c * sizeof *table), length = 16 * c - 3;
        for (long i = 0; i < c; i++) table[i] = c - 1 - i; /* the last page first */
        out = allocate((size = a * b * d) * sizeof(float));
        float *sums = allocate(size * sizeof *sums), *workspace = allocate(a * 2 * b * sizeof *sums);
        if (n[0] == 13) to_half(keys, c * a * 16 * d), to_half(values, c * a * 16 * d);
        (n[0] == 3 ? VARIANT(attend_pages) : wide ? attend_pages_half_wide : attend_pages_half)(
            out, sums, workspace, queries, keys, values, 0, &length, 0, table, 1, a, 1, b, 16 * c, d,
            a * 16 * d, 16 * d, 0, 16, c, 0.125f, 2);
    } else if (n[0] == 5) {
        float *x = read_floats(a * c);
        struct linear l = read_integers(b, c);
        float *addend = read_floats(a * b);
        out = allocate((size = a * b) * sizeof(float));
        (wide ? multiply_integers_wide : multiply_integers)(
            out, x, l.w, l.sums, l.factors, l.bias, addend, allocate(a * c * d * 2),
            allocate(a * 2 * sizeof(float)), a, b, c, d, 0, 2);
    } else if (n[0] == 15) {
        float *x = read_floats(a * b * d);
        struct linear l = read_integers(b * c, d);
        out = allocate((size = a * b * c) * sizeof(float));
        (wide ? multiply_heads_integers_wide : multiply_heads_integers)(
            out, x, l.w, l.sums, l.factors, allocate(a * b * d * 4), allocate(a * b * 2 * sizeof(float)),
            a, b, c, d, 2);
    } else if (n[0] == 6) {
        void *x = read_numbers(a * c), *up = read_numbers(b * c), *up_bias = read_numbers(b);
        void *down = read_numbers(b * c), *down_bias = read_numbers(c);
        if (d == 2) to_half(up, b * c), to_half(down, b * c);
        struct mlp_weights weights = {up, down, up_bias, down_bias, .d = c, .wide = b, .half = d == 2};
        out = allocate((size = a * c) * sizeof(float));
        VARIANT(mlp)(out, allocate(a * b * sizeof(float)), allocate(a * (b + 2) * sizeof(float)), x, &weights,
                     a, 2);
    } else if (n[0] == 7) {
        void *x = read_numbers(a * b), *addend = read_numbers(a * b);
        float *weight = read_floats(b), *bias = read_floats(b);
        out = allocate((size = a * b) * sizeof(float));
        VARIANT(add_norm)(addend, out, x, addend, weight, bias, 0, 0, 0, a, b, 0, 0, 2);
    } else if (n[0] == 8) {
        float *logits = read_floats(a * b), *logprobs = allocate(a * sizeof *logprobs);
        int64_t *tokens = allocate(a * sizeof *tokens);
        float *both = out = allocate((size = 2 * a) * sizeof *both);
        (wide ? choose_token_wide : choose_token)(logits, 0, 0, 0, 0, 0, 0, 0, 0, 0, tokens, logprobs,
                                                  a, b, b, 0, 0, 0, 0, 1, 0, 2);
        for (long i = 0; i < a; i++) both[2 * i] = (float)tokens[i], both[2 * i + 1] = logprobs[i];
    } else if (n[0] == 9 || n[0] == 10) {
        float *x = read_floats(a * c), *attended = read_floats(a * c), *norms = read_floats(4 * c);
        struct encoder_weights w = {.mlp_weight = norms, .mlp_bias = norms + c, .d = c, .wide = b,
                                    .norm_weight = norms + 2 * c, .norm_bias = norms + 3 * c};
        struct linear (*read)(long, long) = integers ? read_integers : read_tiles;
        w.out = read(c, c), w.up = read(b, c), w.down = read(c, b);
        long workspace = 96 * (c + 1538 + 768);
        out = allocate((size = a * c) * sizeof(float));
        (integers ? (wide ? encoder_rows_integers_wide : encoder_rows_integers)
                  : (wide ? encoder_rows_wide : encoder_rows))(
            x, out, 0, 0, attended, &w, allocate(2 * workspace * sizeof(float)), workspace, a, 2);
    } else {
        size = a * b * c * d;
        void *queries = read_numbers(size), *keys = read_numbers(size), *values = read_numbers(size);
        void *packed = allocate(a * c * 2 * ((b + 63) / 64 * 64) * d * 4);
        out = allocate(size * sizeof(float));
        VARIANT(encoder_attention)(
            out, packed, queries, keys, values, a, c, b, d, b * c * d, c * d, 0.125f, bfloat16, 2);
    }
    if (!bfloat16) return fwrite(out, sizeof(float), size, stdout) == (size_t)size ? 0 : 4;
    for (long i = 0; i < size; i++) {
        uint16_t parts[2] = {0, ((uint16_t *)out)[i]};
        if (fwrite(parts, sizeof parts, 1, stdout) != 1) return 4;
    }
    return 0;
}
