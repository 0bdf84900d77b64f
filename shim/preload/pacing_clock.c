/* The limiter's clock and its sleep: the processor's counter, tied to CLOCK_MONOTONIC by whoever goes the slow way.
 *
 * Invariants: hl_pace_now is CLOCK_MONOTONIC until it is tied, and afterwards as near to it as the counter is even; it
 * makes no system call. Waiting is sleeping. */
#include "pacing.h"

#include "history.h"

#include <time.h>

struct tie {
    uint64_t ns, ticks, scale; /* ns = ticks x scale >> 24 */
};
static struct tie ties[2];
static const struct tie *tied; /* release/acquire */

static inline uint64_t ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return 0;
#endif
}

uint64_t hl_pace_now(void) {
    const struct tie *tie = __atomic_load_n(&tied, __ATOMIC_ACQUIRE);
    if (HL_UNLIKELY(!tie)) return hl_now_ns();
    return tie->ns + (uint64_t)((unsigned __int128)(ticks() - tie->ticks) * tie->scale >> 24);
}

uint64_t hl_pace_true_now(void) {
    static struct tie first;
    static uint32_t busy;
    uint64_t now = hl_now_ns(), count = ticks();
    const struct tie *tie = __atomic_load_n(&tied, __ATOMIC_ACQUIRE);
    if (tie && now - tie->ns < 1000000000) return now;
    if (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) return now;
    if (!first.ns) {
        first = (struct tie){now, count, 0};
    } else if (now - first.ns > 10000000 && count > first.ticks) {
        struct tie *next = &ties[tie == &ties[0]];
        *next =
            (struct tie){now, count, (uint64_t)(((unsigned __int128)(now - first.ns) << 24) / (count - first.ticks))};
        __atomic_store_n(&tied, next, __ATOMIC_RELEASE);
        first = (struct tie){now, count, 0};
    }
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
    return now;
}

void hl_pace_nap(uint64_t ns) {
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}
