/* The process's access to its container's books: which region, which mode, opened once in pre-init.
 *
 * Invariants: a process for which nothing was configured (no limit, no region, no policy) opens nothing and is passed
 * through. A region that cannot be opened is said once; then charges on limited devices are refused, because nobody
 * counts them, and the views show the limit with nothing free. */
#include "preload.h"

#include "config.h"
#include "ledger.h"

#include <string.h>

static bool usable;        /* written in pre-init, read after it */
static const char *policy; /* the same; asked for at every charge without a limit */

static bool set(const char *text) { return text && *text; }

const char *hl_policy(void) { return policy; }

bool hl_books_open(void) {
    hl_limits_read();
    policy = NULL;
    usable = false;
    if (hl_limits.disabled) return false;
    const char *path = hl_config("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    policy = hl_config("HOOKLAB_POLICY");
    if (!set(policy)) policy = NULL;
    usable = false;
    if (!hl_limits.any && !set(path) && !policy) return false;
    const char *mode = hl_config("HOOKLAB_MEMORY_MODE"), *lock = hl_config("HOOKLAB_REGION_LOCK"), *why = NULL;
    struct hl_ledger_config config = {.path = set(path) ? path : NULL, .verdict = hl_verdict, .log = hl_log_error};
    const char *layout = hl_config("HOOKLAB_REGION_LAYOUT");
    if (layout && !strcmp(layout, "hami-1.2")) config.layout = HL_LAYOUT_HAMI;
    memcpy(config.limit, hl_limits.memory, sizeof config.limit);
    memcpy(config.sm_limit, hl_limits.cores, sizeof config.sm_limit);
    config.mode = mode && !strcmp(mode, "double-check") ? HL_MODE_DOUBLE_CHECK : HL_MODE_RESERVE;
    if (set(mode) && strcmp(mode, "double-check") && strcmp(mode, "reserve"))
        hl_log(0, "HOOKLAB_MEMORY_MODE: \"%.64s\" is not reserve or double-check; reserve is used", mode);
    config.robust = lock && !strcmp(lock, "robust");
    if (set(lock) && strcmp(lock, "robust") && strcmp(lock, "file"))
        hl_log(0, "HOOKLAB_REGION_LOCK: \"%.64s\" is not robust or file; file is used", lock);
    int error = hl_ledger_open(&config, &why);
    if (error)
        hl_log(0, "%s; charges on limited devices are refused", why && *why ? why : "the region cannot be opened");
    usable = !error;
    return true;
}

void hl_books_forget(void) { usable = false; }

/* A clean end is said in the books; what is still held stays in them as long as the driver holds it. */
__attribute__((destructor)) static void close_books(void) {
    hl_pacing_close();
    if (usable) hl_ledger_close();
}

bool hl_books_usable(void) { return usable; }

uint64_t hl_books_limit(int device) {
    if (device < 0 || device >= HL_DEVICES) return 0;
    return usable ? hl_ledger_limit(device) : hl_limits.memory[device];
}
