/* How the limiter of rig.c is stepped, by ctypes or by served.c. */
#ifndef HOOKLAB_PACING_RIG_H
#define HOOKLAB_PACING_RIG_H
#include <stdint.h>

#define RIG __attribute__((visibility("default")))

enum rig_what { WENT = 1, PASSED, NAPS, LEASES, OBSERVES };

struct talk { /* what it says when it comes back */
    int64_t what;
    uint64_t ns; /* NAPS: how long */
    int64_t cost;
    uint64_t now, busy, window;
    uint64_t *words;
};

RIG int rig_open(const char *region, int robust, int percent, uint32_t policy, uint64_t now);
RIG void rig_clock(uint64_t now);
RIG void rig_sample(int usable, int fresh, uint64_t own, uint64_t all, uint64_t window, uint64_t neighbours);
RIG void rig_seen(void);
RIG void rig_launch(uint64_t key, uint64_t blocks, uint64_t ns, int result, struct talk *out);
RIG void rig_go_on(int64_t answer, struct talk *out);
RIG void rig_state(int64_t *out);
RIG void rig_estimate(uint64_t key, uint64_t blocks, uint64_t *out);
RIG int rig_words(uint64_t *out);
RIG void rig_close(void);
RIG void rig_kill(void);
RIG void rig_forget(void);
RIG void rig_plant(void);
#endif
