/* Which device is which: CUDA ordinals (what limits are numbered by) and NVML's cards and handles, matched by UUID.
 *
 * Invariants: once CUDA is initialised the driver's own UUIDs decide. Before that, in a process that only uses NVML,
 * CUDA_VISIBLE_DEVICES is read as the driver will read it, in NVML's own order; nothing of that guess is remembered. */
#include "preload.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct {
    int learned; /* release/acquire: the rest is whole */
    int count;
    CUuuid uuid[HL_CARDS];
} cuda;

enum { HANDLES = 32 };
static struct {
    nvmlDevice_t handle; /* stored last */
    int ordinal;
} handles[HANDLES];
static unsigned handles_used;

void hl_devices_learn(void) {
    __typeof__(&cuDeviceGetCount) get_count = HL_REAL(cuDeviceGetCount);
    __typeof__(&cuDeviceGetUuid_v2) get_uuid = HL_REAL(cuDeviceGetUuid_v2);
    if (!get_uuid) get_uuid = HL_REAL(cuDeviceGetUuid);
    int count = 0;
    if (!get_count || !get_uuid || get_count(&count) != CUDA_SUCCESS) return;
    cuda.count = count;
    for (int device = 0; device < count && device < HL_CARDS; device++)
        if (get_uuid(&cuda.uuid[device], device) != CUDA_SUCCESS)
            memset(&cuda.uuid[device], 0, sizeof cuda.uuid[device]);
    hl_devices_forget_nvml();
    __atomic_store_n(&cuda.learned, 1, __ATOMIC_RELEASE);
}

bool hl_devices_uuid(int device, unsigned char *uuid) {
    if (!__atomic_load_n(&cuda.learned, __ATOMIC_ACQUIRE) || device >= cuda.count || device >= HL_CARDS) return false;
    memcpy(uuid, &cuda.uuid[device], sizeof cuda.uuid[device]);
    return true;
}

int hl_devices_count(void) { return __atomic_load_n(&cuda.learned, __ATOMIC_ACQUIRE) ? cuda.count : 0; }

void hl_devices_forget_nvml(void) {
    for (unsigned i = 0; i < HANDLES; i++) __atomic_store_n(&handles[i].handle, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&handles_used, 0, __ATOMIC_RELEASE);
}

void hl_devices_forget(void) {
    __atomic_store_n(&cuda.learned, 0, __ATOMIC_RELEASE);
    hl_devices_forget_nvml();
}

/* "GPU-8ab12c34-...": 16 bytes in text order. */
static bool uuid_bytes(const char *text, unsigned char *bytes) {
    if (!strncasecmp(text, "GPU-", 4)) text += 4;
    unsigned digits = 0;
    for (; *text && digits < 32; text++) {
        if (*text == '-') continue;
        int low = *text | 0x20;
        int value = low >= '0' && low <= '9' ? low - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (value < 0) return false;
        bytes[digits / 2] = (unsigned char)(digits & 1 ? bytes[digits / 2] | value : value << 4);
        digits++;
    }
    return digits == 32;
}

static int by_cuda(const char *text) {
    unsigned char bytes[16];
    if (!uuid_bytes(text, bytes)) return -1;
    for (int device = 0; device < cuda.count && device < HL_CARDS; device++)
        if (!memcmp(&cuda.uuid[device], bytes, sizeof bytes)) return device;
    return -1;
}

/* The only card whose UUID begins so, else -1: none or several. */
static int by_prefix(const struct hl_cards *cards, const char *text, size_t length) {
    int found = -1;
    for (unsigned i = 0; length > 4 && i < cards->count; i++)
        if (!strncasecmp(cards->card[i].uuid, text, length)) found = found < 0 ? (int)i : HL_CARDS;
    return found < HL_CARDS ? found : -1;
}

/* The first card that does not answer and that nothing else was taken for: a lost one stays what it was. */
static int silent(const struct hl_cards *cards) {
    for (unsigned i = 0; i < cards->count; i++)
        if (!cards->card[i].handle && cards->card[i].ordinal < 0) return (int)i;
    return -1;
}

/* The list as the driver reads it: up to the first entry that names no device; the first entry decides whether numbers or
 * UUIDs are meant; a device named twice leaves none. False: it names parts of cards. */
static bool by_environment(struct hl_cards *cards, const char *list) {
    int form = 0, ordinal = 0; /* 1 numbers, 2 UUIDs */
    while (*list) {
        size_t length = strcspn(list, ",");
        const char *start = list;
        while (length && isspace((unsigned char)*start)) start++, length--;
        list = start + length + (start[length] == ',');
        while (length && isspace((unsigned char)start[length - 1])) length--;
        if (length >= 4 && !strncasecmp(start, "MIG-", 4)) return false;
        int kind = length >= 4 && !strncasecmp(start, "GPU-", 4) ? 2 : 1, card = -1;
        if (form && kind != form) break;
        form = kind;
        if (kind == 2) {
            card = by_prefix(cards, start, length);
            if (card < 0) card = silent(cards);
        } else {
            char *end = NULL;
            long number = strtol(start, &end, 10);
            if (end != start && end <= start + length && number >= 0 && number < (long)cards->count) card = (int)number;
        }
        if (card < 0) break;
        if (cards->card[card].ordinal >= 0) {
            for (unsigned i = 0; i < cards->count; i++) cards->card[i].ordinal = -1;
            break;
        }
        cards->card[card].ordinal = ordinal++;
    }
    return true;
}

/* False: a CUDA device is none of the cards but a part of one. */
static bool by_driver(struct hl_cards *cards) {
    bool found[HL_CARDS] = {false};
    for (unsigned i = 0; i < cards->count; i++) {
        int ordinal = cards->card[i].handle ? by_cuda(cards->card[i].uuid) : -1;
        cards->card[i].ordinal = ordinal;
        if (ordinal >= 0) found[ordinal] = true;
    }
    for (int device = 0; device < cuda.count && device < HL_CARDS; device++) {
        if (found[device]) continue;
        int card = silent(cards);
        if (card < 0) return false;
        cards->card[card].ordinal = device;
    }
    return true;
}

bool hl_cards_chosen(struct hl_cards *cards) {
    bool learned = __atomic_load_n(&cuda.learned, __ATOMIC_ACQUIRE);
    const char *list = learned ? NULL : getenv("CUDA_VISIBLE_DEVICES");
    if (!learned && !list) return false;
    __typeof__(&nvmlDeviceGetCount_v2) get_count = HL_REAL(nvmlDeviceGetCount_v2);
    __typeof__(&nvmlDeviceGetHandleByIndex_v2) get = HL_REAL(nvmlDeviceGetHandleByIndex_v2);
    __typeof__(&nvmlDeviceGetUUID) get_uuid = HL_REAL(nvmlDeviceGetUUID);
    if (!get_count || !get || !get_uuid || get_count(&cards->count) != NVML_SUCCESS) return false;
    if (cards->count > HL_CARDS || (learned && (int)cards->count <= cuda.count)) return false;
    for (unsigned i = 0; i < cards->count; i++) {
        struct hl_card *card = &cards->card[i];
        card->ordinal = -1;
        card->uuid[0] = 0;
        if (get(i, &card->handle) != NVML_SUCCESS || get_uuid(card->handle, card->uuid, sizeof card->uuid))
            card->handle = NULL;
    }
    return learned ? by_driver(cards) : by_environment(cards, list);
}

/* Before cuInit. */
static int by_guess(nvmlDevice_t device) {
    struct hl_cards cards;
    if (getenv("CUDA_VISIBLE_DEVICES")) {
        unsigned count = hl_cards_chosen(&cards) ? cards.count : 0;
        for (unsigned i = 0; i < count; i++)
            if (cards.card[i].handle == device) return cards.card[i].ordinal;
        return -1;
    }
    __typeof__(&nvmlDeviceGetIndex) get_index = HL_REAL(nvmlDeviceGetIndex);
    unsigned index = 0;
    return get_index && get_index(device, &index) == NVML_SUCCESS && index < HL_DEVICES ? (int)index : -1;
}

int hl_devices_nvml(nvmlDevice_t device) {
    if (!__atomic_load_n(&cuda.learned, __ATOMIC_ACQUIRE)) return by_guess(device);
    unsigned used = __atomic_load_n(&handles_used, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < used && i < HANDLES; i++)
        if (__atomic_load_n(&handles[i].handle, __ATOMIC_ACQUIRE) == device) return handles[i].ordinal;
    __typeof__(&nvmlDeviceGetUUID) get_uuid = HL_REAL(nvmlDeviceGetUUID);
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    if (!get_uuid || get_uuid(device, text, sizeof text) != NVML_SUCCESS) return -1;
    int ordinal = by_cuda(text);
    unsigned at = __atomic_fetch_add(&handles_used, 1, __ATOMIC_ACQ_REL);
    if (at < HANDLES) {
        handles[at].ordinal = ordinal;
        __atomic_store_n(&handles[at].handle, device, __ATOMIC_RELEASE);
    }
    return ordinal;
}
