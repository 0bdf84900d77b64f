/* The monitor's gate before the limiter: in a region of layout hami-1.2 a monitor may hold a container's launches back by
 * recent_kernel = -1, whether or not a core limit applies.
 *
 * Invariants: a launch that is not held back costs two loads of the region. Waiting is sleeping, and ends only when a
 * monitor says so (a monitor that died while it held launches back is for the next one to put right). Nothing is held
 * back in a capturing stream or inside a host function: others wait for those. */
#include "pacing.h"

#include "ledger.h"

#include <errno.h>
#include <time.h>

enum { NAP_LEAST_NS = 1000000, NAP_MOST_NS = 20000000 };

void hl_gate_wait(const struct hl_launch *launch) {
    static int said;
    if (HL_LIKELY(hl_ledger_may_launch())) return;
    if (hl_in_callback || hl_stream_captures(launch->stream, launch->per_thread)) return;
    int saved = errno;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        hl_log(1, "launches are held back by the container's monitor (recent_kernel is -1)");
    struct timespec nap = {.tv_nsec = NAP_LEAST_NS};
    while (!hl_ledger_may_launch()) {
        clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
        if (nap.tv_nsec < NAP_MOST_NS) nap.tv_nsec *= 2;
    }
    errno = saved;
}
