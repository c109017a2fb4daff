#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* Threads that help the one that calls. Iterations are handed out one by one, and the caller takes
   them like its helpers: it waits only for those that a helper has begun, never for a helper that
   has no core to run on. Who waits spins for `SPIN` at most, then sleeps, so that other programs
   have the core; OpenMP's barrier, where all meet after each loop, spins for milliseconds. Each thread
   that calls has its own helpers, as with OpenMP. PyTorch's threads are OpenMP's: after one of its
   operators of 32,768 numbers or more, such as the logits of a row, the next step takes 4 ms longer
   (base, two cores), which is why tokens are chosen in C, and a step has no such operator. */
enum { SPIN = 100000, PAUSES = 8 }; /* nanoseconds; between two looks at the clock */

struct team {
    /* The loop, and how many of its iterations nobody has taken: `open` changes with every one of
       both, so a helper that took an iteration knows that what it read is of that loop. */
    unsigned long long open; /* number of the loop << 32 | iterations */
    iteration *run;
    const void *arguments;
    long count;
    int threads;    /* that take part in the loop, with the caller */
    int unfinished; /* iterations */
    int helpers, sleepers, caller_sleeps, ends;
    int users; /* threads that may read this: the last one frees it */
    pthread_mutex_t lock;
    pthread_cond_t opened, finished;
    int forks; /* of the process, at its birth: a child has none of its threads */
};

struct helper {
    struct team *team;
    int number; /* from 1 */
};

static __thread struct team *mine;
static pthread_key_t key; /* whose destructor ends a thread's helpers */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int forks;

#define READ(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define WRITE(x, value) __atomic_store_n(&(x), value, __ATOMIC_SEQ_CST)
#define ADD(x, value) __atomic_add_fetch(&(x), value, __ATOMIC_SEQ_CST)

static long nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void rest(void) {
    for (int i = 0; i < PAUSES; i++)
#if defined __x86_64__
        __builtin_ia32_pause();
#elif defined __aarch64__
        __asm__ volatile("isb");
#endif
}

/* Whether `condition` came true within SPIN. */
#define SPINS_UNTIL(condition)                                                                     \
    ({                                                                                             \
        int true_now = (condition);                                                                \
        for (long end = true_now ? 0 : nanoseconds() + SPIN; !true_now && nanoseconds() < end;) { \
            rest();                                                                                \
            true_now = (condition);                                                                \
        }                                                                                          \
        true_now;                                                                                  \
    })

/* After this, who has looked with the lock in hand waits: it is woken without the lock, which it
   needs at once. */
static void pass_through(pthread_mutex_t *lock) {
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
}

/* Iterations, as long as there are some for the thread of this number: 0 is the caller. */
static void take(struct team *t, int number) {
    unsigned long long open = READ(t->open);
    while ((unsigned)open && number < READ(t->threads)) {
        if (!__atomic_compare_exchange_n(&t->open, &open, open - 1, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            continue;
        t->run(t->arguments, t->count - (unsigned)open);
        if (!ADD(t->unfinished, -1) && READ(t->caller_sleeps)) {
            pass_through(&t->lock);
            pthread_cond_signal(&t->finished);
        }
        open = READ(t->open);
    }
}

/* Whether a helper has something to do. */
static int is_open(struct team *t, int number) {
    return READ(t->ends) || ((unsigned)READ(t->open) && number < READ(t->threads));
}

static void leave(struct team *t) {
    if (!ADD(t->users, -1)) free(t);
}

static void *help(void *data) {
    struct helper me = *(struct helper *)data;
    struct team *t = me.team;
    free(data);
    while (!READ(t->ends)) {
        if (!SPINS_UNTIL(is_open(t, me.number))) {
            pthread_mutex_lock(&t->lock);
            ADD(t->sleepers, 1); /* before the last look: who opens a loop looks for sleepers after it */
            while (!is_open(t, me.number)) pthread_cond_wait(&t->opened, &t->lock);
            ADD(t->sleepers, -1);
            pthread_mutex_unlock(&t->lock);
        }
        take(t, me.number);
    }
    leave(t);
    return 0;
}

static void end_team(void *data) {
    struct team *t = data;
    if (t->forks != forks) return; /* its threads are another process's */
    pthread_mutex_lock(&t->lock);
    WRITE(t->ends, 1);
    pthread_cond_broadcast(&t->opened);
    pthread_mutex_unlock(&t->lock);
    leave(t);
}

static void count_fork(void) { forks++; }

static void prepare(void) {
    pthread_key_create(&key, end_team);
    pthread_atfork(0, 0, count_fork);
}

/* The calling thread's team, with as many helpers as can be had; null without memory. */
static struct team *team_of(int threads) {
    pthread_once(&once, prepare);
    if (!mine || mine->forks != forks) {
        struct team *t = calloc(1, sizeof *t);
        if (!t) return 0;
        pthread_mutex_init(&t->lock, 0);
        pthread_cond_init(&t->opened, 0);
        pthread_cond_init(&t->finished, 0);
        t->forks = forks, t->users = 1;
        pthread_setspecific(key, mine = t);
    }
    while (mine->helpers < threads - 1) {
        struct helper *helper = malloc(sizeof *helper);
        if (!helper) break;
        *helper = (struct helper){mine, mine->helpers + 1};
        ADD(mine->users, 1);
        sigset_t all, before; /* signals are for the program's own threads */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        pthread_t thread;
        int failed = pthread_create(&thread, 0, help, helper);
        pthread_sigmask(SIG_SETMASK, &before, 0);
        if (failed) {
            ADD(mine->users, -1);
            free(helper);
            break;
        }
        pthread_detach(thread);
        mine->helpers++;
    }
    return mine;
}

void run_parallel(iteration *run, const void *arguments, long count, int threads) {
    struct team *t = threads > 1 && count > 1 ? team_of(threads) : 0;
    if (!t) {
        for (long index = 0; index < count; index++) run(arguments, index);
        return;
    }
    t->run = run, t->arguments = arguments, t->count = count;
    WRITE(t->threads, threads);
    WRITE(t->unfinished, (int)count);
    WRITE(t->open, ((READ(t->open) >> 32) + 1) << 32 | (unsigned)count);
    if (READ(t->sleepers)) {
        pass_through(&t->lock);
        pthread_cond_broadcast(&t->opened);
    }
    take(t, 0);
    if (SPINS_UNTIL(!READ(t->unfinished))) return;
    pthread_mutex_lock(&t->lock);
    WRITE(t->caller_sleeps, 1);
    while (READ(t->unfinished)) pthread_cond_wait(&t->finished, &t->lock);
    WRITE(t->caller_sleeps, 0);
    pthread_mutex_unlock(&t->lock);
}
