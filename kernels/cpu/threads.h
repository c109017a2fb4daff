/* Loops on several threads, of which those that have a core do the work. */
#ifndef SLIMWHISPER_THREADS_H
#define SLIMWHISPER_THREADS_H

#define FEW 8 /* rows that one thread norms or rounds sooner than several start */

/* One iteration; `arguments` are the loop's. */
typedef void iteration(const void *arguments, long index);

/* All iterations from 0 to `count`, in any order, on at most this many threads. */
void run_parallel(iteration *run, const void *arguments, long count, int threads);

/* Parts of a product of this many rows: where it takes long, more than threads, as one of them may
   lose its core. */
static inline long parts_for(long rows, int threads) {
    return threads > 1 && rows >= 16 ? 4 * threads : threads;
}

#endif
