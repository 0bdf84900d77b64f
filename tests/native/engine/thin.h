/* A thin loader as the preload library has one: opens the engine named by $THIN_ENGINE on first use, holding no lock.
 * $THIN_POLICY names the policy. Log lines of the engine are counted and the last one is kept. */
#ifndef THIN_H
#define THIN_H
#include "engine.h"
#include <stdio.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(2, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                         \
            _exit(99);                                                                                                 \
        }                                                                                                              \
    } while (0)

#define EXPORT __attribute__((visibility("default")))

const struct hl_engine_api *thin_engine(void); /* dlopen only, no boot */
int64_t thin_boot(void);
int64_t thin_admit(uint64_t size); /* boots when needed; device 0, kind 1, nothing used, limit 1,000,000 */
extern unsigned thin_log_lines;
extern char thin_log_last[2048];
extern void (*thin_on_log)(void); /* called in the log function when set */

/* Words shared with policies of the tests (they get them as `shared`): a thread in lease() sets INSIDE and stays until
 * LEAVE is set. */
enum { LEAVE, INSIDE, WORDS };
extern volatile uint64_t thin_words[WORDS];
int64_t thin_linger(void); /* lease() with those words */
void thin_wait_inside(void);
#endif
