/* A row of the board, and dividing a time in which several containers had work on one GPU: who had what. */
#ifndef HOOKLAB_PACING_DIVIDE_H
#define HOOKLAB_PACING_DIVIDE_H
#include "hl_layout_board.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    HL_BOARD_MEMBERS = 64,            /* rows of one GPU that are looked at */
    HL_BOARD_LATE_NS = 500000000,     /* work that takes longer is not waited for */
    HL_BOARD_LEAST_NS = 50000000,     /* a window */
    HL_BOARD_LONGEST_NS = 1000000000, /* a window that would be longer begins anew */
};

struct hl_piece { /* work on the GPU, CLOCK_MONOTONIC ns */
    uint64_t start, end;
    bool whole; /* it ran in one piece */
};

struct hl_member { /* one row of the board, as it was read */
    bool own;      /* of the container that asks */
    uint32_t count, at;
    uint64_t until, since, drain;                  /* until: the end of its newest interval */
    struct hl_piece piece[HL_BOARD_INTERVALS + 1]; /* oldest first, none overlaps the next */
};

struct hl_division { /* ns */
    uint64_t own;    /* what the container had */
    uint64_t all;    /* when anybody had work */
    uint64_t raw;    /* how long the container's work took, others' turns included */
};

/* -- pacing_row.c -- */
void hl_board_ran(struct hl_board_row *row, uint64_t start, uint64_t end, bool whole);      /* M. whole: in one piece */
void hl_board_read(const struct hl_board_row *row, uint64_t cut, struct hl_member *member); /* what ended since `cut` */

/* -- pacing_divide.c; not for two threads at once -- */
/* Of the time between `*cut` (0: never read) and when everybody has been measured; its end, or 0 when that is too short. */
uint64_t hl_board_look(struct hl_member *members, unsigned count, uint64_t *cut, uint64_t now,
                       struct hl_division *division);
#endif
