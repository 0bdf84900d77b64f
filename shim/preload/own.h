/* The container's own processes, as NVML numbers them and as they are called here. */
#ifndef HOOKLAB_OWN_H
#define HOOKLAB_OWN_H
#include "ledger.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HL_OWN = 1024 };

struct hl_own {
    uint32_t count;
    bool all; /* NVML's number of every one is known */
    struct hl_own_process {
        uint32_t listed; /* NVML's number, 0 unknown */
        uint32_t here;   /* its PID in this namespace, 0: it lives in another one */
        uint64_t held;   /* bytes in the books on the device */
    } process[HL_OWN];
};

/* `pids`: a PID at the beginning of each row of NVML's list of the device, `stride` bytes a row. They tell whose numbers
 * NVML uses. False: there are no books. */
bool hl_own_find(struct hl_own *own, int device, const void *pids, unsigned count, size_t stride);
const struct hl_own_process *hl_own_listed(const struct hl_own *own, uint32_t pid); /* NULL: not the container's */
#endif
