/* How do a kernel artifact, the pool artifact and the launcher call each other?
 *
 * A kernel artifact exports one function of type rt_run for each entry of its LaunchPlan, mostly
 *     void run(const void *args, int thread, int threads, rt_barrier *barrier);
 * The pool calls it once on each of `threads` threads, with `thread` from 0 (the caller's own thread) to
 * threads - 1. `args` is one C struct with natural alignment: the arguments of the plan's launch step, in
 * their order (ptr -> void *, i64 -> int64_t, i32 -> int32_t, f64 -> double, f32 -> float). It is the same
 * address on every thread and is not to be written.
 *
 * A kernel keeps no state between calls: what it needs beside `args` is the workspace, whose contents are
 * undefined at the start unless the plan fills it. It starts no threads and allocates no memory.
 *
 * barrier->wait(barrier, thread) returns when all `threads` threads have called it; what any of them wrote
 * before is visible to all after. Every thread of a run must make the same number of calls. It may be called
 * with threads == 1 (and returns at once). The end of a run is a barrier already.
 *
 * The pool artifact exports
 *     int   rt_pool_abi(void);                    RT_POOL_ABI of the header it was built with
 *     void *rt_pool_create(int threads);          NULL: no memory, no threads, or threads outside 1..RT_MAX_THREADS
 *     int   rt_pool_run(void *pool, rt_run fn, const void *args, int threads);
 *                                                 0 or an RT_E_. Any thread of the process may call it; runs of
 *                                                 more than one thread take turns. Never from within a run.
 *     void  rt_pool_destroy(void *pool);          waits for a run in progress, then joins the workers
 * A pool belongs to the process that made it. In a child made by fork() rt_pool_run answers RT_E_FORKED and
 * rt_pool_destroy does nothing: the child makes a pool of its own.
 *
 * Buffers: `out` never overlaps another buffer, but it may be exactly `c` (same address, pitch and size): read
 * an element of c before the first store to it. Absent buffers are null pointers.
 */
#ifndef ROOFTILE_ABI_H
#define ROOFTILE_ABI_H

#ifdef __cplusplus
extern "C" {
#endif

#define RT_POOL_ABI 1
#define RT_MAX_THREADS 1024
#define RT_E_THREADS 1 /* threads outside 1..created */
#define RT_E_FORKED 2  /* the pool was made before a fork, by the parent */

/* Artifacts are built with -fvisibility=hidden; only what carries this is seen from outside. */
#define RT_EXPORT __attribute__((visibility("default")))

typedef struct rt_barrier rt_barrier;

struct rt_barrier {
    void (*wait)(rt_barrier *self, int thread);
};

typedef void (*rt_run)(const void *args, int thread, int threads, rt_barrier *barrier);

#ifdef __cplusplus
}
#endif

#endif /* ROOFTILE_ABI_H */
