/* The frame of every function of the fake libnvidia-ml, and what its files share.
 *
 * Invariants: a call is counted and disturbed by planned faults first; before nvmlInit (and in a forked child until its
 * own) every function but the error text answers UNINITIALIZED and touches nothing; a handle is the address of a row of
 * hl_nvml_handles, so that garbage crashes as it does in the real library and NULL is refused. Nothing here knows
 * CUDA_VISIBLE_DEVICES: NVML sees every card. Handles of MIG devices are rows like those of cards; a function takes them
 * only where it says so (NVML_ANY_DEVICE), elsewhere they are NOT_SUPPORTED. */
#ifndef HOOKLAB_NVML_FRAME_H
#define HOOKLAB_NVML_FRAME_H
#include <nvml.h>
#include <stdint.h>

#include "call.h"
#include "hl_names.h"
#include "node.h"

struct nvmlDevice_st {
    uint32_t index;
};

extern struct nvmlDevice_st hl_nvml_handles[HL_MAX_DEVICES];

int hl_nvml_ready(void); /* initialised in this process */

/* NVML_BODY(name, (parameters), (arguments)) { body } defines the exported function around the body. `first` is what must
 * happen before the call is counted, `ready` whether the body may run. */
#define NVML_FRAME(name, parameters, arguments, first, ready)                                                          \
    static nvmlReturn_t name##_body parameters;                                                                        \
    __attribute__((visibility("default"))) nvmlReturn_t name parameters {                                              \
        struct hl_call call;                                                                                           \
        first;                                                                                                         \
        if (hl_fake_enter(&call, HL_##name)) return (nvmlReturn_t)hl_fake_refuse(&call);                               \
        nvmlReturn_t result = (ready) ? name##_body arguments : NVML_ERROR_UNINITIALIZED;                              \
        return (nvmlReturn_t)hl_fake_leave(&call, (int32_t)result, 0, 0);                                              \
    }                                                                                                                  \
    static nvmlReturn_t name##_body parameters

#define NVML_BODY(name, parameters, arguments) NVML_FRAME(name, parameters, arguments, (void)0, hl_nvml_ready())
#define NVML_ALWAYS(name, parameters, arguments) NVML_FRAME(name, parameters, arguments, (void)0, 1)

/* The device of a handle; *result says why there is none. */
static inline struct hl_node_device *hl_nvml_device(nvmlDevice_t handle, int instances_too, nvmlReturn_t *result) {
    *result = NVML_SUCCESS;
    if (!handle || handle->index >= hl_node.header->device_count) {
        *result = NVML_ERROR_INVALID_ARGUMENT;
        return NULL;
    }
    struct hl_node_device *device = &hl_node.devices[handle->index];
    if (__atomic_load_n(&device->lost, __ATOMIC_ACQUIRE)) *result = NVML_ERROR_GPU_IS_LOST;
    else if (device->parent && !instances_too) *result = NVML_ERROR_NOT_SUPPORTED;
    return *result ? NULL : device;
}

#define NVML_FIND(device, handle, instances_too)                                                                       \
    nvmlReturn_t device##_result;                                                                                      \
    struct hl_node_device *device = hl_nvml_device(handle, instances_too, &device##_result);                           \
    if (!device) return device##_result
#define NVML_DEVICE(device, handle) NVML_FIND(device, handle, 0)     /* a whole card */
#define NVML_ANY_DEVICE(device, handle) NVML_FIND(device, handle, 1) /* a card or a MIG device */

/* A number of a device: its own NULL check, one assignment. */
#define NVML_NUMBER(name, type, expression) NVML_NUMBER_OF(NVML_DEVICE, name, type, expression)
#define NVML_NUMBER_OF(which, name, type, expression)                                                                  \
    NVML_BODY(name, (nvmlDevice_t handle, type * value), (handle, value)) {                                            \
        which(device, handle);                                                                                         \
        if (!value) return NVML_ERROR_INVALID_ARGUMENT;                                                                \
        *value = (type)(expression);                                                                                   \
        return NVML_SUCCESS;                                                                                           \
    }

/* Copies text of at most `capacity` bytes in the node file. INSUFFICIENT_SIZE leaves the buffer alone. */
nvmlReturn_t hl_nvml_text(const char *text, size_t capacity, char *out, unsigned length);

/* "GPU-..." or, of an instance, "MIG-...". */
void hl_nvml_uuid_text(const struct hl_node_device *device, char out[NVML_DEVICE_UUID_BUFFER_SIZE]);
/* digits = width of the domain: 4 the legacy form, 8 the other. */
void hl_nvml_bus_text(const struct hl_node_device *device, int digits, char *out, size_t length);

/* The number by which NVML names a process of the node to this process; 0: it does not tell of it. */
uint32_t hl_nvml_pid(const struct hl_node_process *process);

/* Busy share of the device in the last whole sample, percent; of a card that is cut, by the multiprocessors of each. */
unsigned hl_nvml_busy(uint32_t index);
/* The same between two moments of CLOCK_MONOTONIC, parts in ten thousand. */
unsigned hl_nvml_busy_between(uint32_t index, uint64_t from_ns, uint64_t to_ns);
unsigned hl_nvml_power_mw(const struct hl_node_device *device);
unsigned hl_nvml_least_power_mw(const struct hl_node_device *device);
int hl_nvml_remaps_rows(const struct hl_node_device *device); /* instead of retiring pages */
int hl_nvml_has_mig(const struct hl_node_device *device);     /* the card can be partitioned */
/* The row is the card's, or one of its instances. */
static inline int hl_nvml_part_of(uint32_t row, const struct hl_node_device *device) {
    return &hl_node.devices[row] == device || hl_node.devices[row].parent == device - hl_node.devices + 1;
}
#endif
