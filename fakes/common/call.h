/* What surrounds every call of a fake driver: counting, planned faults, the history.
 *
 *     CUresult cuThing(...) {
 *         struct hl_call call;
 *         if (hl_fake_enter(&call, HL_cuThing)) return hl_fake_refuse(&call);
 *         ...
 *         return hl_fake_leave(&call, result, a, b);
 *     }
 *
 * The quiet path (no faults planned, no history of calls) is one locked add and two loads. Counting comes first, then
 * faults "before", then the driver's work, then faults "after"; the number of a call is what its counter says after the
 * add. A forced result of 0 means: the work is left out and success is reported. */
#ifndef HOOKLAB_CALL_H
#define HOOKLAB_CALL_H
#include <stddef.h>
#include <stdint.h>

#include "node.h"

enum { HL_AFTER_MAX = 8 };

struct hl_call {
    uint64_t start;  /* ns, only when armed */
    uint32_t number; /* n-th call of this name by this process, from 1 */
    uint32_t armed;
    int32_t code; /* forced result */
    uint16_t name;
    uint8_t after_count;
    uint16_t after[HL_AFTER_MAX];
    uint64_t after_number[HL_AFTER_MAX];
};

int hl_fake_enter_slow(struct hl_call *call);
int32_t hl_fake_leave_slow(struct hl_call *call, int32_t result, uint64_t a, uint64_t b);

static inline int hl_fake_enter(struct hl_call *call, uint16_t name) {
    call->number = __atomic_add_fetch(&hl_node.calls[name], 1, __ATOMIC_RELAXED);
    call->name = name;
    call->after_count = 0;
    call->armed = hl_node.header->fault_count | (hl_node.header->history_level > 1);
    return __builtin_expect(call->armed != 0, 0) ? hl_fake_enter_slow(call) : 0;
}

static inline int32_t hl_fake_leave(struct hl_call *call, int32_t result, uint64_t a, uint64_t b) {
    return __builtin_expect(call->armed | (uint32_t)result, 0) ? hl_fake_leave_slow(call, result, a, b) : result;
}

static inline int32_t hl_fake_refuse(struct hl_call *call) { return hl_fake_leave(call, call->code, 0, 0); }

/* Which device a call is about, by the node's count, 0xFF none: asked for the history only. Set by the library. */
extern uint8_t (*hl_fake_device)(void);

/* What the call of this thread has written for its caller, told by the body that wrote it, so that a planned fault can
 * spoil it. Only functions that tell can be spoilt (SPOILT in lab/spec/outputs.py). */
enum { HL_OUTPUTS = 4 };
struct hl_outputs {
    uint8_t wanted, count; /* wanted: a fault of this call will spoil them */
    struct {
        unsigned char *at;
        size_t bytes;
    } place[HL_OUTPUTS];
};
extern __thread struct hl_outputs hl_outputs __attribute__((tls_model("initial-exec")));

static inline void hl_output(void *at, size_t bytes) {
    if (__builtin_expect(hl_outputs.wanted != 0, 0) && at && hl_outputs.count < HL_OUTPUTS) {
        hl_outputs.place[hl_outputs.count].at = (unsigned char *)at;
        hl_outputs.place[hl_outputs.count++].bytes = bytes;
    }
}

void hl_fake_unsupported(unsigned name); /* counts a call of a name without behaviour */

/* Driver work that takes modelled time: HL_LATENCY_*. Work on a resource that the real driver serialises moves that
 * resource's busy_until on by one atomic add and sleeps to the end of its own share; no lock is held meanwhile. */
void hl_latency(uint32_t device, uint32_t which);
void hl_latency_units(uint32_t device, uint32_t which, uint64_t units_ppm); /* times units_ppm / 1,000,000 */
void hl_sleep_until(uint64_t mono_ns);
uint64_t hl_scaled(uint64_t modelled_ns); /* by the node's time scale */

/* A critical error of a device, which NVML tells those who asked for events. */
enum { HL_XID_MEMORY_FAULT = 31, HL_XID_OFF_THE_BUS = 79 };
void hl_xid(uint32_t device, uint32_t code);

/* Physical memory of a device, with the history's PHYS record. take: 0, or -1 when the device is full. */
int hl_phys_take(uint32_t device, uint32_t kind, uint64_t bytes);
void hl_phys_give(uint32_t device, uint32_t kind, uint64_t bytes);
#endif
