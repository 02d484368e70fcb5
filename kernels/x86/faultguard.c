/* Where did a candidate fault?
 *
 * The process of a candidate calls rt_guard_install(fd) before it runs anything. On SIGSEGV, SIGBUS, SIGILL
 * or SIGFPE, on any of its threads, one line goes to fd,
 *     fault <signal> <address in hex> <1 for a write, else 0> <trap number>
 * and the process then dies of that very signal. The worker compares the address with the guard pages around
 * the buffers it gave, and so tells "wrote 4 bytes past the end of out" from a crash.
 */
#define _GNU_SOURCE
#include "rooftile_abi.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define STACK_BYTES 65536

static volatile int report_fd = -1;
static volatile sig_atomic_t reported;
static unsigned char stack_bytes[STACK_BYTES];

static char *put_number(char *at, uint64_t value, unsigned base)
{
    char digits[20];
    int n = 0;
    do {
        digits[n++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value != 0);
    while (n > 0)
        *at++ = digits[--n];
    return at;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const ucontext_t *machine = context;
    /* The first fault is the cause; others may follow on other threads while the process dies. */
    if (!reported) {
        reported = 1;
        char line[80];
        char *at = line;
        memcpy(at, "fault ", 6);
        at = put_number(at + 6, (uint64_t)number, 10);
        *at++ = ' ';
        at = put_number(at, (uint64_t)(uintptr_t)info->si_addr, 16);
        *at++ = ' ';
        /* Bit 1 of the page fault's error code: the access was a write. */
        at = put_number(at, number == SIGSEGV ? (uint64_t)(machine->uc_mcontext.gregs[REG_ERR] >> 1 & 1) : 0, 10);
        *at++ = ' ';
        at = put_number(at, (uint64_t)machine->uc_mcontext.gregs[REG_TRAPNO], 10);
        *at++ = '\n';
        ssize_t written = write(report_fd, line, (size_t)(at - line));
        (void)written;
    }
    /* SA_RESETHAND has restored the default action: returning runs the instruction again and dies of it. A
     * signal that somebody sent instead has to be sent again. */
    if (info->si_code <= 0)
        raise(number);
}

/* 0, or -1 where the system refuses. */
RT_EXPORT int rt_guard_install(int fd)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    /* The main thread may fault because its stack ran out. */
    stack_t stack = {.ss_sp = stack_bytes, .ss_size = STACK_BYTES};
    if (sigaltstack(&stack, NULL) != 0)
        return -1;
    report_fd = fd;
    reported = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], &action, NULL) != 0)
            return -1;
    }
    return 0;
}
