/* The route walker: asks for every name of the hook table over every route, before the driver is initialised, then
 * initialises it and calls everything it was given. Linked into a program, or opened as a plug-in by one that knows no
 * driver; what it saw goes into a mapped file (layout routes).
 *
 * It decides nothing: what is right is decided by comparing a walk under an interposer with one without. */
#ifndef HOOKLAB_WALK_H
#define HOOKLAB_WALK_H
#include "echo.h"
#include "hl_layout_routes.h"
#include "hl_names.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* hl_walk FILE HOST FIRST: rows before FIRST are looked up but not called (a walk that goes on after a crash); with
 * FIRST behind the last row nothing is called and the ledger is measured instead. The
 * allocation counter may be NULL. Returns an exit status. */
__attribute__((visibility("default"))) int hl_walk(const char *file, int host, unsigned first,
                                                   const volatile unsigned *allocations);

struct walk {
    struct hl_routes_header *header;
    struct hl_routes_row *rows;
    struct hl_echo *echo[2]; /* cuda, nvml; NULL when the driver below is not the recording one */
    const volatile unsigned *allocations;
    void *handle[2];
    int host;
};

/* The cases in their fixed order: fills `rows` when not NULL; returns how many there are. */
unsigned walk_cases(struct hl_routes_row *rows);
void walk_look(struct walk *walk, struct hl_routes_row *row); /* look.c */
void walk_call(struct walk *walk, struct hl_routes_row *row); /* call.c */
void walk_junk(struct hl_echo *echo);                         /* tells the driver which handles are made up */
void walk_init(struct walk *walk);
void walk_foreign(struct walk *walk); /* foreign.c */
enum { WALK_LEDGER = 128 };
void walk_ledger(struct walk *walk, struct hl_routes_ledger *rows); /* ledger.c */
const char *walk_base(unsigned name);                               /* "" if the resolver does not know it */
/* A jump pad in no object: what it calls sees a caller that the loader does not know. NULL: not to be had. */
void *walk_pad(void *target);
#endif
