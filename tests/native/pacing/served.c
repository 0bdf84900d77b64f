/* The limiter of rig.c as a process of its own, with the real engine: stepped over standard input, one answer a line.
 *
 *   served REGION PERCENT ENGINE CONTROLLER NOW
 *
 * Asked: "step NOW KEY BLOCKS NS RESULT" (begins that launch, or wakes the one that sleeps), "sample NOW USABLE OWN ALL
 * WINDOW NEIGHBOURS", "seen", "state", "estimate KEY BLOCKS", "words", "close". A step answers what it came to (1 went, 2
 * passed, 3 sleeps), ns, and whether the sample was looked at. */
#include "engine.h"
#include "rig.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void log_line(const char *line) { fprintf(stderr, "%s\n", line); }

static void say(const uint64_t *values, int count) {
    for (int i = 0; i < count; i++) printf("%" PRId64 "%c", (int64_t)values[i], i + 1 < count ? ' ' : '\n');
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    alarm(120);
    void *library = dlopen(argv[3], RTLD_NOW);
    hl_engine_fn entry = library ? (hl_engine_fn)dlsym(library, "hl_engine") : NULL;
    const struct hl_engine_api *api = entry ? entry() : NULL;
    const struct hl_engine_config config = {.pacing = argv[4], .log = log_line};
    if (!api || api->boot(&config)) return fprintf(stderr, "no engine: %s\n", api ? api->reason() : dlerror()), 1;
    uint32_t paces = api->features() & (HL_ENGINE_PACES_BLOCKS | HL_ENGINE_PACES_BOUNDED);
    if (rig_open(argv[1], 0, atoi(argv[2]), paces, strtoull(argv[5], NULL, 10))) return 1;
    static char line[512];
    struct talk talk = {0};
    say((uint64_t[]){0}, 1);
    while (fgets(line, sizeof line, stdin)) {
        char name[16] = "";
        uint64_t v[6] = {0}, out[64] = {0};
        sscanf(line, "%15s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, name, v, v + 1, v + 2,
               v + 3, v + 4, v + 5);
        int count = 1;
        if (!strcmp(name, "step")) {
            uint64_t looked = 0;
            rig_clock(v[0]);
            if (talk.what == NAPS) rig_go_on(0, &talk);
            else rig_launch(v[1], v[2], v[3], (int)v[4], &talk);
            while (talk.what >= LEASES) {
                int64_t answer;
                if (talk.what == LEASES) answer = api->lease(0, talk.cost, talk.now, talk.words, 512);
                else answer = api->observe(0, talk.busy, talk.window, talk.now, talk.words, 512), looked = 1;
                rig_go_on(answer, &talk);
            }
            out[0] = (uint64_t)talk.what, out[1] = talk.ns, out[2] = looked, count = 3;
        } else if (!strcmp(name, "sample")) {
            rig_clock(v[0]);
            rig_sample((int)v[1], 1, v[2], v[3], v[4], v[5]);
        } else if (!strcmp(name, "seen")) {
            rig_seen();
        } else if (!strcmp(name, "state")) {
            rig_state((int64_t *)out), count = 6;
        } else if (!strcmp(name, "estimate")) {
            rig_estimate(v[0], v[1], out), count = 2;
        } else if (!strcmp(name, "words")) {
            if (rig_words(out)) return 1;
            count = 64;
        } else if (!strcmp(name, "close")) {
            rig_close();
        }
        say(out, count);
    }
    return 0;
}
