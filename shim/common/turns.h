/* Who is on a fake GPU, and when: the schedule of a device, in the node file, shared by all processes of the node.
 *
 * Time slices (measured on an H200): contexts of different processes take turns. A process that has work keeps the GPU for
 * slice_ns while others wait, a switch costs switch_ns (idle_switch_ns when the one before had nothing left), one that is
 * alone goes on without either. The work of one process runs in the order of its launches, whatever their streams.
 *
 * Nobody knows when a kernel will end: neighbours may come. So the end of work is a place in the process's own time, which
 * advances only while the process is on the GPU: a `moment` (HL_MOMENT_QUEUED: process slot, device, own time; any process
 * of the node can ask about it). The schedule itself is played up to now by whoever looks, under a lock, in the order of
 * virtual time; who is late with looking changes no number.
 *
 * Concurrent sharing (as under MPS): kernels of all processes start in the order of their launches when enough SMs are
 * free; their ends are known at launch, and moments are CLOCK_MONOTONIC.
 *
 * Invariants: a holder of the lock may die anywhere. Each change of who is on is written to the spare turn and made valid
 * by one store; what is written before that is the same when it is done again. base is the start of the node file, slot the
 * caller's process slot, now CLOCK_MONOTONIC ns. */
#ifndef HOOKLAB_TURNS_H
#define HOOKLAB_TURNS_H
#include <stdint.h>

#include "hl_layout_node.h"

struct hl_work {
    uint64_t ns;    /* own time that it takes */
    uint64_t after; /* it must not start before, CLOCK_MONOTONIC ns; 0 at once */
    uint32_t sms;   /* concurrent: SMs that it needs */
};

/* Queues a kernel and counts it; the moment of its end. *past (may be NULL): the newest moment of this process there that is over. */
uint64_t hl_turns_submit(void *base, uint32_t slot, uint32_t device, const struct hl_work *work, uint64_t now,
                         uint64_t *past);
/* A stamp behind `end`, which is a place of this process or 0: that place if it is ahead; now, if this process is on the
 * GPU, or was last; else it has to come on first, and the moment is when it does. */
uint64_t hl_turns_mark(void *base, uint32_t slot, uint32_t device, uint64_t end, uint64_t now);
/* Whether a moment is over. If not, *foreseen is when it will be if nobody comes or goes (a longer wait is cut), and
 * *soonest when it could be at best. Both may be NULL. */
int hl_turns_past(void *base, uint32_t slot, uint64_t moment, uint64_t now, uint64_t *foreseen, uint64_t *soonest);
/* When a moment was, which is over: CLOCK_MONOTONIC ns. Exact for the latest HL_TURN_STARTS times that its process came
 * onto the GPU, else the earliest of these. */
uint64_t hl_turns_when(void *base, uint32_t slot, uint64_t moment, uint64_t now);
/* Brings the busy intervals of a device up to now. 1 if anything is queued or running there, else 0. holder: the caller's
 * slot + 1, or HL_ACCOUNT_SERVER, which does not wait for the lock: -1 when it was not to be had. */
int hl_turns_look(void *base, uint32_t holder, uint32_t device, uint64_t now);
/* Whether the process has come onto the GPU between the two moments; for a reader that holds no lock. */
int hl_turns_worked(const void *base, uint32_t slot, uint32_t device, uint64_t since, uint64_t before);
/* Server: the process is gone from its `devices` devices. Opens a lock that it held, drops its work, gives its turn to the next. 0, or -1: a lock
 * was not to be had without waiting, try again. Idempotent. */
int hl_turns_leave(void *base, uint32_t slot, uint32_t devices, uint64_t now);

static inline uint64_t hl_moment(uint32_t slot, uint32_t device, uint64_t own) {
    return HL_MOMENT_QUEUED | (uint64_t)slot << HL_MOMENT_SLOT_SHIFT | (uint64_t)device << HL_MOMENT_DEVICE_SHIFT | own;
}
static inline uint32_t hl_moment_slot(uint64_t moment) {
    return (uint32_t)((moment & ~HL_MOMENT_QUEUED) >> HL_MOMENT_SLOT_SHIFT);
}
static inline uint32_t hl_moment_device(uint64_t moment) {
    return (uint32_t)(moment >> HL_MOMENT_DEVICE_SHIFT) & (HL_MAX_DEVICES - 1);
}
#endif
