/* The most likely tokens of each row under the timestamp rules, or a random one, and their
   log-probabilities: `slimwhisper.engine.filters` is the reference. It reads and writes all logits
   about ten times; here a row is read two or three times, from the CPU's cache after the first.
   Compiled twice: with WIDE, for sixteen floats at a time. */
#include "threads.h"
#include "vectors.h"

#include <math.h>

#define PIECE 1024 /* logits whose maximum is found at a time */

/* The best of some tokens, and the sum of e^(logit - logit of the best). */
struct best {
    float logit, sum;
    long token;
};

INLINE float largest_of(const float *x, long count) {
    floats most = splat(-INFINITY);
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        floats v = load(x + i);
        ints larger = v > most;
        most = (floats)(((ints)v & larger) | ((ints)most & ~larger));
    }
    float result = -INFINITY;
    for (int j = 0; j < LANES; j++)
        if (most[j] > result) result = most[j];
    for (; i < count; i++)
        if (x[i] > result) result = x[i];
    return result;
}

/* The sum of e^(x - most). */
INLINE float sum_of_powers(const float *x, long count, float most) {
    floats sum = splat(0);
    long i = 0;
    for (; i + LANES <= count; i += LANES) sum += exponential(load(x + i) - most);
    float result = sum_of(sum);
    for (; i < count; i++) result += expf(x[i] - most);
    return result;
}

/* Adds the tokens from `begin` to `end`. */
static void add(struct best *best, const float *logits, long begin, long end) {
    struct best found = {-INFINITY, 0, 0};
    long piece = begin;
    for (long at = begin; at < end; at += PIECE) {
        float most = largest_of(logits + at, end - at < PIECE ? end - at : PIECE);
        if (most > found.logit) found.logit = most, piece = at;
    }
    if (found.logit == -INFINITY) return;
    for (found.token = piece; logits[found.token] != found.logit;) found.token++;
    found.sum = sum_of_powers(logits + begin, end - begin, found.logit);
    if (found.logit > best->logit) {
        struct best other = *best;
        *best = found, found = other;
    }
    if (found.sum > 0) best->sum += found.sum * expf(found.logit - best->logit);
}

/* Tokens from `begin` to `end` that the rules allow. */
struct range {
    long begin, end;
    int time; /* timestamps */
};

struct choice {
    const float *logits;
    const uint8_t *enabled;
    const int64_t *initial_limit;
    const uint8_t *last, *before_last;
    const int64_t *latest, *count;
    const float *temperatures;
    const int64_t *keys;
    const float *ranking;
    int64_t *tokens;
    float *logprobs;
    long stride, size, eot, begin, end, no_timestamps, most;
    int rules;
};

/* The ranges of a row, in order; returns how many. */
static int allowed(const struct choice *c, long row, struct range *ranges) {
    if (!c->rules) {
        ranges[0] = (struct range){0, c->size, 0};
        return 1;
    }
    int on = c->enabled[row], first = on && !c->count[row], last = on && c->last[row], n = 0;
    int pair = last && c->before_last[row] && !first, opened = last && !c->before_last[row];
    long earliest = c->begin, latest = c->end;
    if (on) earliest += c->latest[row] + !opened;
    if (first && c->begin + c->initial_limit[row] + 1 < latest)
        latest = c->begin + c->initial_limit[row] + 1;
    if (!first && !opened) ranges[n++] = (struct range){0, c->eot, 0};
    if (!first) {
        long no = on ? c->no_timestamps : c->begin;
        ranges[n++] = (struct range){c->eot, no, 0};
        if (no < c->begin) ranges[n++] = (struct range){no + 1, c->begin, 0};
    }
    if (!pair && earliest < latest) ranges[n++] = (struct range){earliest, latest, 1};
    if (!first && !opened) ranges[n++] = (struct range){c->end, c->size, 0};
    return n;
}

/* A random one of the allowed tokens: that with the shortest waiting time, which is exponential with
   the token's probability at the temperature as its rate; `slimwhisper.engine.sampling` has the same.
   As -log(u) >= 1 - u, few logarithms are computed. */
static long drawn(const struct choice *c, long row, const struct range *ranges, int n, float most) {
    const float *logits = c->logits + row * c->stride, sharpness = 1 / c->temperatures[row];
    uint64_t key = (uint64_t)c->keys[row];
    double best = 0; /* a probability over a time */
    long token = -1;
    for (const struct range *r = ranges; r < ranges + n; r++)
        for (long at = r->begin; at < r->end; at += LANES) {
            long count = r->end - at < LANES ? r->end - at : LANES;
            float some[LANES];
            memcpy(some, logits + at, count * sizeof *some);
            for (long j = count; j < LANES; j++) some[j] = -INFINITY;
            store(some, exponential((load(some) - most) * sharpness));
            for (long j = 0; j < count; j++) {
                if (!(some[j] > best * 0x1p-54)) continue; /* no time is shorter */
                uint64_t z = key + (uint64_t)(at + j + 1) * 0x9E3779B97F4A7C15u;
                z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
                z = (z ^ z >> 27) * 0x94D049BB133111EBu;
                double u = ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
                if (!(some[j] > best * (1 - u))) continue;
                double rate = some[j] / -log(u);
                if (rate > best) best = rate, token = at + j;
            }
        }
    return token;
}

/* The `most` best of the allowed tokens by their rank, the best first, and their logits less `shift`;
   banned tokens are left out, and the rest is -inf. */
static void best_of(const struct choice *c, long row, const struct range *ranges, int n, float shift) {
    const float *logits = c->logits + row * c->stride;
    const float *ranks = c->ranking ? c->ranking + row * c->size : logits;
    int64_t *tokens = c->tokens + row * c->most;
    float *found = c->logprobs + row * c->most, *last = found + c->most - 1;
    for (long i = 0; i < c->most; i++) tokens[i] = 0, found[i] = -INFINITY;
    for (const struct range *r = ranges; r < ranges + n; r++)
        for (long at = r->begin; at < r->end; at += PIECE) {
            long end = r->end - at < PIECE ? r->end : at + PIECE;
            if (!(largest_of(ranks + at, end - at) > *last)) continue;
            for (long token = at; token < end; token++) {
                if (!(ranks[token] > *last && logits[token] > -INFINITY)) continue;
                long i = c->most - 1;
                for (; i && found[i - 1] < ranks[token]; i--)
                    found[i] = found[i - 1], tokens[i] = tokens[i - 1];
                found[i] = ranks[token], tokens[i] = token;
            }
        }
    for (long i = 0; i < c->most; i++)
        found[i] = (found[i] == -INFINITY ? found[i] : logits[tokens[i]]) - shift;
}

static void choose(const void *arguments, long row) {
    const struct choice *c = arguments;
    const float *logits = c->logits + row * c->stride;
    struct range ranges[5];
    struct best text = {-INFINITY, 0, 0}, time = text;
    int n = allowed(c, row, ranges);
    for (int i = 0; i < n; i++)
        add(ranges[i].time ? &time : &text, logits, ranges[i].begin, ranges[i].end);
    int on = c->rules && c->enabled[row];
    int time_wins = on && time.sum > 0 && logf(time.sum) + time.logit > text.logit;
    if (time_wins) {
        text.sum = 0;
        for (int i = 0; i < n; i++)
            if (ranges[i].time) ranges[0] = ranges[i];
        n = 1;
    }
    if (time_wins || time.logit > text.logit) {
        struct best other = text;
        text = time, time = other;
    }
    if (time.sum > 0) text.sum += time.sum * expf(time.logit - text.logit);
    float log_sum = text.sum > 0 ? logf(text.sum) : NAN; /* of a row of NaN or -infinity */
    if (c->most > 1) {
        best_of(c, row, ranges, n, text.logit + log_sum);
        return;
    }
    long token = -1;
    if (c->temperatures && c->temperatures[row] > 0) token = drawn(c, row, ranges, n, text.logit);
    if (token < 0) token = text.token;
    c->tokens[row] = token;
    c->logprobs[row] = logits[token] - text.logit - log_sum;
}

/* tokens and logprobs [rows, most] of logits [rows, size], `stride` apart, those of banned tokens
   -inf: the best; of one token, where a row's temperature is above 0, a random one, by its key; of
   several, the best by ranking [rows, size]. temperatures, keys and ranking may be null. enabled ..
   count [rows]: the state of each row, not read without `rules`. Text tokens are below eot and from
   `end` on, timestamps from `begin` to `end`; no_timestamps lies between eot and begin. */
void NAME(choose_token)(const float *logits, const uint8_t *enabled, const int64_t *initial_limit,
                        const uint8_t *last, const uint8_t *before_last, const int64_t *latest,
                        const int64_t *count, const float *temperatures, const int64_t *keys,
                        const float *ranking, int64_t *tokens, float *logprobs, long rows, long stride,
                        long size, long eot, long begin, long end, long no_timestamps, long most,
                        int rules, int threads) {
    struct choice c = {logits, enabled, initial_limit, last,   before_last,   latest, count,
                       temperatures, keys, ranking,    tokens, logprobs,      stride, size,
                       eot,    begin,   end,           no_timestamps, most,   rules};
    run_parallel(choose, &c, rows, threads);
}

END_OF_TARGET
