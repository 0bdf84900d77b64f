/* The process's access to its container's books: which region, which mode, opened once in pre-init.
 *
 * Invariants: a process for which nothing was configured (no limit, no region, no policy) opens nothing and is passed
 * through. A region that cannot be opened is said once; then charges on limited devices are refused, because nobody
 * counts them, and the views show the limit with nothing free. */
#include "preload.h"

#include "config.h"
#include "ledger.h"
#include "pacing.h"

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

/* Before CUDA is asked, the rows say which device is whose; an ordinal is a guess. */
int hl_books_nvml(nvmlDevice_t device) {
    unsigned char uuid[16];
    int ordinal = hl_devices_nvml(device);
    if (hl_devices_count() || !hl_devices_handle_uuid(device, uuid)) return ordinal;
    int at = hl_ledger_row(uuid);
    if (at >= 0) return at;
    return hl_ledger_is_taken(ordinal) ? -1 : ordinal;
}

void hl_books_devices(void) {
    bool changed = false;
    unsigned char uuid[16];
    for (int device = 0; device < HL_DEVICES && hl_devices_uuid(device, uuid); device++) {
        hl_limits_settle(device, uuid);
        const struct hl_uuid_limit *own = hl_limits_of(uuid);
        struct hl_ledger_claim claim = {.uuid = uuid,
                                        .limit = hl_limits.memory[device],
                                        .cores = hl_limits.cores[device],
                                        .by_uuid = own && (own->has_memory || own->has_cores)};
        changed |= claim.by_uuid;
        if (!usable) continue;
        int problem = hl_ledger_claim(device, &claim);
        if (problem) {
            hl_log(0, "device %d: the books have no row left for it; its charges are refused", device);
            hl_limits.refuse[device] = hl_limits.any = true;
        }
        changed |= hl_ledger_device(device) != hl_pacers[device].row;
    }
    if (changed) hl_pacing_prepare();
}

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
