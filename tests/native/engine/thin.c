/* The thin loader, see thin.h. */
#define _GNU_SOURCE
#include "thin.h"
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

unsigned thin_log_lines;
char thin_log_last[2048];
void (*thin_on_log)(void);
volatile uint64_t thin_words[WORDS];

static void note(const char *line) {
    thin_log_lines++;
    snprintf(thin_log_last, sizeof thin_log_last, "%s", line);
    if (thin_on_log) thin_on_log();
}

EXPORT const struct hl_engine_api *thin_engine(void) {
    static _Atomic(const struct hl_engine_api *) found;
    const struct hl_engine_api *api = atomic_load_explicit(&found, memory_order_acquire);
    if (api) return api;
    void *library = dlopen(getenv("THIN_ENGINE"), RTLD_NOW | RTLD_LOCAL);
    if (!library) dprintf(2, "%s\n", dlerror());
    CHECK(library);
    hl_engine_fn engine = (hl_engine_fn)dlsym(library, "hl_engine");
    CHECK(engine);
    api = engine();
    CHECK(api->abi == HL_ENGINE_ABI && api->size == sizeof *api);
    atomic_store_explicit(&found, api, memory_order_release);
    return api;
}

EXPORT int64_t thin_boot(void) {
    struct hl_engine_config config = {.policy = getenv("THIN_POLICY"), .pacing = getenv("THIN_PACING"), .log = note};
    return thin_engine()->boot(&config);
}

EXPORT int64_t thin_admit(uint64_t size) {
    const struct hl_engine_api *api = thin_engine();
    int64_t answer = thin_boot();
    return answer ? answer : api->admit(0, size, 1, 0, 1000000, 0);
}

EXPORT int64_t thin_linger(void) {
    thin_words[LEAVE] = 0;
    return thin_engine()->lease(0, 1, 0, (void *)thin_words, sizeof thin_words);
}

EXPORT void thin_leave(void) { thin_words[LEAVE] = 1; }

EXPORT void thin_wait_inside(void) {
    while (!thin_words[INSIDE]) sched_yield();
}

EXPORT const char *thin_reason(void) { return thin_engine()->reason(); }

EXPORT const char *thin_python(void) { return thin_engine()->python; }

EXPORT const char *thin_source_hash(void) { return thin_engine()->source_hash; }
