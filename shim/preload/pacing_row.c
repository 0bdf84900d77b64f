/* One row of the board: its process writes when it had work on the GPU, everybody reads it.
 *
 * Invariants: written under the pacer's mutex, read without one; a reader takes an interval only if the ring has not
 * come round to it meanwhile. Intervals of a row are in order and none overlaps the next. */
#include "pacing_divide.h"

void hl_board_ran(struct hl_board_row *row, uint64_t start, uint64_t end, bool whole) {
    const uint64_t mark = HL_BOARD_WHOLE;
    uint64_t head = row->head;
    struct hl_board_interval *last = head ? &row->interval[(head - 1) % HL_BOARD_INTERVALS] : NULL;
    if (last && start < last->end) start = last->end;
    if (start >= end) return;
    if (last && start - last->end < HL_BOARD_JOIN_NS && (last->start & mark) == (whole ? mark : 0)) {
        __atomic_store_n(&last->end, end, __ATOMIC_RELEASE);
        return;
    }
    struct hl_board_interval *next = &row->interval[head % HL_BOARD_INTERVALS];
    __atomic_store_n(&next->start, (start & ~mark) | (whole ? mark : 0), __ATOMIC_RELAXED);
    __atomic_store_n(&next->end, end, __ATOMIC_RELAXED);
    __atomic_store_n(&row->head, head + 1, __ATOMIC_RELEASE);
}

void hl_board_read(const struct hl_board_row *row, uint64_t cut, struct hl_member *member) {
    struct hl_piece found[HL_BOARD_INTERVALS];
    uint32_t count = 0;
    member->since = __atomic_load_n(&row->since, __ATOMIC_ACQUIRE);
    member->drain = __atomic_load_n(&row->drain, __ATOMIC_RELAXED);
    uint64_t head = __atomic_load_n(&row->head, __ATOMIC_ACQUIRE);
    for (uint64_t i = head; i > 0 && head - i < HL_BOARD_INTERVALS - 1; i--) {
        const struct hl_board_interval *at = &row->interval[(i - 1) % HL_BOARD_INTERVALS];
        uint64_t start = __atomic_load_n(&at->start, __ATOMIC_RELAXED);
        found[count].start = start & ~(uint64_t)HL_BOARD_WHOLE;
        found[count].whole = start & HL_BOARD_WHOLE;
        found[count].end = __atomic_load_n(&at->end, __ATOMIC_RELAXED);
        if (found[count].end < cut) break;
        count++;
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    uint64_t written = __atomic_load_n(&row->head, __ATOMIC_RELAXED) - head;
    if (written > HL_BOARD_INTERVALS - count)
        count = written > HL_BOARD_INTERVALS ? 0 : HL_BOARD_INTERVALS - (uint32_t)written;
    member->until = count ? found[0].end : 0;
    member->count = member->at = 0;
    for (uint32_t i = count; i > 0; i--) member->piece[member->count++] = found[i - 1];
}
