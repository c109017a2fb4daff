#include "threads.h"

/* The entry that GCC's code for `#pragma omp parallel` calls. GCC's and LLVM's OpenMP both have it,
   so the compiler needs no OpenMP, and the library is not linked with any: the loader finds the one
   that PyTorch has loaded. Where it finds none, loops run on one thread. */
extern void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags)
    __attribute__((weak));

struct loop {
    iteration *run;
    const void *arguments;
    long count, next;
};

static void work(void *data) {
    struct loop *loop = data;
    long index;
    while ((index = __atomic_fetch_add(&loop->next, 1, __ATOMIC_RELAXED)) < loop->count)
        loop->run(loop->arguments, index);
}

void run_parallel(iteration *run, const void *arguments, long count, int threads) {
    struct loop loop = {run, arguments, count, 0};
    if (threads > count) threads = (int)count;
    if (threads > 1 && GOMP_parallel)
        GOMP_parallel(work, &loop, (unsigned)threads, 0);
    else
        work(&loop);
}

int has_threads(void) { return GOMP_parallel != 0; }
