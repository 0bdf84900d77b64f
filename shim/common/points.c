/* Sequence points that were planned (points.h). A plan that cannot be read plans nothing and is said once: the run's check
 * that every fault fired then fails. */
#define _GNU_SOURCE
#include "points.h"

#include "config.h"
#include "history.h"
#include "hl_layout_node.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PLANS = 16, POINTS = 32 };

uint32_t hl_points_planned;
static struct {
    unsigned long point, call, signal, index;
} plans[PLANS];
static unsigned plan_count;
static uint64_t reached[POINTS];
static int is_read;

static int number(const char **at, unsigned long *value) {
    char *end;
    if (**at < '0' || **at > '9') return 0;
    *value = strtoul(*at, &end, 10);
    *at = *end == ':' ? end + 1 : end;
    return 1;
}

void hl_points_read(void) {
    if (__atomic_exchange_n(&is_read, 1, __ATOMIC_ACQ_REL)) return;
    int saved = errno;
    const char *at = hl_config("HOOKLAB_POINTS");
    uint32_t planned = 0;
    while (at && *at && plan_count < PLANS) {
        unsigned long point, call, signal, index;
        if (!number(&at, &point) || !number(&at, &call) || !number(&at, &signal) || !number(&at, &index) ||
            point >= POINTS || (*at && *at != ',')) {
            static const char line[] =
                "hooklab: HOOKLAB_POINTS is not POINT:CALL:SIGNAL:INDEX[,...]; nothing is planned\n";
            if (write(STDERR_FILENO, line, sizeof line - 1) < 0) { /* nobody reads it */
            }
            planned = 0;
            break;
        }
        plans[plan_count].point = point;
        plans[plan_count].call = call;
        plans[plan_count].signal = signal;
        plans[plan_count++].index = index;
        planned |= UINT32_C(1) << point;
        if (*at == ',') at++;
    }
    __atomic_store_n(&hl_points_planned, planned, __ATOMIC_RELEASE);
    errno = saved;
}

void hl_point_reached(unsigned point) {
    if (!(hl_points_planned >> point & 1)) return;
    int saved = errno;
    uint64_t call = __atomic_add_fetch(&reached[point], 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < plan_count; i++) {
        if (plans[i].point != point || plans[i].call != call) continue;
        struct hl_event event = {.event = HL_EVENT_FAULT,
                                 .source = HL_SOURCE_SHIM,
                                 .device = 0xFF,
                                 .name = 0xFFFF,
                                 .step = 0xFFFF,
                                 .result = (int32_t)plans[i].signal,
                                 .extra = point,
                                 .a = plans[i].index,
                                 .b = call,
                                 .c = plans[i].signal == SIGSTOP ? HL_ACTION_STOP : HL_ACTION_KILL};
        hl_history_add(&event);
        syscall(SYS_kill, getpid(), (int)plans[i].signal); /* the whole process, at this very place */
    }
    errno = saved;
}
