/* Who runs a kernel's threads? One small pool for each process, built as an artifact of its own.
 *
 * Plain C11, pthreads and Linux futexes; the interface and its rules are in include/rooftile_abi.h.
 *
 * Each worker has a word of its own in a cache line of its own ("go"), so a run with fewer threads than were
 * created touches and wakes only those. A worker that has nothing to do spins with pause, so that kernels called
 * back to back start within a microsecond; from POLITE_AT_NS on it offers its CPU to others each time round
 * (sched_yield), and after SPIN_NS it sleeps in the kernel, so that an idle pool costs nothing. Waking a sleeper
 * takes some 5 us, on virtual machines up to 200 us, as long as a small GEMM. (OpenBLAS spins for 30 to 110 ms.)
 * Waiting inside a run goes through the same stages, sooner: on a machine with few or shared CPUs the thread
 * waited for may be the one that needs this CPU, and spinning would keep it out for a whole time slice.
 */
#define _GNU_SOURCE
#include "rooftile_abi.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINE 64
#define SPIN_NS 2000000     /* an idle worker sleeps after this: longer than what lies between two GEMMs of a model */
#define POLITE_AT_NS 50000  /* and yields from here on: longer than the gap between two calls from Python */
#define YIELD_AT_NS 5000 /* inside a run: by then the other thread is late, perhaps preempted */
#define SLEEP_AT_NS 200000

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() ((void)0)
#endif

typedef _Atomic uint32_t word;

struct barrier {
    rt_barrier face; /* first, so that rt_barrier * is struct barrier * */
    uint32_t threads;
    _Alignas(LINE) word arrived;
    _Alignas(LINE) word phase;
    word sleepers;
};

struct worker {
    _Alignas(LINE) word go; /* number of the last order given to this worker */
    word asleep;
    pthread_t thread;
    struct pool *pool;
    int index;
};

struct pool {
    int created;
    unsigned generation;
    pthread_mutex_t turn; /* one run at a time */
    rt_run fn;
    const void *args;
    int threads;
    int stop;
    struct barrier barrier;
    _Alignas(LINE) word pending; /* workers that have not finished this run */
    word caller_asleep;
    _Alignas(LINE) struct worker workers[]; /* workers[0] is the caller's place and stays unused */
};

/* Counts forks: a pool made before the last fork of this process has no threads here. */
static _Atomic unsigned fork_generation;
static pthread_once_t fork_hook = PTHREAD_ONCE_INIT;

static void forked(void) { atomic_fetch_add(&fork_generation, 1u); }
static void hook_fork(void) { (void)pthread_atfork(NULL, NULL, forked); }

static void futex_wait(word *at, uint32_t expected)
{
    (void)syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(word *at, int waiters)
{
    (void)syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, waiters, NULL, NULL, 0);
}

static int64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint32_t peek(word *at) { return atomic_load_explicit(at, memory_order_acquire); }

/* Spins while *at equals old: with pause, from yield_at_ns on with sched_yield. True once it differs, false
 * when limit_ns passed first. The clock is read once in 32 pauses (about a microsecond). */
static int spin_while(word *at, uint32_t old, int64_t yield_at_ns, int64_t limit_ns)
{
    int64_t start = 0, spent = 0;
    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (peek(at) != old)
                return 1;
            PAUSE();
        }
        if (start == 0)
            start = now_ns();
        else
            spent = now_ns() - start;
        if (spent >= limit_ns)
            return peek(at) != old;
        if (spent >= yield_at_ns)
            (void)sched_yield();
    }
}

/* The announcement (asleep) and the word waited on are both sequentially consistent: either the waker sees the
 * announcement or the sleeper sees the new word, so no wake-up is lost. */
static void sleep_while(word *at, uint32_t old, word *asleep)
{
    atomic_fetch_add(asleep, 1u);
    while (atomic_load(at) == old)
        futex_wait(at, old);
    atomic_fetch_sub(asleep, 1u);
}

/* Sense-reversing: the phase counts the barriers passed, and cannot move before this thread has arrived. */
static void barrier_wait(rt_barrier *self, int thread)
{
    struct barrier *b = (struct barrier *)self;
    (void)thread;
    if (b->threads == 1)
        return;
    uint32_t phase = peek(&b->phase);
    if (atomic_fetch_add_explicit(&b->arrived, 1u, memory_order_acq_rel) + 1 == b->threads) {
        atomic_store_explicit(&b->arrived, 0u, memory_order_relaxed);
        atomic_fetch_add(&b->phase, 1u);
        if (atomic_load(&b->sleepers) != 0)
            futex_wake(&b->phase, INT_MAX);
        return;
    }
    if (!spin_while(&b->phase, phase, YIELD_AT_NS, SLEEP_AT_NS))
        sleep_while(&b->phase, phase, &b->sleepers);
}

static void *work(void *arg)
{
    struct worker *me = arg;
    struct pool *pool = me->pool;
    uint32_t seen = 0;
    char name[16];
    (void)snprintf(name, sizeof name, "rooftile-%d", me->index);
    (void)pthread_setname_np(pthread_self(), name);
    for (;;) {
        if (!spin_while(&me->go, seen, POLITE_AT_NS, SPIN_NS))
            sleep_while(&me->go, seen, &me->asleep);
        seen = peek(&me->go);
        if (pool->stop)
            return NULL;
        pool->fn(pool->args, me->index, pool->threads, &pool->barrier.face);
        /* The pool outlives this even if the caller returns at once: destroying it joins this thread first. */
        if (atomic_fetch_sub(&pool->pending, 1u) == 1 && atomic_load(&pool->caller_asleep) != 0)
            futex_wake(&pool->pending, 1);
    }
}

static void order(struct worker *worker)
{
    atomic_fetch_add(&worker->go, 1u);
    if (atomic_load(&worker->asleep) != 0)
        futex_wake(&worker->go, 1);
}

static void dismiss(struct pool *pool, int started)
{
    pool->stop = 1;
    for (int i = 1; i < started; i++)
        order(&pool->workers[i]);
    for (int i = 1; i < started; i++)
        (void)pthread_join(pool->workers[i].thread, NULL);
    (void)pthread_mutex_destroy(&pool->turn);
    free(pool);
}

RT_EXPORT int rt_pool_abi(void) { return RT_POOL_ABI; }

RT_EXPORT void *rt_pool_create(int threads)
{
    if (threads < 1 || threads > RT_MAX_THREADS)
        return NULL;
    (void)pthread_once(&fork_hook, hook_fork);
    size_t bytes = sizeof(struct pool) + (size_t)threads * sizeof(struct worker);
    struct pool *pool = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
    if (pool == NULL)
        return NULL;
    memset(pool, 0, bytes);
    pool->created = threads;
    pool->generation = atomic_load(&fork_generation);
    pool->barrier.face.wait = barrier_wait;
    (void)pthread_mutex_init(&pool->turn, NULL);

    /* Signals are for the program's own threads; those that report a fault of this very thread stay. */
    sigset_t blocked, before;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGABRT);
    (void)pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int started = 1;
    for (; started < threads; started++) {
        struct worker *worker = &pool->workers[started];
        worker->pool = pool;
        worker->index = started;
        if (pthread_create(&worker->thread, NULL, work, worker) != 0)
            break;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started < threads) {
        dismiss(pool, started);
        return NULL;
    }
    return pool;
}

RT_EXPORT int rt_pool_run(void *handle, rt_run fn, const void *args, int threads)
{
    struct pool *pool = handle;
    if (pool == NULL || pool->generation != atomic_load_explicit(&fork_generation, memory_order_relaxed))
        return RT_E_FORKED;
    if (threads < 1 || threads > pool->created)
        return RT_E_THREADS;
    if (threads == 1) { /* needs nobody: several threads of the program may do this at once */
        struct barrier alone = {.face = {barrier_wait}, .threads = 1};
        fn(args, 0, 1, &alone.face);
        return 0;
    }
    (void)pthread_mutex_lock(&pool->turn);
    pool->fn = fn;
    pool->args = args;
    pool->threads = threads;
    pool->barrier.threads = (uint32_t)threads;
    atomic_store(&pool->pending, (uint32_t)threads - 1);
    for (int i = 1; i < threads; i++)
        order(&pool->workers[i]);
    fn(args, 0, threads, &pool->barrier.face);
    for (uint32_t left; (left = peek(&pool->pending)) != 0;)
        if (!spin_while(&pool->pending, left, YIELD_AT_NS, SLEEP_AT_NS))
            sleep_while(&pool->pending, left, &pool->caller_asleep);
    (void)pthread_mutex_unlock(&pool->turn);
    return 0;
}

RT_EXPORT void rt_pool_destroy(void *handle)
{
    struct pool *pool = handle;
    if (pool == NULL || pool->generation != atomic_load(&fork_generation))
        return; /* of a parent process: its threads are not here, its memory is only a copy */
    (void)pthread_mutex_lock(&pool->turn);
    (void)pthread_mutex_unlock(&pool->turn);
    dismiss(pool, pool->created);
}
