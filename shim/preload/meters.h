/* Memory that the driver takes in steps of its own and says how much: one meter a pool, and one a device for graphs.
 *
 * What is booked for a meter follows what the driver reports. A read counts only if nobody else's was booked since it was
 * made, so the last book is always of a read made after the last change. Private to the pools and graphs. */
#ifndef HOOKLAB_METERS_H
#define HOOKLAB_METERS_H
#include "ledger.h"
#include "preload.h"

struct hl_meter {
    uint64_t key; /* pool handle, or HL_METER_GRAPH + device; 0 = free */
    uint64_t booked;
    uint64_t filled; /* bytes of the allocations noted in it */
    uint32_t live;   /* how many */
    uint32_t flying; /* calls under way that may make it grow */
    uint32_t version;
    int device;    /* -1: host memory, never charged */
    bool finished; /* destroyed: the driver does not report it any more, and keeps what allocations lie in */
};

enum { HL_METERS = 1024 };
static const uint64_t HL_METER_GRAPH = UINT64_C(1) << 63;

struct hl_meter *hl_meter_find(uint64_t key);
struct hl_meter *hl_meter_watch(uint64_t key, int device); /* finds or makes; NULL: too many */
void hl_meter_finish(struct hl_meter *meter);              /* its pool was destroyed */
void hl_meter_end(struct hl_meter *meter);                 /* nothing of it is left */
void hl_meter_flies(struct hl_meter *meter, int more);
/* Books what the driver reports now. With a ticket (the call that may have made it grow) growth beyond it is asked for:
 * the answer is that of a charge, and the ticket is used up. Without one it is booked as it is. */
int32_t hl_meter_settle(struct hl_meter *meter, struct hl_ticket *ticket);
uint64_t hl_meter_room(const struct hl_meter *meter); /* bytes that lie in it idle, as far as is known */
#endif
