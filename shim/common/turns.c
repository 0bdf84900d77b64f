/* See turns.h. */
#include "turns.h"

#include <stddef.h>
#include <string.h>

#include "nodelock.h"

typedef struct hl_node_header header_t;

enum {
    WORDS = HL_MAX_PROCESSES / 64,
    CELL_NS = 1000000,
    FORESEEN_STEPS = 4096 /* changes that are looked ahead */
};
static const uint64_t never = UINT64_MAX;
_Static_assert(sizeof((struct hl_node_turns *)0)->waiting == WORDS * 8, "a bit a slot");
_Static_assert(HL_MOMENT_OWN_MASK >> HL_MOMENT_DEVICE_SHIFT == 0 && HL_MAX_DEVICES <= 16 && HL_MAX_PROCESSES <= 2048,
               "slot, device and own time fit into a moment");

/* A schedule being played: the real one, or a copy to look ahead with. */
struct scene {
    const struct hl_node_device *device;
    struct hl_node_turns *real;    /* NULL: a copy, nothing is written */
    struct hl_node_share *shares;  /* by slot */
    struct hl_node_interval *ring; /* busy intervals of the device */
    uint64_t capacity, *head;
    uint64_t slice_ns, switch_ns, idle_switch_ns;
    struct hl_node_turn turn;
    uint64_t *waiting, *words, *held, *held_words;
    uint64_t *done; /* a copy's own `done` by slot, NULL: that of the shares */
};

static struct hl_node_turns *turns_of(void *base, uint32_t device) {
    header_t *h = base;
    return (struct hl_node_turns *)(void *)((char *)base + h->turns_offset) + device;
}

static struct hl_node_share *shares_of(void *base, uint32_t device) {
    header_t *h = base;
    return (struct hl_node_share *)(void *)((char *)base + h->share_offset) + (size_t)device * h->process_capacity;
}

static struct hl_node_device *device_of(void *base, uint32_t device) {
    return (struct hl_node_device *)(void *)((char *)base + ((header_t *)base)->device_offset) + device;
}

static struct hl_node_process *process_of(void *base, uint32_t slot) {
    return (struct hl_node_process *)(void *)((char *)base + ((header_t *)base)->process_offset) + slot;
}

static uint64_t scaled(const header_t *h, uint64_t ns) {
    return h->time_scale_ppm == 1000000 ? ns : (uint64_t)((unsigned __int128)ns * h->time_scale_ppm / 1000000);
}

static inline void open_scene(struct scene *c, void *base, uint32_t device) {
    header_t *h = base;
    struct hl_node_turns *t = turns_of(base, device);
    struct hl_node_device *d = device_of(base, device);
    c->device = d;
    c->real = t;
    c->shares = shares_of(base, device);
    c->ring =
        (struct hl_node_interval *)(void *)((char *)base + h->interval_offset) + (size_t)device * h->interval_capacity;
    c->capacity = h->interval_capacity;
    c->head = &d->interval_head;
    c->slice_ns = scaled(h, d->slice_ns);
    if (c->slice_ns == 0) c->slice_ns = 1;
    c->switch_ns = scaled(h, d->switch_ns);
    c->idle_switch_ns = scaled(h, d->idle_switch_ns);
    c->turn = t->turn[t->which & 1];
    c->waiting = t->waiting;
    c->words = &t->words;
    c->held = t->held;
    c->held_words = &t->held_words;
    c->done = NULL;
}

static uint64_t *done_of(struct scene *c, uint32_t slot) { return c->done ? &c->done[slot] : &c->shares[slot].done; }

/* ---- sets of slots ------------------------------------------------------------------------------------------ */

static void put(uint64_t *set, uint64_t *words, uint32_t slot) {
    *words |= UINT64_C(1) << slot / 64; /* first: a word that this does not show is not looked at */
    set[slot / 64] |= UINT64_C(1) << slot % 64;
}

static void drop(uint64_t *set, uint64_t *words, uint32_t slot) {
    set[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    if (set[slot / 64] == 0) *words &= ~(UINT64_C(1) << slot / 64);
}

/* The next slot of the set from `from` on, in a circle; -1 none. */
static int64_t next_in(const uint64_t *set, const uint64_t *words, uint32_t from) {
    if (*words == 0) return -1;
    uint32_t word = from / 64 % WORDS;
    uint64_t bits = set[word] & ~UINT64_C(0) << from % 64;
    for (unsigned i = 0; i <= WORDS; i++) {
        if (bits) return (int64_t)word * 64 + __builtin_ctzll(bits);
        word = (word + 1) % WORDS;
        bits = set[word];
    }
    return -1;
}

/* Whether anybody but the active one has work. */
static inline int others_wait(const struct scene *c) {
    uint32_t slot = c->turn.active - 1, word = slot / 64;
    return (*c->words & ~(UINT64_C(1) << word)) || (c->waiting[word] & ~(UINT64_C(1) << slot % 64));
}

/* ---- busy intervals ----------------------------------------------------------------------------------------- */

/* Puts a busy interval of the process into the ring. Work of microseconds would push a second of history out of it, so work
 * that starts within a millisecond of its last entry makes that entry longer: the busy time stays exact, its place moves by
 * less than the millisecond. */
static void begin_entry(struct scene *c, uint32_t slot, uint64_t at) {
    struct hl_node_share *s = &c->shares[slot];
    if (c->capacity == 0) return;
    struct hl_node_interval *i = &c->ring[(s->entry - 1) % c->capacity];
    if (s->entry && at - s->entry_start < CELL_NS && i->sequence == s->entry && i->slot == slot) {
        s->entry_base = i->end_ns;
        return;
    }
    uint64_t head = *c->head;
    i = &c->ring[head % c->capacity];
    __atomic_store_n(&i->sequence, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&i->start_ns, at, __ATOMIC_RELEASE);
    __atomic_store_n(&i->end_ns, at, __ATOMIC_RELAXED);
    i->slot = slot;
    i->share_permille = 1000;
    __atomic_store_n(&i->sequence, head + 1, __ATOMIC_RELEASE);
    __atomic_store_n(c->head, head + 1, __ATOMIC_RELEASE);
    s->entry = head + 1;
    s->entry_start = s->entry_base = at;
}

/* The process has been busy for `ns` since begin_entry. */
static void extend_entry(struct scene *c, uint32_t slot, uint64_t ns) {
    struct hl_node_share *s = &c->shares[slot];
    if (c->capacity == 0 || s->entry == 0) return;
    struct hl_node_interval *i = &c->ring[(s->entry - 1) % c->capacity];
    if (i->sequence == s->entry) __atomic_store_n(&i->end_ns, s->entry_base + ns, __ATOMIC_RELEASE);
}

/* ---- turns -------------------------------------------------------------------------------------------------- */

static void commit(struct scene *c) {
    if (!c->real) return;
    uint32_t spare = !(c->real->which & 1);
    c->real->turn[spare] = c->turn;
    __atomic_store_n(&c->real->which, spare, __ATOMIC_RELEASE);
}

/* When the active process, which is on, has nothing left that it may run. */
static inline uint64_t end_of_run(const struct scene *c) {
    const struct hl_node_share *s = &c->shares[c->turn.active - 1];
    if (s->hold_until && s->hold_own < s->submitted && s->hold_own >= c->turn.own) {
        uint64_t stop = c->turn.resumed + (s->hold_own - c->turn.own);
        if (s->hold_until > stop) return stop;
    }
    return c->turn.resumed + (s->submitted - c->turn.own);
}

/* Own time of a process at a moment up to which the schedule was played. */
static inline uint64_t own_at(const struct scene *c, uint32_t slot, uint64_t now) {
    if (c->turn.active != slot + 1 || c->turn.switch_end) return c->done ? c->done[slot] : c->shares[slot].done;
    uint64_t end = end_of_run(c), to = now < end ? now : end;
    return to > c->turn.resumed ? c->turn.own + (to - c->turn.resumed) : c->turn.own;
}

static void come_on(struct scene *c, uint64_t at) {
    uint32_t slot = c->turn.active - 1;
    c->turn.switch_end = 0;
    c->turn.own = *done_of(c, slot);
    c->turn.resumed = c->turn.slice_began = at;
    if (!c->real) return;
    struct hl_node_share *s = &c->shares[slot];
    s->start[s->starts % HL_TURN_STARTS] = (struct hl_node_start){c->turn.own, at};
    __atomic_store_n(&s->starts, s->starts + 1, __ATOMIC_RELEASE);
    begin_entry(c, slot, at);
}

/* Gives the GPU to `slot`, after the time of a switch when somebody else had it before. */
static void turn_to(struct scene *c, uint32_t slot, uint64_t at) {
    uint64_t cost = c->turn.last == 0 || c->turn.last == slot + 1 ? 0
                    : c->turn.drained                             ? c->idle_switch_ns
                                                                  : c->switch_ns;
    c->turn.active = slot + 1;
    c->turn.at = at;
    if (cost) c->turn.switch_end = at + cost;
    else come_on(c, at);
}

/* Takes the active process off the GPU and lets the next one on. */
static void turn_over(struct scene *c, uint64_t at, int drained) {
    uint32_t slot = c->turn.active - 1;
    if (!c->turn.switch_end) {
        *done_of(c, slot) = c->turn.own + (at - c->turn.resumed);
        if (c->real) extend_entry(c, slot, at - c->turn.resumed);
        c->turn.last = c->turn.active;
        c->turn.drained = (uint32_t)drained;
    }
    if (drained) {
        drop(c->waiting, c->words, slot);
        if (c->shares[slot].submitted > *done_of(c, slot)) put(c->held, c->held_words, slot);
    }
    c->turn.active = 0;
    c->turn.switch_end = 0;
    c->turn.at = at;
    int64_t next = next_in(c->waiting, c->words, (slot + 1) % HL_MAX_PROCESSES);
    if (next >= 0) turn_to(c, (uint32_t)next, at);
}

/* Somebody else has work from `at` on: the running slice ends at its next boundary. */
static void others_came(struct scene *c, uint64_t at) {
    if (c->turn.switch_end || at <= c->turn.slice_began) return;
    uint64_t whole = (at - c->turn.slice_began - 1) / c->slice_ns; /* a boundary that is right now still counts */
    c->turn.slice_began += whole * c->slice_ns;
}

/* The process has work that may run from `at` on. */
static void becomes_ready(struct scene *c, uint32_t slot, uint64_t at) {
    drop(c->held, c->held_words, slot);
    int first = c->turn.active && c->turn.active != slot + 1 && !others_wait(c);
    put(c->waiting, c->words, slot);
    if (first) others_came(c, at);
    else if (!c->turn.active) turn_to(c, slot, at);
    c->turn.at = at;
}

static uint64_t next_hold(const struct scene *c, uint32_t *slot) {
    uint64_t found = never;
    if (__builtin_expect(*c->held_words == 0, 1)) return found;
    int64_t first = next_in(c->held, c->held_words, 0), s = first;
    while (s >= 0) {
        if (c->shares[s].hold_until < found) {
            found = c->shares[s].hold_until;
            *slot = (uint32_t)s;
        }
        s = next_in(c->held, c->held_words, (uint32_t)(s + 1) % HL_MAX_PROCESSES);
        if (s == first) break;
    }
    return found;
}

/* The next change: the active one comes on, has nothing left, or its slice is over; never if nothing is on. */
static inline uint64_t next_change(const struct scene *c, int *drained) {
    const struct hl_node_turn *t = &c->turn;
    *drained = 0;
    if (t->switch_end) return t->switch_end;
    if (!t->active) return never;
    uint64_t end = end_of_run(c), over = t->slice_began + c->slice_ns;
    *drained = end <= over || !others_wait(c);
    return *drained ? end : over;
}

/* Makes one change, if there is one up to `to`. */
static int step(struct scene *c, uint64_t to) {
    int drained;
    uint32_t held = 0;
    uint64_t change = next_change(c, &drained), hold = next_hold(c, &held), at = hold < change ? hold : change;
    if (__builtin_expect(at > to || at == never, 1)) return 0;
    if (hold < change) {
        becomes_ready(c, held, at > c->turn.at ? at : c->turn.at);
    } else if (c->turn.switch_end) {
        c->turn.at = at;
        come_on(c, at);
    } else {
        turn_over(c, at, drained);
    }
    commit(c);
    return 1;
}

static inline void play(struct scene *c, uint64_t to) {
    while (step(c, to)) {}
}

/* When the process reaches `own` if nobody comes or goes; what can be said of it when that is far. */
static uint64_t foresee(const struct scene *real, uint32_t slot, uint64_t own, uint64_t now) {
    struct scene c = *real;
    uint64_t done[HL_MAX_PROCESSES], waiting[WORDS], held[WORDS], words = *real->words, held_words = *real->held_words;
    memcpy(waiting, real->waiting, sizeof waiting);
    memcpy(held, real->held, sizeof held);
    for (uint32_t word = 0; word < WORDS; word++)
        for (uint64_t bits = waiting[word] | held[word]; bits; bits &= bits - 1) {
            uint32_t s = word * 64 + (uint32_t)__builtin_ctzll(bits);
            done[s] = real->shares[s].done;
        }
    done[slot] = real->shares[slot].done;
    c.real = NULL;
    c.done = done;
    c.waiting = waiting;
    c.words = &words;
    c.held = held;
    c.held_words = &held_words;
    for (int i = 0; i < FORESEEN_STEPS; i++) {
        int drained;
        uint32_t unused;
        uint64_t change = next_change(&c, &drained), hold = next_hold(&c, &unused), at = hold < change ? hold : change;
        if (c.turn.active == slot + 1 && !c.turn.switch_end) {
            uint64_t end = own > c.turn.own ? c.turn.resumed + (own - c.turn.own) : c.turn.resumed;
            if (end <= at) return end;
        }
        if (at == never) return never;
        (void)step(&c, at);
    }
    return c.turn.at > now ? c.turn.at : now;
}

/* ---- concurrent sharing -------------------------------------------------------------------------------------- */

/* sm_free is kept in order, the SM that is free first coming first. A process's `done` is the end of its latest kernel.
 * Nothing that could start overtakes, but what waits for its own stream keeps nobody else waiting. */
static uint64_t submit_beside(struct scene *c, uint32_t slot, const struct hl_work *work, uint64_t now) {
    uint32_t count = c->device->sm_count < HL_TURN_SMS ? c->device->sm_count : HL_TURN_SMS;
    uint32_t sms = work->sms < 1 ? 1 : work->sms < count ? work->sms : count;
    uint64_t *free = c->real->sm_free, start = free[sms - 1];
    if (start < now) start = now;
    if (start < c->real->latest_start) start = c->real->latest_start;
    if (work->after > start) start = work->after;
    else c->real->latest_start = start;
    uint64_t end = start + work->ns < start ? never >> 1 : start + work->ns;
    uint32_t above = sms, place; /* takes those that are free last of all that are free by then */
    while (above < count && free[above] <= start) above++;
    for (place = above; place < count && free[place] < end; place++) {}
    memmove(free + above - sms, free + above, (place - above) * sizeof *free);
    for (uint32_t i = place - sms; i < place; i++) free[i] = end;
    struct hl_node_share *s = &c->shares[slot];
    uint64_t from = start > s->done ? start : s->done;
    if (from < end) {
        begin_entry(c, slot, from);
        extend_entry(c, slot, end - from);
        s->done = s->submitted = end;
    }
    return end;
}

/* ---- what others call ----------------------------------------------------------------------------------------- */

static inline void enter(struct scene *c, void *base, uint32_t slot, uint32_t device, uint64_t *now) {
    hl_node_lock(&turns_of(base, device)->lock, slot + 1);
    open_scene(c, base, device);
    if (*now < c->turn.at) *now = c->turn.at;
    play(c, *now);
}

static inline void leave(struct scene *c) { hl_node_unlock(&c->real->lock); }

static inline int concurrent(void *base, uint32_t device) {
    return device_of(base, device)->sharing == HL_SHARING_CONCURRENT;
}

static uint64_t queue(struct scene *c, uint32_t slot, uint64_t ns, uint64_t after, uint64_t now) {
    struct hl_node_share *s = &c->shares[slot];
    uint64_t before = s->submitted, most = HL_MOMENT_OWN_MASK - before;
    if (__builtin_expect(after > now, 0)) {
        if (!(s->hold_until > now && s->hold_own < before)) {
            s->hold_own = before;
            s->hold_until = after;
        } else if (s->hold_until < after) {
            s->hold_until = after;
        }
    }
    s->submitted = before + (ns < most ? ns : most);
    if (c->waiting[slot / 64] & UINT64_C(1) << slot % 64) return s->submitted;
    if (c->held[slot / 64] & UINT64_C(1) << slot % 64) return s->submitted;
    if (s->submitted == before) return before;
    if (s->hold_until > now && s->hold_own < s->submitted) put(c->held, c->held_words, slot);
    else becomes_ready(c, slot, now);
    commit(c);
    return s->submitted;
}

/* The common case, which changes nothing but the end: it is on, has more to do, and nobody's turn comes meanwhile. Own time
 * that it has had, or never when this is another case. */
static inline uint64_t add_behind(void *base, struct hl_node_turns *t, uint32_t slot, uint32_t device, uint64_t ns,
                                  uint64_t now) {
    const struct hl_node_turn *turn = &t->turn[t->which & 1];
    if (turn->active != slot + 1 || turn->switch_end || t->held_words) return never;
    if (t->words != UINT64_C(1) << slot / 64 || t->waiting[slot / 64] != UINT64_C(1) << slot % 64) return never;
    struct hl_node_share *s = &shares_of(base, device)[slot];
    if (s->hold_until || now < turn->at || turn->resumed + (s->submitted - turn->own) <= now) return never;
    uint64_t most = HL_MOMENT_OWN_MASK - s->submitted;
    s->submitted += ns < most ? ns : most;
    return turn->own + (now - turn->resumed);
}

uint64_t hl_turns_submit(void *base, uint32_t slot, uint32_t device, const struct hl_work *work, uint64_t now,
                         uint64_t *past) {
    struct scene c;
    struct hl_node_turns *t = turns_of(base, device);
    uint64_t end, had;
    hl_node_lock(&t->lock, slot + 1);
    if (__builtin_expect(concurrent(base, device), 0)) {
        open_scene(&c, base, device);
        end = submit_beside(&c, slot, work, now);
        if (past) *past = now;
    } else if (!work->after && (had = add_behind(base, t, slot, device, work->ns, now)) != never) {
        end = hl_moment(slot, device, shares_of(base, device)[slot].submitted);
        if (past) *past = hl_moment(slot, device, had);
    } else {
        open_scene(&c, base, device);
        if (now < c.turn.at) now = c.turn.at;
        play(&c, now);
        end = hl_moment(slot, device, queue(&c, slot, work->ns, work->after, now));
        if (past) *past = hl_moment(slot, device, own_at(&c, slot, now));
    }
    /* Only this process counts here, and its threads are under the lock: no locked addition. */
    uint64_t *kernels = &process_of(base, slot)->device[device].kernels;
    __atomic_store_n(kernels, __atomic_load_n(kernels, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    hl_node_unlock(&t->lock);
    return end;
}

uint64_t hl_turns_mark(void *base, uint32_t slot, uint32_t device, uint64_t end, uint64_t now) {
    struct scene c;
    if (concurrent(base, device)) return now;
    enter(&c, base, slot, device, &now);
    uint64_t found = now;
    uint32_t whose = c.turn.active ? c.turn.active : c.turn.last; /* idle, it is still the last one's */
    if (end && (end & HL_MOMENT_OWN_MASK) > own_at(&c, slot, now)) found = end;
    else if (whose && (whose != slot + 1 || c.turn.switch_end))
        found = hl_moment(slot, device, queue(&c, slot, 1, 0, now));
    leave(&c);
    return found;
}

int hl_turns_past(void *base, uint32_t slot, uint64_t moment, uint64_t now, uint64_t *foreseen, uint64_t *soonest) {
    if (!(moment & HL_MOMENT_QUEUED)) {
        if (foreseen) *foreseen = moment;
        if (soonest) *soonest = moment;
        return moment <= now;
    }
    struct scene c;
    uint32_t whose = hl_moment_slot(moment), device = hl_moment_device(moment);
    if (whose >= ((header_t *)base)->process_capacity || device >= ((header_t *)base)->device_count) return 1;
    enter(&c, base, slot, device, &now);
    uint64_t own = moment & HL_MOMENT_OWN_MASK, had = own_at(&c, whose, now);
    int past = had >= own;
    if (!past && foreseen) *foreseen = foresee(&c, whose, own, now);
    if (!past && soonest) *soonest = now + (own - had);
    leave(&c);
    return past;
}

uint64_t hl_turns_when(void *base, uint32_t slot, uint64_t moment, uint64_t now) {
    if (!(moment & HL_MOMENT_QUEUED)) return moment;
    struct scene c;
    uint32_t whose = hl_moment_slot(moment), device = hl_moment_device(moment);
    uint64_t own = moment & HL_MOMENT_OWN_MASK, found = now;
    enter(&c, base, slot, device, &now);
    const struct hl_node_share *s = &c.shares[whose];
    uint64_t kept = s->starts < HL_TURN_STARTS ? s->starts : HL_TURN_STARTS;
    for (uint64_t i = 0; i < kept; i++) { /* newest first; the start at which it stood ready counts, not one after it */
        const struct hl_node_start *start = &s->start[(s->starts - 1 - i) % HL_TURN_STARTS];
        found = start->at;
        if (start->own < own) {
            found = start->at + (own - start->own);
            break;
        }
    }
    leave(&c);
    return found;
}

int hl_turns_look(void *base, uint32_t holder, uint32_t device, uint64_t now) {
    struct scene c;
    uint32_t *word = &turns_of(base, device)->lock;
    if (holder != (uint32_t)HL_ACCOUNT_SERVER) hl_node_lock(word, holder);
    else if (!hl_node_try_lock(word, holder)) return -1;
    open_scene(&c, base, device);
    int busy;
    if (concurrent(base, device)) {
        busy = c.real->sm_free[(c.device->sm_count < HL_TURN_SMS ? c.device->sm_count : HL_TURN_SMS) - 1] > now;
    } else {
        if (now < c.turn.at) now = c.turn.at;
        play(&c, now);
        if (c.turn.active && !c.turn.switch_end) extend_entry(&c, c.turn.active - 1, now - c.turn.resumed);
        busy = c.turn.active != 0 || *c.held_words != 0;
    }
    leave(&c);
    return busy;
}

/* Concurrent: the busy intervals of work that will not come. */
static void forget(struct scene *c, uint32_t slot, uint64_t now) {
    uint64_t head = *c->head, oldest = head > c->capacity ? head - c->capacity : 0;
    for (uint64_t position = head; position > oldest; position--) {
        struct hl_node_interval *i = &c->ring[(position - 1) % c->capacity];
        if (i->slot == slot && i->end_ns > now) i->end_ns = i->start_ns > now ? i->start_ns : now;
    }
    c->shares[slot].submitted = c->shares[slot].done = now;
}

/* Whoever waits for what the process had queued waits no longer; own time goes on with whoever gets the slot. */
static void take_off(struct scene *c, uint32_t slot, uint64_t now) {
    struct hl_node_share *s = &c->shares[slot];
    uint64_t queued = s->submitted;
    s->submitted = own_at(c, slot, now);
    s->hold_until = 0;
    drop(c->held, c->held_words, slot);
    if (c->turn.active == slot + 1) turn_over(c, now, 1);
    else drop(c->waiting, c->words, slot);
    commit(c);
    s->submitted = s->done = queued > HL_MOMENT_OWN_MASK / 2 ? 0 : queued; /* work without an end: begin anew */
}

static int has_work(void *base, uint32_t slot, uint32_t device, uint64_t now) {
    const struct hl_node_share *s = &shares_of(base, device)[slot];
    return concurrent(base, device) ? s->done > now : s->submitted != s->done;
}

int hl_turns_worked(const void *base, uint32_t slot, uint32_t device, uint64_t since, uint64_t before) {
    const header_t *h = base;
    const struct hl_node_share *s = (const struct hl_node_share *)(const void *)((const char *)base + h->share_offset) +
                                    (size_t)device * h->process_capacity + slot;
    uint64_t at = __atomic_load_n(&s->entry_start, __ATOMIC_RELAXED),
             starts = __atomic_load_n(&s->starts, __ATOMIC_ACQUIRE);
    int worked = at >= since && at < before;
    for (uint64_t i = 0; !worked && i < starts && i < HL_TURN_STARTS; i++) {
        at = __atomic_load_n(&s->start[i].at, __ATOMIC_RELAXED);
        worked = at >= since && at < before;
    }
    return worked;
}

int hl_turns_leave(void *base, uint32_t slot, uint32_t devices, uint64_t now) {
    int busy = 0;
    for (uint32_t device = 0; device < devices; device++) {
        struct hl_node_turns *t = turns_of(base, device);
        uint32_t word = __atomic_load_n(&t->lock, __ATOMIC_ACQUIRE);
        if ((word & ~(uint32_t)HL_ACCOUNT_WAITERS) == slot + 1) hl_node_unlock(&t->lock);
        if (!has_work(base, slot, device, now)) continue;
        if (!hl_node_try_lock(&t->lock, (uint32_t)HL_ACCOUNT_SERVER)) {
            busy = -1;
            continue;
        }
        struct scene c;
        open_scene(&c, base, device);
        if (concurrent(base, device)) {
            forget(&c, slot, now);
        } else {
            if (now < c.turn.at) now = c.turn.at;
            play(&c, now);
            take_off(&c, slot, now);
        }
        leave(&c);
    }
    return busy;
}
