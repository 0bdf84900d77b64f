/* Which device is which: CUDA ordinals (what limits are numbered by) and NVML's cards and handles, matched by UUID.
 *
 * Invariants: once CUDA is initialised the driver's own UUIDs decide. Before that, in a process that only uses NVML,
 * CUDA_VISIBLE_DEVICES is read as the driver will read it, in NVML's own order; nothing of that guess is remembered. */
#include "preload.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct {
    int learned; /* release/acquire: the rest is whole */
    int count;
    CUuuid uuid[HL_CARDS];
    CUuuid card[HL_CARDS]; /* of the card, where the device is a part of one (MIG); else the same */
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
    __typeof__(&cuDeviceGetUuid) get_card = HL_REAL(cuDeviceGetUuid);
    if (!get_uuid) get_uuid = get_card;
    int count = 0;
    if (!get_count || !get_uuid || get_count(&count) != CUDA_SUCCESS) return;
    cuda.count = count;
    for (int device = 0; device < count && device < HL_CARDS; device++) {
        if (get_uuid(&cuda.uuid[device], device) != CUDA_SUCCESS)
            memset(&cuda.uuid[device], 0, sizeof cuda.uuid[device]);
        if (!get_card || get_card(&cuda.card[device], device) != CUDA_SUCCESS) cuda.card[device] = cuda.uuid[device];
    }
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

bool hl_uuid_bytes(const char *text, unsigned char *bytes) {
    if (!strncasecmp(text, "GPU", 3) || !strncasecmp(text, "MIG", 3)) text += 3;
    unsigned digits = 0;
    for (; *text; text++) {
        if (*text == '-' || *text == '_') continue;
        int low = *text | 0x20;
        int value = low >= '0' && low <= '9' ? low - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (value < 0 || digits == 32) return false;
        bytes[digits / 2] = (unsigned char)(digits & 1 ? bytes[digits / 2] | value : value << 4);
        digits++;
    }
    return digits == 32;
}

static int by_cuda(const char *text, const CUuuid *uuids) {
    unsigned char bytes[16];
    if (!hl_uuid_bytes(text, bytes)) return -1;
    for (int device = 0; device < cuda.count && device < HL_CARDS; device++)
        if (!memcmp(&uuids[device], bytes, sizeof bytes)) return device;
    return -1;
}

bool hl_devices_handle_uuid(nvmlDevice_t device, unsigned char *uuid) {
    __typeof__(&nvmlDeviceGetUUID) get_uuid = HL_REAL(nvmlDeviceGetUUID);
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    return get_uuid && get_uuid(device, text, sizeof text) == NVML_SUCCESS && hl_uuid_bytes(text, uuid);
}

static const char mig[] = "MIG-";
static bool is_mig(const char *text) { return !strncasecmp(text, mig, sizeof mig - 1); }

/* The UUID of the card that a MIG device is a part of. */
static bool card_of(nvmlDevice_t device, char *text, unsigned bytes) {
    __typeof__(&nvmlDeviceGetDeviceHandleFromMigDeviceHandle) parent =
        HL_REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    __typeof__(&nvmlDeviceGetUUID) get_uuid = HL_REAL(nvmlDeviceGetUUID);
    nvmlDevice_t card;
    return parent && get_uuid && parent(device, &card) == NVML_SUCCESS && get_uuid(card, text, bytes) == NVML_SUCCESS;
}

/* Whether an entry of CUDA_VISIBLE_DEVICES names this MIG device: the beginning of its UUID, or the form of drivers before
 * 470, "MIG-<UUID of the card>/<GPU instance>/<compute instance>". */
static bool names_mig(const char *entry, size_t length, nvmlDevice_t device, const char *uuid) {
    char card[NVML_DEVICE_UUID_V2_BUFFER_SIZE], old[sizeof card + 32];
    if (!memchr(entry, '/', length)) return length > sizeof mig - 1 && !strncasecmp(uuid, entry, length);
    __typeof__(&nvmlDeviceGetGpuInstanceId) gpu = HL_REAL(nvmlDeviceGetGpuInstanceId);
    __typeof__(&nvmlDeviceGetComputeInstanceId) compute = HL_REAL(nvmlDeviceGetComputeInstanceId);
    unsigned one, two;
    if (!gpu || !compute || gpu(device, &one) || compute(device, &two) || !card_of(device, card, sizeof card))
        return false;
    return snprintf(old, sizeof old, "%s%s/%u/%u", mig, card, one, two) == (int)length &&
           !strncasecmp(old, entry, length);
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

/* The card of the MIG device that an entry names; -1: cannot be told. */
static int card_of_entry(const struct hl_cards *cards, const char *entry, size_t length) {
    enum { MOST = 7 };
    __typeof__(&nvmlDeviceGetMigDeviceHandleByIndex) part_of = HL_REAL(nvmlDeviceGetMigDeviceHandleByIndex);
    __typeof__(&nvmlDeviceGetUUID) get_uuid = HL_REAL(nvmlDeviceGetUUID);
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    nvmlDevice_t part;
    for (unsigned i = 0; part_of && get_uuid && i < cards->count; i++)
        for (unsigned index = 0; cards->card[i].handle && index < MOST; index++)
            if (part_of(cards->card[i].handle, index, &part) == NVML_SUCCESS &&
                get_uuid(part, uuid, sizeof uuid) == NVML_SUCCESS && names_mig(entry, length, part, uuid))
                return (int)i;
    return -1;
}

/* The list as the driver reads it: up to the first entry that names no device; the first entry decides whether numbers or
 * UUIDs are meant; a device named twice leaves none; a MIG device leaves its card only. False: it cannot be told. */
static bool by_environment(struct hl_cards *cards, const char *list) {
    int form = 0, ordinal = 0; /* 1 numbers, 2 UUIDs */
    while (*list) {
        size_t length = strcspn(list, ",");
        const char *start = list;
        while (length && isspace((unsigned char)*start)) start++, length--;
        list = start + length + (start[length] == ',');
        while (length && isspace((unsigned char)start[length - 1])) length--;
        if (length > 4 && is_mig(start)) {
            int card = card_of_entry(cards, start, length);
            for (unsigned i = 0; i < cards->count; i++) cards->card[i].ordinal = (int)i == card ? 0 : -1;
            return card >= 0;
        }
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
        int ordinal = cards->card[i].handle ? by_cuda(cards->card[i].uuid, cuda.card) : -1;
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

/* Before cuInit, of a MIG device: a process that sees one sees no other device, so it is the first or none. */
static int by_guess_mig(nvmlDevice_t device, const char *uuid) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    __typeof__(&nvmlDeviceGetIndex) get_index = HL_REAL(nvmlDeviceGetIndex);
    unsigned index = 1;
    while (list && isspace((unsigned char)*list)) list++;
    if (list && is_mig(list)) return names_mig(list, strcspn(list, ", "), device, uuid) ? 0 : -1;
    return get_index && get_index(device, &index) == NVML_SUCCESS && index == 0 ? 0 : -1;
}

/* Before cuInit. */
static int by_guess(nvmlDevice_t device) {
    struct hl_cards cards;
    __typeof__(&nvmlDeviceGetUUID) get_uuid = HL_REAL(nvmlDeviceGetUUID);
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    if (get_uuid && get_uuid(device, text, sizeof text) == NVML_SUCCESS && is_mig(text))
        return by_guess_mig(device, text);
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
    int ordinal = by_cuda(text, cuda.uuid);
    unsigned at = __atomic_fetch_add(&handles_used, 1, __ATOMIC_ACQ_REL);
    if (at < HANDLES) {
        handles[at].ordinal = ordinal;
        __atomic_store_n(&handles[at].handle, device, __ATOMIC_RELEASE);
    }
    return ordinal;
}
