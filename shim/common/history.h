/* Appends records to the history of a run (layout history.toml). Used by shim, fakes and caller alike. Without
 * HOOKLAB_HISTORY every call is a no-op. Lock-free: a ticket by atomic add, commit stored last. */
#ifndef HOOKLAB_HISTORY_H
#define HOOKLAB_HISTORY_H
#include <stdint.h>
struct hl_event { /* what the writer says; time, pid, tid, process and container are filled in */
    uint8_t event, source, route, device;
    uint16_t name, step;
    int32_t result;
    uint32_t extra;
    uint64_t a, b, c;
    uint64_t time_ns; /* 0 = now; else when it happened, e.g. taken under the lock that orders such events */
};
int hl_history_on(void); /* opens on first use */
void hl_history_add(const struct hl_event *event);
void hl_history_host_pid(uint32_t pid); /* from the node's reply */
uint64_t hl_now_ns(void);               /* CLOCK_MONOTONIC */
void hl_history_fork_child(void);       /* pid and tid change */
#endif
