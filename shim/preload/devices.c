/* Which device is which: CUDA ordinals (what limits are numbered by) and NVML's handles, matched by UUID.
 *
 * Invariants: once CUDA is initialised the driver's own UUIDs decide. Before that, in a process that only uses NVML,
 * CUDA_VISIBLE_DEVICES is read as the driver will read it (positions in the list are ordinals; it ends at the first
 * entry that names no device); nothing of that guess is remembered. */
#include "preload.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct {
    int learned; /* release/acquire: the rest is whole */
    int count;
    CUuuid uuid[HL_DEVICES];
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
    for (int device = 0; device < count && device < HL_DEVICES; device++)
        if (get_uuid(&cuda.uuid[device], device) != CUDA_SUCCESS)
            memset(&cuda.uuid[device], 0, sizeof cuda.uuid[device]);
    hl_devices_forget_nvml();
    __atomic_store_n(&cuda.learned, 1, __ATOMIC_RELEASE);
}

bool hl_devices_uuid(int device, unsigned char *uuid) {
    if (!__atomic_load_n(&cuda.learned, __ATOMIC_ACQUIRE) || device >= cuda.count || device >= HL_DEVICES) return false;
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
    for (int device = 0; device < cuda.count && device < HL_DEVICES; device++)
        if (!memcmp(&cuda.uuid[device], bytes, sizeof bytes)) return device;
    return -1;
}

static int by_environment(const char *uuid, unsigned index) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) return index < HL_DEVICES ? (int)index : -1;
    for (int ordinal = 0; *list; ordinal++) {
        while (*list == ' ') list++;
        size_t length = strcspn(list, ",");
        if (!strncasecmp(list, "GPU-", 4)) {
            if (!strncasecmp(list, uuid, length)) return ordinal;
        } else {
            char *end = NULL;
            long number = strtol(list, &end, 10);
            if (end == list || number < 0) return -1;
            if ((unsigned long)number == index) return ordinal;
        }
        list += length;
        if (*list == ',') list++;
    }
    return -1;
}

int hl_devices_nvml(nvmlDevice_t device) {
    bool learned = __atomic_load_n(&cuda.learned, __ATOMIC_ACQUIRE);
    unsigned used = __atomic_load_n(&handles_used, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; learned && i < used && i < HANDLES; i++)
        if (__atomic_load_n(&handles[i].handle, __ATOMIC_ACQUIRE) == device) return handles[i].ordinal;
    __typeof__(&nvmlDeviceGetUUID) get_uuid = HL_REAL(nvmlDeviceGetUUID);
    __typeof__(&nvmlDeviceGetIndex) get_index = HL_REAL(nvmlDeviceGetIndex);
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    unsigned index = 0;
    if (!get_uuid || get_uuid(device, text, sizeof text) != NVML_SUCCESS) return -1;
    if (!learned) return get_index && get_index(device, &index) == NVML_SUCCESS ? by_environment(text, index) : -1;
    int ordinal = by_cuda(text);
    unsigned at = __atomic_fetch_add(&handles_used, 1, __ATOMIC_ACQ_REL);
    if (at < HANDLES) {
        handles[at].ordinal = ordinal;
        __atomic_store_n(&handles[at].handle, device, __ATOMIC_RELEASE);
    }
    return ordinal;
}
