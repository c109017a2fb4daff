/* Loops on the threads of PyTorch's OpenMP. */
#ifndef SLIMWHISPER_THREADS_H
#define SLIMWHISPER_THREADS_H

/* One iteration; `arguments` are the loop's. */
typedef void iteration(const void *arguments, long index);

/* All iterations from 0 to `count`, in any order, on at most this many threads. */
void run_parallel(iteration *run, const void *arguments, long count, int threads);

#endif
