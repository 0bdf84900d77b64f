/* Who had how much of a time in which several had work on one GPU. Pure: no clock, no memory of earlier calls.
 *
 * Contexts take turns by time slices, and one that joins runs first. Work that ran in one piece had all of its time, at
 * the others' cost, who pay the switches before and after it, too: what is not longer than a slice did, and so did launches
 * that were measured one by one and lie close together, however long they are as a row.
 *
 * lab/sim/board.py is the same in Python, to the nanosecond; a test holds both against each other. */
#include "pacing_divide.h"

#include <stdlib.h>

enum { POINTS = 2 * HL_BOARD_MEMBERS * (HL_BOARD_INTERVALS + 1) + 2 };

/* How long the first of `n` that take turns runs in the first `span` ns; with `n` 1 all of them together. */
static uint64_t ran(uint64_t span, unsigned n) {
    const uint64_t turns = n * (uint64_t)(HL_BOARD_SLICE_NS + HL_BOARD_SWITCH_NS), rest = span % turns;
    return span / turns * HL_BOARD_SLICE_NS + (rest < HL_BOARD_SLICE_NS ? rest : HL_BOARD_SLICE_NS);
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The piece of `member` that covers all of [from, to), between two neighbouring ends of pieces; NULL: idle. */
static const struct hl_piece *covering(struct hl_member *member, uint64_t from, uint64_t to) {
    while (member->at < member->count && member->piece[member->at].end <= from) member->at++;
    if (member->at == member->count) return NULL;
    const struct hl_piece *piece = &member->piece[member->at];
    return piece->start <= from && piece->end >= to ? piece : NULL;
}

static void divide(struct hl_member *members, unsigned count, uint64_t cut, uint64_t until,
                   struct hl_division *division) {
    static uint64_t point[POINTS];
    size_t points = 0;
    uint64_t switches = 0;
    *division = (struct hl_division){0};
    point[points++] = cut;
    point[points++] = until;
    for (unsigned i = 0; i < count; i++) {
        members[i].at = 0;
        for (uint32_t k = 0; k < members[i].count; k++) {
            const struct hl_piece *at = &members[i].piece[k];
            if (at->start > cut && at->start < until) point[points++] = at->start;
            if (at->end > cut && at->end < until) point[points++] = at->end;
        }
    }
    qsort(point, points, sizeof *point, ascending);
    for (size_t p = 0; p + 1 < points; p++) {
        uint64_t from = point[p], to = point[p + 1], joined = 0;
        if (from == to) continue;
        unsigned n = 0, mine = 0, brief = 0, brief_mine = 0, edges = 0;
        bool latest_mine = false;
        for (unsigned i = 0; i < count; i++) {
            const struct hl_piece *at = covering(&members[i], from, to);
            if (!at) continue;
            n++;
            mine += members[i].own;
            if (at->whole || at->end - at->start <= HL_BOARD_SLICE_NS) {
                brief++;
                brief_mine += members[i].own;
                if (!members[i].own) edges += (unsigned)(at->start == from) + (unsigned)(at->end == to);
            }
            if (at->start >= joined) {
                joined = at->start;
                latest_mine = members[i].own;
            }
        }
        if (!n) continue;
        uint64_t span = to - from;
        division->all += span;
        division->raw += mine * span;
        if (brief) {
            division->own += brief_mine * span;
            if (n > brief) /* paid by whose turn it would have been */
                switches += (uint64_t)HL_BOARD_SWITCH_NS * edges * (mine - brief_mine) / (n - brief);
            continue;
        }
        if (n == 1) {
            division->own += mine * span;
            continue;
        }
        uint64_t first = ran(to - joined, n) - ran(from - joined, n);
        uint64_t rest = (ran(to - joined, 1) - ran(from - joined, 1) - first) / (n - 1);
        division->own += latest_mine ? first + (mine - 1) * rest : mine * rest;
    }
    division->own -= switches < division->own ? switches : division->own;
}

uint64_t hl_board_look(struct hl_member *members, unsigned count, uint64_t *cut, uint64_t now,
                       struct hl_division *division) {
    uint64_t until = now;
    for (unsigned i = 0; i < count; i++) { /* what is in flight began when the work before it ended */
        if (!members[i].since) continue;
        if (members[i].since < members[i].until) members[i].since = members[i].until;
        if (members[i].since < until) until = members[i].since;
    }
    if (until + HL_BOARD_LATE_NS < now) until = now - HL_BOARD_LATE_NS;
    if (!*cut) { /* the first look only learns where to begin */
        *cut = until;
        return 0;
    }
    if (until < *cut + HL_BOARD_LEAST_NS) return 0;
    for (unsigned i = 0; i < count; i++) { /* not measured yet and late: as long as it should have taken */
        struct hl_member *member = &members[i];
        if (!member->since || member->since >= until || member->drain <= member->since) continue;
        struct hl_piece *last = member->count ? &member->piece[member->count - 1] : NULL;
        if (last && !last->whole && member->since - last->end < HL_BOARD_JOIN_NS) last->end = member->drain;
        else member->piece[member->count++] = (struct hl_piece){member->since, member->drain, false};
    }
    divide(members, count, *cut, until, division);
    *cut = until;
    return until;
}
