/* The most likely token of each row under the timestamp rules, and its log-probability:
   `slimwhisper.engine.rules` is the reference. It reads and writes all logits about ten times; here a
   row is read twice, from the CPU's cache the second time. Compiled twice: with WIDE, for sixteen
   floats at a time. */
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

struct choice {
    const float *logits;
    const uint8_t *enabled;
    const int64_t *initial_limit;
    const uint8_t *last, *before_last;
    const int64_t *latest, *count;
    int64_t *tokens;
    float *logprobs;
    long stride, size, eot, begin, end, no_timestamps;
    int rules;
};

static void choose(const void *arguments, long row) {
    const struct choice *c = arguments;
    const float *logits = c->logits + row * c->stride;
    struct best text = {-INFINITY, 0, 0}, time = text;
    int on = c->rules && c->enabled[row];
    if (!c->rules) add(&text, logits, 0, c->size);
    else {
        int first = on && !c->count[row], last = on && c->last[row];
        int pair = last && c->before_last[row] && !first, opened = last && !c->before_last[row];
        long earliest = c->begin, latest = c->end;
        if (on) earliest += c->latest[row] + !opened;
        if (first && c->begin + c->initial_limit[row] + 1 < latest)
            latest = c->begin + c->initial_limit[row] + 1;
        if (!pair && earliest < latest) add(&time, logits, earliest, latest);
        if (!first && !opened) {
            add(&text, logits, 0, c->eot);
            add(&text, logits, c->end, c->size);
        }
        if (!first) {
            long no = on ? c->no_timestamps : c->begin;
            add(&text, logits, c->eot, no);
            if (no < c->begin) add(&text, logits, no + 1, c->begin);
        }
        int time_wins = on && time.sum > 0 && logf(time.sum) + time.logit > text.logit;
        if (time_wins) text.sum = 0;
        if (time_wins || time.logit > text.logit) {
            struct best other = text;
            text = time, time = other;
        }
        if (time.sum > 0) text.sum += time.sum * expf(time.logit - text.logit);
    }
    c->tokens[row] = text.token;
    c->logprobs[row] = text.sum > 0 ? -logf(text.sum) : NAN; /* of a row of NaN or -infinity */
}

/* tokens and logprobs [rows] of logits [rows, size], `stride` apart, those of banned tokens -inf.
   enabled .. count [rows]: the state of each row, not read without `rules`. Text tokens are below eot
   and from `end` on, timestamps from `begin` to `end`; no_timestamps lies between eot and begin. */
void NAME(choose_token)(const float *logits, const uint8_t *enabled, const int64_t *initial_limit,
                        const uint8_t *last, const uint8_t *before_last, const int64_t *latest,
                        const int64_t *count, int64_t *tokens, float *logprobs, long rows,
                        long stride, long size, long eot, long begin, long end,
                        long no_timestamps, int rules, int threads) {
    struct choice c = {logits, enabled, initial_limit, last, before_last, latest, count,        tokens,
                       logprobs, stride, size,         eot,  begin,       end,    no_timestamps, rules};
    run_parallel(choose, &c, rows, threads);
}

END_OF_TARGET
