/* The limits of this container as the environment states them, in the names that HAMi uses: for all devices, by ordinal
 * (KEY_0), or by UUID (KEY_GPU-..., KEY_MIG-..., with '_' for '-' where a shell allows no other), which wins.
 *
 * Unset and empty mean no limit; a value that cannot be read is neither: it is said once, by the variable's name, and
 * charges on the devices it concerns are refused, because guessing would either lift a limit or invent one. */
#include "preload.h"

#include "config.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct hl_limits hl_limits;

static int parse_percent(const char *text, uint64_t *percent) {
    if (!text) return 1;
    while (*text == ' ') text++;
    if (!*text) return 1;
    uint64_t value = 0;
    int digits = 0;
    for (; *text >= '0' && *text <= '9' && digits < 4; text++, digits++) value = value * 10 + (uint64_t)(*text - '0');
    while (*text == ' ') text++;
    if (!digits || *text || value > 100) return -1;
    *percent = value;
    return 0;
}

static const char a_size[] = "a size (digits, then k, m, g or t)", a_percentage[] = "a percentage (0 to 100)";

static int parse_size(const char *text, uint64_t *bytes) { return hl_parse_size(text, bytes); }

/* KEY_i wins over KEY where it has a value at all, readable or not. */
static void read_family(const char *key, const char *what, int (*parse)(const char *, uint64_t *), uint64_t *into) {
    uint64_t general = 0;
    const char *text = hl_config(key);
    int general_state = parse(text, &general);
    bool general_used = false;
    for (int device = 0; device < HL_DEVICES; device++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%d", key, device);
        const char *own = hl_config(name);
        uint64_t value = 0;
        int state = parse(own, &value);
        if (state < 0) {
            hl_log(0, "%s: \"%.64s\" is not %s; charges on device %d are refused until it is set right or unset", name,
                   own, what, device);
            hl_limits.refuse[device] = true;
        } else if (state > 0) {
            value = general_state == 0 ? general : 0;
            if (general_state < 0) hl_limits.refuse[device] = general_used = true;
        }
        into[device] = value;
        if (value || hl_limits.refuse[device]) hl_limits.any = true;
    }
    if (general_used)
        hl_log(0, "%s: \"%.64s\" is not %s; charges are refused until it is set right or unset", key, text, what);
}

/* ---- by UUID ---- */

enum { BY_UUID = 32 };
static struct hl_uuid_limit by_uuid[BY_UUID];
static unsigned by_uuid_count;

static const char memory_key[] = "CUDA_DEVICE_MEMORY_LIMIT", cores_key[] = "CUDA_DEVICE_SM_LIMIT";

static struct hl_uuid_limit *entry_of(const unsigned char *uuid) {
    for (unsigned i = 0; i < by_uuid_count; i++)
        if (!memcmp(by_uuid[i].uuid, uuid, sizeof by_uuid[i].uuid)) return &by_uuid[i];
    if (by_uuid_count == BY_UUID) return NULL;
    struct hl_uuid_limit *made = &by_uuid[by_uuid_count++];
    *made = (struct hl_uuid_limit){.has_memory = false};
    memcpy(made->uuid, uuid, sizeof made->uuid);
    return made;
}

const struct hl_uuid_limit *hl_limits_of(const unsigned char *uuid) {
    for (unsigned i = 0; i < by_uuid_count; i++)
        if (!memcmp(by_uuid[i].uuid, uuid, sizeof by_uuid[i].uuid)) return &by_uuid[i];
    return NULL;
}

/* Nobody knows whose limit it is: every device's charges are refused. */
static void refuse_all(const char *key, const char *why) {
    hl_log(0, "%s: %s; charges are refused until it is set right or unset", key, why);
    for (int device = 0; device < HL_DEVICES; device++) hl_limits.refuse[device] = true;
    hl_limits.any = true;
}

static void read_by_uuid(const char *key) {
    bool memory = !strncmp(key, memory_key, sizeof memory_key - 1);
    const char *name = key + (memory ? sizeof memory_key : sizeof cores_key), *text = hl_config(key);
    unsigned char uuid[16];
    uint64_t value = 0;
    int state = memory ? parse_size(text, &value) : parse_percent(text, &value);
    if (state > 0 || (strncasecmp(name, "GPU", 3) && strncasecmp(name, "MIG", 3))) return; /* empty, or by ordinal */
    if (!hl_uuid_bytes(name, uuid)) {
        refuse_all(key,
                   "there is no UUID behind the last of its words (GPU-... or MIG-... with 32 hexadecimal digits)");
        return;
    }
    struct hl_uuid_limit *own = entry_of(uuid);
    if (!own) {
        refuse_all(key, "more than 32 devices are named by UUID");
        return;
    }
    hl_limits.any = true;
    if (state < 0) {
        hl_log(0, "%s: \"%.64s\" is not %s; charges on that device are refused until it is set right or unset", key,
               text, memory ? a_size : a_percentage);
        own->refuse = true;
    } else if (memory) {
        own->memory = value;
        own->has_memory = true;
    } else {
        own->cores = value;
        own->has_cores = true;
    }
}

void hl_limits_settle(int device, const unsigned char *uuid) {
    const struct hl_uuid_limit *own = hl_limits_of(uuid);
    if (!own || device < 0 || device >= HL_DEVICES) return;
    if (own->has_memory) hl_limits.memory[device] = own->memory;
    if (own->has_cores) hl_limits.cores[device] = own->cores;
    if (own->refuse) hl_limits.refuse[device] = true;
}

static bool is_on(const char *key) {
    static const char *const yes[] = {"1", "true", "on", "yes"}, *const no[] = {"", "0", "false", "off", "no"};
    const char *text = hl_config(key);
    for (unsigned i = 0; text && i < sizeof yes / sizeof *yes; i++)
        if (!strcasecmp(text, yes[i])) return true;
    for (unsigned i = 0; text && i < sizeof no / sizeof *no; i++)
        if (!strcasecmp(text, no[i])) return false;
    if (text) hl_log(0, "%s: \"%.64s\" is not true or false; it is taken for false", key, text);
    return false;
}

/* One of two words; unset, empty and anything else are the second. */
static bool is_word(const char *key, const char *word, const char *usual) {
    const char *text = hl_config(key);
    bool is = text && !strcasecmp(text, word);
    if (text && *text && !is && strcasecmp(text, usual))
        hl_log(0, "%s: \"%.64s\" is not %s or %s; %s is used", key, text, usual, word, usual);
    return is;
}

/* What others' interposers take that this one does not act on: said, never silently (docs/decisions.md). */
static void say_what_is_not_done(void) {
    const char *rate = hl_config("MEMORY_LIMIT_TOLERATION_RATE");
    if (is_on("ACTIVE_OOM_KILLER"))
        hl_log(0, "ACTIVE_OOM_KILLER: no process is ever ended here; what does not fit is refused");
    if (rate && *rate && strcmp(rate, "1") && strcmp(rate, "1.0"))
        hl_log(0, "MEMORY_LIMIT_TOLERATION_RATE: limits are kept exactly; set a higher limit instead of %.16s", rate);
    if (hl_config("RECORD_KERNEL_INTERVAL"))
        hl_log(2, "RECORD_KERNEL_INTERVAL: ignored; every paced launch is recorded");
    if (hl_config("CUDA_TASK_PRIORITY"))
        hl_log(2, "CUDA_TASK_PRIORITY: for monitors of hami-1.2 regions only; launches here are not ordered by it");
}

void hl_limits_read(void) {
    memset(&hl_limits, 0, sizeof hl_limits);
    hl_limits.disabled = is_on("CUDA_DISABLE_CONTROL");
    if (hl_limits.disabled) return;
    hl_limits.oversubscribe = is_on("CUDA_OVERSUBSCRIBE");
    hl_limits.plain_views = is_word("HOOKLAB_MEMINFO", "off", "on");
    hl_limits.all_cards = is_word("HOOKLAB_NVML_DEVICES", "all", "visible");
    hl_limits.all_processes = is_word("HOOKLAB_NVML_PROCESSES", "all", "own");
    say_what_is_not_done();
    read_family(memory_key, a_size, parse_size, hl_limits.memory);
    read_family(cores_key, a_percentage, parse_percent, hl_limits.cores);
    by_uuid_count = 0;
    hl_config_each("CUDA_DEVICE_MEMORY_LIMIT_", read_by_uuid);
    hl_config_each("CUDA_DEVICE_SM_LIMIT_", read_by_uuid);
}
