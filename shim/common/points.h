/* Sequence points: named places in region and preload library where a run may kill or stop a process, to show what its
 * death there leaves behind. Compiled in always, so that what is tested is what runs; where nothing is planned a point is
 * one load of a word that never changes and a branch that is never taken.
 *
 * HOOKLAB_POINTS = POINT:CALL:SIGNAL:INDEX[,...], numbers: HL_POINT_*, the how-manieth time of this process (from 1, a fork
 * child goes on counting), the signal, and the number of the fault that its FAULT record carries. */
#ifndef HOOKLAB_POINTS_H
#define HOOKLAB_POINTS_H
#include "hl_layout_history.h"

#include <stdint.h>

extern uint32_t hl_points_planned; /* bit of every planned point; written once, before the first point is reached */
void hl_points_read(void);
void hl_point_reached(unsigned point);

#define HL_POINT(name)                                                                                                 \
    do {                                                                                                               \
        if (__builtin_expect(__atomic_load_n(&hl_points_planned, __ATOMIC_RELAXED) != 0, 0))                           \
            hl_point_reached(HL_POINT_##name);                                                                         \
    } while (0)
#endif
