/* Moments (turns.h) as the fake driver uses them: asking, waiting, and the times that events were. */
#include "fake.h"

#include <time.h>

#include "history.h"
#include "turns.h"

int moment_past(uint64_t moment) {
    return !moment || hl_turns_past(hl_node.base, hl_node.slot, moment, hl_now_ns(), NULL, NULL);
}

uint64_t moment_foreseen(uint64_t moment) {
    uint64_t foreseen = 0;
    return moment && !hl_turns_past(hl_node.base, hl_node.slot, moment, hl_now_ns(), &foreseen, NULL) ? foreseen : 0;
}

/* A neighbour that comes makes it later, one that dies earlier: the long part of a wait looks again, at the latest when it
 * could be over at best. */
void moment_wait(uint64_t moment) {
    enum { LOOK_NS = 10000000 };
    uint64_t foreseen, soonest;
    if (!moment) return;
    for (;;) {
        uint64_t now = hl_now_ns();
        if (hl_turns_past(hl_node.base, hl_node.slot, moment, now, &foreseen, &soonest)) return;
        uint64_t look = soonest > now + LOOK_NS ? soonest : now + LOOK_NS;
        if (foreseen <= look) {
            hl_sleep_until(foreseen);
        } else {
            struct timespec until = {(time_t)(look / 1000000000u), (long)(look % 1000000000u)};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        }
    }
}

/* Events whose time is still a place in this process's queue, in the order of their places. */
static struct event *first, *last;
static unsigned listed; /* atomic: how many these are */

void moment_forget(struct event *e) {
    if (!e->place_next && !e->place_before && first != e) return;
    __atomic_fetch_sub(&listed, 1, __ATOMIC_RELAXED);
    *(e->place_before ? &e->place_before->place_next : &first) = e->place_next;
    *(e->place_next ? &e->place_next->place_before : &last) = e->place_before;
    e->place_next = e->place_before = NULL;
}

/* Under the lock: those that are over get their times, as long as the schedule remembers them; `most` of them. */
static void settle(unsigned most) {
    while (first && most--) {
        struct event *e = first;
        uint64_t moment = __atomic_load_n(e->time, __ATOMIC_ACQUIRE);
        if (!moment_past(moment)) return;
        moment_forget(e);
        (void)moment_time(e);
    }
}

void moment_settle(void) {
    if (!__atomic_load_n(&listed, __ATOMIC_RELAXED)) return;
    fake_lock();
    settle(~0u);
    fake_unlock();
}

void moment_remember(struct event *e) {
    fake_lock();
    moment_forget(e);
    settle(2);
    e->place_before = last;
    *(last ? &last->place_next : &first) = e;
    last = e;
    __atomic_fetch_add(&listed, 1, __ATOMIC_RELAXED);
    fake_unlock();
}

uint64_t moment_time(struct event *e) {
    uint64_t moment = __atomic_load_n(e->time, __ATOMIC_ACQUIRE);
    if (!(moment & HL_MOMENT_QUEUED)) return moment;
    uint64_t time = hl_turns_when(hl_node.base, hl_node.slot, moment, hl_now_ns());
    __atomic_compare_exchange_n(e->time, &moment, time, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    return time;
}
