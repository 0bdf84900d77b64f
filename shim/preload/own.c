/* Which of NVML's PIDs are the container's (own.h). A process is ours only by a PID that NVML knows it by: the slot's host
 * PID, or its PID where its namespace is the one that NVML counts in (HOOKLAB_HOST_NAMESPACE, else the machine's first
 * one), or its PID here where NVML counts in this namespace.
 *
 * Invariants: nothing is guessed. NVML counts in a private namespace where every process that it lists lives here, one of
 * ours is among them by its PID here, and none by the PID that it has outside: a driver that counts outside lists other
 * processes than those. */
#define _GNU_SOURCE
#include "own.h"

#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t first_namespace = 4026531836; /* PROC_PID_INIT_INO of the kernel */

static uint64_t host_namespace(void) {
    const char *text = hl_config("HOOKLAB_HOST_NAMESPACE");
    return text && *text ? strtoull(text, NULL, 10) : first_namespace;
}

static uint32_t row_pid(const void *pids, unsigned row, size_t stride) {
    uint32_t pid;
    memcpy(&pid, (const char *)pids + row * stride, sizeof pid);
    return pid;
}

static bool lives_here(uint32_t pid) { return kill((pid_t)pid, 0) == 0 || errno == EPERM; }

static bool inner_numbers(const struct hl_own *own, const void *pids, unsigned count, size_t stride) {
    bool met = false;
    int saved = errno;
    for (unsigned row = 0; row < count; row++) {
        uint32_t pid = row_pid(pids, row, stride);
        bool here = lives_here(pid);
        errno = saved;
        if (!here || hl_own_listed(own, pid)) return false;
        for (uint32_t i = 0; i < own->count && !met; i++) met = own->process[i].here == pid;
    }
    return met;
}

bool hl_own_find(struct hl_own *own, int device, const void *pids, unsigned count, size_t stride) {
    own->count = 0;
    own->all = false;
    struct hl_ledger_process *rows = malloc(HL_OWN * sizeof *rows);
    int found = rows ? hl_ledger_processes(device, rows, HL_OWN) : -1;
    uint64_t mine = hl_pid_namespace(), host = host_namespace();
    for (int i = 0; i < found; i++)
        own->process[own->count++] = (struct hl_own_process){.listed = rows[i].host_pid ? rows[i].host_pid
                                                                       : rows[i].pid_namespace == host ? rows[i].pid
                                                                                                       : 0,
                                                             .here = rows[i].pid_namespace == mine ? rows[i].pid : 0,
                                                             .held = rows[i].held};
    free(rows);
    if (found < 0) return false;
    bool inner = mine != host && inner_numbers(own, pids, count, stride);
    own->all = true;
    for (uint32_t i = 0; i < own->count; i++) {
        if (inner) own->process[i].listed = own->process[i].here;
        own->all = own->all && own->process[i].listed;
    }
    return true;
}

const struct hl_own_process *hl_own_listed(const struct hl_own *own, uint32_t pid) {
    for (uint32_t i = 0; pid && i < own->count; i++)
        if (own->process[i].listed == pid) return &own->process[i];
    return NULL;
}
