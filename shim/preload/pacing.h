/* What the files of the limiter share (launch.c, pacing*.c): one pacer a device of this process, the launches that go
 * through it, and the measurement of what they cost.
 *
 *   launch.c          the launch entries of the driver
 *   pacing.c          the limiter: passes a launch, holds it back, or lets it by and counts why
 *   pacing_clock.c    its clock and its sleep
 *   pacing_gate.c     the monitor that may hold launches back, where the layout has one
 *   pacing_lease.c    the engine's side: leases and ticks, through the region
 *   pacing_measure.c  how long kernels take: estimates by function and grid, brackets of events on the user's streams
 *   pacing_sample.c   what NVML says of this container and its neighbours
 *   pacing_board.c    what the paced processes of the node tell each other of their work
 *   pacing_row.c      one row of that
 *   pacing_divide.c   who had what of a time in which several had work
 *
 * Invariants: a pacer's fields are touched under its mutex; the mutex is never held across a call of the driver, of the
 * engine or of NVML, nor while anybody sleeps. Waiting is sleeping, never spinning. */
#ifndef HOOKLAB_PACING_H
#define HOOKLAB_PACING_H
#include "pacing_divide.h"
#include "preload.h"

#include "hl_layout_hooklab_1.h"

#include <pthread.h>

enum {
    HL_PACE_UNREAD,
    HL_PACE_UNLIMITED,
    HL_PACE_LIMITED,
    HL_PACE_GATED /* no limit, but a monitor */,
    HL_PACE_SEEN /* no limit, first launches are looked at */
};
extern int hl_pacing;                    /* HL_PACE_*; relaxed: a process that has no core limit reads it and goes on */
extern __thread unsigned hl_in_callback; /* this thread runs a host function */

struct hl_launch {
    int entry, id;      /* HL_ENTRY_*, name id */
    const void *object; /* function or executable graph */
    uint64_t blocks;    /* saturated */
    uint64_t threads;   /* of a block */
    CUstream stream;    /* as the caller gave it */
    bool per_thread;    /* the entry's default stream is the thread's own */
};

struct hl_estimate { /* what one (function, grid) costs; relaxed atomics, a lost update is a lost sample */
    uint64_t key, ns;
    uint32_t samples;
};

enum { HL_LANES = 32, HL_BRACKETS = 64, HL_KEYS = 8, HL_EVENTS = 2 * (HL_BRACKETS + HL_LANES) };

struct hl_bracket { /* work between two events of one stream */
    CUcontext context;
    CUevent start, end;
    uint64_t charged;  /* ns estimated at launch */
    uint64_t ahead;    /* ns of unmeasured work that lies before it on the stream and ends with it */
    uint64_t expected; /* when it should be done */
    uint64_t begun;    /* not before this, CLOCK_MONOTONIC */
    uint64_t gap;      /* ns between the first event and the kernel that are not the kernel's; 0: the stream was busy */
    struct hl_lane *lane;
    uint64_t serial; /* of the lane when it was ended: unchanged, the stream has nothing more to do */
    uint32_t launches, ahead_launches, strangers, keys;
    struct {
        struct hl_estimate *estimate;
        uint64_t charged, launches;
    } key[HL_KEYS];
};

struct hl_lane { /* one stream with work of ours */
    CUstream stream;
    CUcontext context;
    bool used, per_thread;
    bool open;           /* work.start is recorded, work is being measured */
    uint32_t launching;  /* threads between their charge and the end of their driver call */
    uint64_t serial;     /* launches so far */
    uint64_t drain;      /* when the stream should have nothing left to do */
    uint64_t unmeasured; /* ns launched since the last measurement and not inside one */
    uint64_t lazy;       /* ns of them that may still be in flight */
    uint32_t lazy_launches;
    struct hl_bracket work;
};

struct hl_pacer {
    pthread_mutex_t mutex;
    int device;
    bool limited;
    bool blocks;  /* tokens are thread blocks, else GPU ns */
    bool bounded; /* work in flight is bounded */
    bool known;   /* the two above are */

    bool many; /* more than one context was seen: lanes are told apart by context, too */
    CUcontext context;
    struct hl_region_device *row;
    struct hl_board_row *board; /* NULL: there is none */
    bool asked_board;
    int64_t tokens;               /* leased and unspent */
    uint64_t lease_end;           /* then they go back */
    uint64_t pass_until;          /* the policy failed: launches pass until then */
    uint64_t in_flight;           /* ns, estimated */
    uint32_t launches, strangers; /* in flight; strangers: of functions that were never measured */
    uint32_t closed;              /* brackets in the list */
    bool polling;
    CUevent horizon;     /* the latest end that was seen */
    uint64_t horizon_ns; /* when that was, CLOCK_MONOTONIC */
    CUcontext horizon_context;
    struct hl_lane *recent;
    struct hl_lane lane[HL_LANES];
    struct hl_bracket bracket[HL_BRACKETS]; /* oldest first */
    struct {
        CUcontext context;
        CUevent event;
    } spare[HL_EVENTS];
    uint32_t spares;
};

struct hl_pace {            /* one launch on its way; lives on the caller's stack */
    struct hl_pacer *pacer; /* NULL: not paced, nothing to undo */
    struct hl_lane *lane;
    struct hl_estimate *estimate;
    uint64_t charged; /* ns */
    int64_t tokens;
    uint64_t before; /* when the driver was called; 0 = not asked for */
    int entry;
    bool slow;  /* the lane waits for the end of the call */
    bool close; /* the bracket ends behind this launch */
    bool stranger;
};

/* -- pacing.c -- */
bool hl_pace_enter(struct hl_pace *pace,
                   const struct hl_launch *launch); /* true: inside the frame until hl_pace_leave */
void hl_pace_leave(struct hl_pace *pace, CUresult result);
void hl_pace_unpaced(int entry, int why);  /* counts a launch that passes beside the limiter */
void hl_pace_instead(void);                /* the policy asked for cannot be used: the default one applies */
struct hl_region_slot *hl_pace_slot(void); /* this process's counters; never NULL */
extern struct hl_pacer hl_pacers[HL_DEVICES];

/* -- pacing_clock.c -- */
uint64_t hl_pace_now(void);      /* CLOCK_MONOTONIC, cheaper */
uint64_t hl_pace_true_now(void); /* itself; ties the other one to it */
void hl_pace_nap(uint64_t ns);

/* -- pacing_measure.c; M: the pacer's mutex is held -- */
struct hl_estimate *hl_estimate_of(const struct hl_launch *launch);
struct hl_lane *hl_lane_of(struct hl_pacer *pacer, const struct hl_launch *launch, CUcontext context); /* M; or NULL */
void hl_lane_charge(struct hl_pacer *pacer, struct hl_lane *lane, struct hl_estimate *estimate, uint64_t ns,
                    uint64_t now); /* M */
void hl_lane_refused(struct hl_pacer *pacer, struct hl_lane *lane, uint64_t ns,
                     bool stranger);                                          /* M: takes a charge back */
void hl_lane_settle_lazy(struct hl_pacer *pacer, struct hl_lane *lane);       /* M: what was lazy has drained */
void hl_lane_discard(struct hl_pacer *pacer, struct hl_lane *lane);           /* M: gives an open bracket up */
bool hl_lane_begin(struct hl_pacer *pacer, struct hl_lane *lane);             /* records the first event */
void hl_lane_end(struct hl_pacer *pacer, struct hl_lane *lane, uint64_t gap); /* records the last one */
void hl_lanes_close(struct hl_pacer *pacer, CUcontext context, uint64_t now); /* at a gate: ends what is open */
void hl_measure_poll(struct hl_pacer *pacer);                                 /* takes what has completed */
void hl_gate_wait(const struct hl_launch *launch); /* pacing_gate.c: returns when no monitor holds launches back */
bool hl_stream_captures(CUstream stream, bool per_thread); /* or cannot be asked */
void hl_measure_context_ended(CUcontext context);

/* -- pacing_lease.c -- */
enum hl_lease { HL_LEASE_GRANTED, HL_LEASE_WAIT, HL_LEASE_FAULT, HL_LEASE_ABSENT, HL_LEASE_BLIND, HL_LEASE_REENTRY };
bool hl_lease_features(struct hl_pacer *pacer); /* boots the engine; false: there is none */
enum hl_lease hl_lease_ask(struct hl_pacer *pacer, int64_t need, uint64_t now, int64_t *answer);

void hl_lease_tick(struct hl_pacer *pacer, uint64_t now);

/* -- pacing_sample.c -- */
struct hl_sample {
    bool usable, known, fresh;
    bool exact; /* from the board: shares are exact, and `raw` is what was measured of the same time */
    uint64_t time, own, all, window, own_ns, neighbours, raw;
    uint64_t cut;             /* the board: up to where it has been read */
    unsigned members, others; /* the board: processes, and those of other containers */
};
void hl_sample_take(int device, bool board, uint64_t cut, struct hl_sample *sample);

/* -- pacing_board.c -- */
struct hl_board_row *hl_board_take(int device); /* a row of this process; NULL: no board, or it is full */
/* What everybody had since `cut` (0: never read). False: there is no board here. */
bool hl_board_sample(int device, uint64_t cut, uint64_t now, struct hl_sample *sample);
void hl_board_leave(void);
void hl_board_fork_child(void);
#endif
