/* Starts and ends the library: a count of initialisations, the connection to the node, handles, error text. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "frame.h"
#include "hl_errors.h"

struct nvmlDevice_st hl_nvml_handles[HL_MAX_DEVICES];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned count;
static int orphaned; /* a child of fork of an initialised parent that has not started the library itself */

/* A forked child has neither the parent's connection nor its initialisations. */
static void forked(int was_attached) {
    (void)was_attached;
    pthread_mutex_init(&mutex, NULL);
    orphaned = orphaned || count;
    __atomic_store_n(&count, 0, __ATOMIC_RELEASE);
}

int hl_nvml_ready(void) { return __atomic_load_n(&count, __ATOMIC_ACQUIRE) > 0; }

/* Before the call is counted, so that faults planned for a process's first call are known when it comes. */
static void attach(void) {
    hl_node_on_fork(forked);
    (void)hl_node_attach(HL_REQUEST_ATTACH_NVML);
}

static nvmlReturn_t start(void) {
    if (!hl_node_attached()) return NVML_ERROR_DRIVER_NOT_LOADED;
    pthread_mutex_lock(&mutex);
    orphaned = 0;
    if (count == 0) {
        for (uint32_t i = 0; i < HL_MAX_DEVICES; i++) hl_nvml_handles[i].index = i;
        hl_latency(0, HL_LATENCY_NVML_INIT);
    }
    __atomic_add_fetch(&count, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
    return NVML_SUCCESS;
}

#define INIT(name, parameters, arguments)                                                                              \
    NVML_FRAME(name, parameters, arguments, attach(), 1) { return start(); }
INIT(nvmlInit, (void), ())
INIT(nvmlInit_v2, (void), ())
NVML_FRAME(nvmlInitWithFlags, (unsigned int flags), (flags), attach(), 1) {
    (void)flags; /* no-GPU and no-attach modes make no difference to a node that has GPUs */
    return start();
}

/* Needs no beginning. */
NVML_FRAME(nvmlSystemGetNVMLVersion, (char *version, unsigned int length), (version, length), attach(), 1) {
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    if (!hl_node_attached()) return NVML_ERROR_DRIVER_NOT_LOADED;
    return hl_nvml_text(hl_node.header->nvml_string, sizeof hl_node.header->nvml_string, version, length);
}

/* In such a child it faults, as on a card. */
NVML_ALWAYS(nvmlShutdown, (void), ()) {
    while (orphaned) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (count == 0) result = NVML_ERROR_UNINITIALIZED;
    else __atomic_sub_fetch(&count, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
    return result;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result) {
    struct hl_call call;
    (void)hl_fake_enter(&call, HL_nvmlErrorString);
    (void)hl_fake_leave(&call, 0, 0, 0);
    const char *text = hl_nvml_error_text((int)result);
    return text ? text : "Unknown Error";
}

static nvmlReturn_t device_count(unsigned int *value) {
    if (!value) return NVML_ERROR_INVALID_ARGUMENT;
    *value = hl_node.header->card_count;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetCount, (unsigned int *value), (value)) { return device_count(value); }
NVML_BODY(nvmlDeviceGetCount_v2, (unsigned int *value), (value)) { return device_count(value); }

static nvmlReturn_t of_row(uint32_t row, nvmlDevice_t *handle) {
    if (__atomic_load_n(&hl_node.devices[row].lost, __ATOMIC_ACQUIRE)) return NVML_ERROR_GPU_IS_LOST;
    *handle = &hl_nvml_handles[row];
    return NVML_SUCCESS;
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *handle) {
    if (!handle || index >= hl_node.header->card_count) return NVML_ERROR_INVALID_ARGUMENT;
    return of_row(index, handle);
}

NVML_BODY(nvmlDeviceGetHandleByIndex, (unsigned int index, nvmlDevice_t *handle), (index, handle)) {
    return by_index(index, handle);
}
NVML_BODY(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *handle), (index, handle)) {
    return by_index(index, handle);
}

NVML_BODY(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *handle), (uuid, handle)) {
    if (!uuid || !handle) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t row = 0; row < hl_node.header->device_count; row++) { /* cards and MIG devices */
        char text[NVML_DEVICE_UUID_BUFFER_SIZE];
        hl_nvml_uuid_text(&hl_node.devices[row], text);
        if (strcmp(text, uuid) == 0) return of_row(row, handle);
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_BODY(nvmlDeviceGetHandleByUUIDV, (const nvmlUUID_t *uuid, nvmlDevice_t *handle), (uuid, handle)) {
    if (!uuid || !handle) return NVML_ERROR_INVALID_ARGUMENT;
    if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type != NVML_UUID_TYPE_ASCII && uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t row = 0; row < hl_node.header->device_count; row++) {
        char text[NVML_DEVICE_UUID_BUFFER_SIZE];
        hl_nvml_uuid_text(&hl_node.devices[row], text);
        if (uuid->type == NVML_UUID_TYPE_ASCII ? strncmp(text, uuid->value.str, sizeof uuid->value.str) == 0
                                               : memcmp(hl_node.devices[row].uuid, uuid->value.bytes, 16) == 0)
            return of_row(row, handle);
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_BODY(nvmlDeviceGetHandleBySerial, (const char *serial, nvmlDevice_t *handle), (serial, handle)) {
    if (!serial || !handle) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < hl_node.header->card_count; i++)
        if (strncmp(hl_node.devices[i].serial, serial, sizeof hl_node.devices[i].serial) == 0)
            return by_index(i, handle);
    return NVML_ERROR_NOT_FOUND;
}

/* Four or eight digits of domain, upper or lower case. */
static nvmlReturn_t by_bus(const char *bus, nvmlDevice_t *handle) {
    if (!bus || !handle) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < hl_node.header->card_count; i++) {
        char wide[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE], narrow[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
        hl_nvml_bus_text(&hl_node.devices[i], 8, wide, sizeof wide);
        hl_nvml_bus_text(&hl_node.devices[i], 4, narrow, sizeof narrow);
        if (strcasecmp(wide, bus) == 0 || strcasecmp(narrow, bus) == 0) return by_index(i, handle);
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_BODY(nvmlDeviceGetHandleByPciBusId, (const char *bus, nvmlDevice_t *handle), (bus, handle)) {
    return by_bus(bus, handle);
}
NVML_BODY(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus, nvmlDevice_t *handle), (bus, handle)) {
    return by_bus(bus, handle);
}
