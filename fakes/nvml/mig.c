/* MIG: cards that are cut into instances. What a card can be cut into and how it is cut come from the node's profile; a
 * process in a container changes neither.
 *
 * Invariants: a GPU instance has one compute instance, which takes all of it; both and the MIG device are one row of
 * hl_node.devices, after the rows of whole cards. Handles are rows, as those of devices; garbage crashes, NULL is refused.
 * A card with MIG off knows its kinds of instances and has none. */
#include <stdio.h>
#include <string.h>

#include "frame.h"

enum { MOST = 7, COMPUTE_PROFILES = 5 };

struct nvmlGpuInstance_st {
    uint32_t row;
};
struct nvmlComputeInstance_st {
    uint32_t row;
};
static struct nvmlGpuInstance_st gpu_instances[HL_MAX_DEVICES];
static struct nvmlComputeInstance_st compute_instances[HL_MAX_DEVICES];

typedef struct hl_node_device device_t;
typedef struct hl_node_instance_profile kind_t;

int hl_nvml_has_mig(const device_t *device) { return device->instance_profiles[0].name[0] != 0; }

static const device_t *card_of(const device_t *instance) { return &hl_node.devices[instance->parent - 1]; }
static const kind_t *kind_of(const device_t *instance) {
    return &card_of(instance)->instance_profiles[instance->instance_profile];
}

/* The next row at or after `row` that is an instance of the card; device_count: there is none. */
static uint32_t next_of(const device_t *card, uint32_t row) {
    uint32_t rows = hl_node.header->device_count;
    while (row < rows && !(hl_node.devices[row].parent && hl_nvml_part_of(row, card))) row++;
    return row;
}
#define EACH_INSTANCE(row, card)                                                                                       \
    uint32_t row = next_of(card, hl_node.header->card_count);                                                          \
    row < hl_node.header->device_count;                                                                                \
    row = next_of(card, row + 1)

/* ---- the mode, and MIG devices --------------------------------------------------------------------------------- */

NVML_BODY(nvmlDeviceGetMigMode, (nvmlDevice_t handle, unsigned int *now, unsigned int *pending),
          (handle, now, pending)) {
    NVML_DEVICE(device, handle);
    if (!now || !pending) return NVML_ERROR_INVALID_ARGUMENT;
    if (!hl_nvml_has_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    *now = *pending = device->mig ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceSetMigMode, (nvmlDevice_t handle, unsigned int mode, nvmlReturn_t *status),
          (handle, mode, status)) {
    NVML_DEVICE(device, handle);
    if (!status || mode > NVML_DEVICE_MIG_ENABLE) return NVML_ERROR_INVALID_ARGUMENT;
    return hl_nvml_has_mig(device) ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_SUPPORTED;
}

/* How many there can be, not how many there are. */
NVML_NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, device->mig ? MOST : 0)
NVML_NUMBER_OF(NVML_ANY_DEVICE, nvmlDeviceIsMigDeviceHandle, unsigned int, device->parent != 0)

NVML_BODY(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t handle, unsigned int index, nvmlDevice_t *out),
          (handle, index, out)) {
    NVML_DEVICE(device, handle);
    if (!out || (hl_nvml_has_mig(device) && index >= MOST)) return NVML_ERROR_INVALID_ARGUMENT;
    if (!hl_nvml_has_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    for (EACH_INSTANCE(row, device))
        if (hl_node.devices[row].mig_index == index) {
            *out = &hl_nvml_handles[row];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

NVML_BODY(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t handle, nvmlDevice_t *out), (handle, out)) {
    NVML_ANY_DEVICE(device, handle);
    if (!out || !device->parent) return NVML_ERROR_INVALID_ARGUMENT;
    *out = &hl_nvml_handles[device->parent - 1];
    return NVML_SUCCESS;
}

#define ID(name, field)                                                                                                \
    NVML_BODY(name, (nvmlDevice_t handle, unsigned int *id), (handle, id)) {                                           \
        NVML_ANY_DEVICE(device, handle);                                                                               \
        if (!id) return NVML_ERROR_INVALID_ARGUMENT;                                                                   \
        if (!device->parent) return NVML_ERROR_NOT_SUPPORTED;                                                          \
        *id = device->field;                                                                                           \
        return NVML_SUCCESS;                                                                                           \
    }
ID(nvmlDeviceGetGpuInstanceId, gpu_instance)
ID(nvmlDeviceGetComputeInstanceId, compute_instance)

static nvmlReturn_t attributes(nvmlDevice_t handle, nvmlDeviceAttributes_t *out) {
    NVML_ANY_DEVICE(device, handle);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->parent) return NVML_ERROR_NOT_SUPPORTED;
    const kind_t *kind = kind_of(device);
    *out = (nvmlDeviceAttributes_t){.multiprocessorCount = kind->sm_count,
                                    .sharedCopyEngineCount = kind->copy_engines,
                                    .sharedDecoderCount = kind->decoders,
                                    .sharedEncoderCount = kind->encoders,
                                    .sharedJpegCount = kind->jpegs,
                                    .sharedOfaCount = kind->ofas,
                                    .gpuInstanceSliceCount = kind->slices,
                                    .computeInstanceSliceCount = kind->slices,
                                    .memorySizeMB = kind->memory_mib};
    return NVML_SUCCESS;
}
NVML_BODY(nvmlDeviceGetAttributes, (nvmlDevice_t handle, nvmlDeviceAttributes_t *out), (handle, out)) {
    return attributes(handle, out);
}
NVML_BODY(nvmlDeviceGetAttributes_v2, (nvmlDevice_t handle, nvmlDeviceAttributes_t *out), (handle, out)) {
    return attributes(handle, out);
}

/* ---- kinds of GPU instances ------------------------------------------------------------------------------------ */

/* by_id: `which` is the card's own number of the kind, else NVML's number of the form. *result says why there is none. */
static const kind_t *find_kind(const device_t *device, unsigned which, int by_id, nvmlReturn_t *result) {
    *result = NVML_SUCCESS;
    for (int i = 0; i < HL_INSTANCE_PROFILES && device->instance_profiles[i].name[0]; i++) {
        const kind_t *kind = &device->instance_profiles[i];
        if ((by_id ? kind->id : kind->kind) == which) return kind;
    }
    *result =
        !by_id && which >= NVML_GPU_INSTANCE_PROFILE_COUNT ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    return NULL;
}
#define FIND_KIND(kind, device, which, by_id)                                                                          \
    nvmlReturn_t kind##_result;                                                                                        \
    const kind_t *kind = find_kind(device, which, by_id, &kind##_result);                                              \
    if (!kind) return kind##_result

NVML_BODY(nvmlDeviceGetGpuInstanceProfileInfo,
          (nvmlDevice_t handle, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info), (handle, profile, info)) {
    NVML_DEVICE(device, handle);
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    FIND_KIND(kind, device, profile, 0);
    *info = (nvmlGpuInstanceProfileInfo_t){.id = kind->id,
                                           .sliceCount = kind->slices,
                                           .instanceCount = kind->count,
                                           .multiprocessorCount = kind->sm_count,
                                           .copyEngineCount = kind->copy_engines,
                                           .decoderCount = kind->decoders,
                                           .encoderCount = kind->encoders,
                                           .jpegCount = kind->jpegs,
                                           .ofaCount = kind->ofas,
                                           .memorySizeMB = kind->memory_mib};
    return NVML_SUCCESS;
}

/* Version 3 has the fields of version 2 in the same order, without isP2pSupported and with one more at the end. */
static nvmlReturn_t versioned_kind(nvmlDevice_t handle, unsigned which, int by_id,
                                   nvmlGpuInstanceProfileInfo_v2_t *out) {
    NVML_DEVICE(device, handle);
    if (!out || (out->version != nvmlGpuInstanceProfileInfo_v2 && out->version != nvmlGpuInstanceProfileInfo_v3))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->mig) return NVML_ERROR_NOT_SUPPORTED;
    FIND_KIND(kind, device, which, by_id);
    nvmlGpuInstanceProfileInfo_v3_t info = {.version = out->version,
                                            .id = kind->id,
                                            .sliceCount = kind->slices,
                                            .instanceCount = kind->count,
                                            .multiprocessorCount = kind->sm_count,
                                            .copyEngineCount = kind->copy_engines,
                                            .decoderCount = kind->decoders,
                                            .encoderCount = kind->encoders,
                                            .jpegCount = kind->jpegs,
                                            .ofaCount = kind->ofas,
                                            .memorySizeMB = kind->memory_mib};
    snprintf(info.name, sizeof info.name, "MIG %s", kind->name);
    if (out->version == nvmlGpuInstanceProfileInfo_v3) {
        memcpy(out, &info, sizeof info);
        return NVML_SUCCESS;
    }
    *out = (nvmlGpuInstanceProfileInfo_v2_t){.version = info.version,
                                             .id = info.id,
                                             .sliceCount = info.sliceCount,
                                             .instanceCount = info.instanceCount,
                                             .multiprocessorCount = info.multiprocessorCount,
                                             .copyEngineCount = info.copyEngineCount,
                                             .decoderCount = info.decoderCount,
                                             .encoderCount = info.encoderCount,
                                             .jpegCount = info.jpegCount,
                                             .ofaCount = info.ofaCount,
                                             .memorySizeMB = info.memorySizeMB};
    memcpy(out->name, info.name, sizeof out->name);
    return NVML_SUCCESS;
}
NVML_BODY(nvmlDeviceGetGpuInstanceProfileInfoV,
          (nvmlDevice_t handle, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info), (handle, profile, info)) {
    return versioned_kind(handle, profile, 0, info);
}
NVML_BODY(nvmlDeviceGetGpuInstanceProfileInfoByIdV,
          (nvmlDevice_t handle, unsigned int id, nvmlGpuInstanceProfileInfo_v2_t *info), (handle, id, info)) {
    return versioned_kind(handle, id, 1, info);
}

static nvmlReturn_t placements(nvmlDevice_t handle, unsigned id, nvmlGpuInstancePlacement_t *out, unsigned *count) {
    NVML_DEVICE(device, handle);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    FIND_KIND(kind, device, id, 1);
    unsigned found = 0;
    for (unsigned start = 0; start < 8; start++) {
        if (!(kind->starts >> start & 1)) continue;
        if (out) out[found] = (nvmlGpuInstancePlacement_t){start, kind->memory_slices};
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}
NVML_BODY(nvmlDeviceGetGpuInstancePossiblePlacements,
          (nvmlDevice_t handle, unsigned int id, nvmlGpuInstancePlacement_t *out, unsigned int *count),
          (handle, id, out, count)) {
    return out ? placements(handle, id, out, count) : NVML_ERROR_INVALID_ARGUMENT;
}
NVML_BODY(nvmlDeviceGetGpuInstancePossiblePlacements_v2,
          (nvmlDevice_t handle, unsigned int id, nvmlGpuInstancePlacement_t *out, unsigned int *count),
          (handle, id, out, count)) {
    return placements(handle, id, out, count);
}

/* How many more would fit beside those that are there. */
NVML_BODY(nvmlDeviceGetGpuInstanceRemainingCapacity, (nvmlDevice_t handle, unsigned int id, unsigned int *count),
          (handle, id, count)) {
    NVML_DEVICE(device, handle);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->mig) return NVML_ERROR_NOT_SUPPORTED;
    FIND_KIND(kind, device, id, 1);
    unsigned memory = 0, compute = 0, room = 0;
    for (EACH_INSTANCE(row, device)) {
        const kind_t *other = kind_of(&hl_node.devices[row]);
        memory |= ((1u << other->memory_slices) - 1) << hl_node.devices[row].slice;
        compute += other->slices;
    }
    for (unsigned start = 0; start < 8; start++) {
        unsigned mask = ((1u << kind->memory_slices) - 1) << start;
        if (!(kind->starts >> start & 1) || (memory & mask) || compute + kind->slices > MOST) continue;
        memory |= mask;
        compute += kind->slices;
        room++;
    }
    *count = room < kind->count ? room : kind->count;
    return NVML_SUCCESS;
}

/* ---- GPU instances --------------------------------------------------------------------------------------------- */

static nvmlGpuInstance_t gpu_instance(uint32_t row) {
    gpu_instances[row].row = row;
    return &gpu_instances[row];
}

NVML_BODY(nvmlDeviceGetGpuInstances,
          (nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *out, unsigned int *count),
          (handle, id, out, count)) {
    NVML_DEVICE(device, handle);
    if (!out || !count) return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->mig) return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result;
    if (!find_kind(device, id, 1, &result)) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned found = 0;
    for (EACH_INSTANCE(row, device))
        if (kind_of(&hl_node.devices[row])->id == id) out[found++] = gpu_instance(row);
    *count = found;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetGpuInstanceById, (nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *out),
          (handle, id, out)) {
    NVML_DEVICE(device, handle);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->mig) return NVML_ERROR_NOT_SUPPORTED;
    for (EACH_INSTANCE(row, device))
        if (hl_node.devices[row].gpu_instance == id) {
            *out = gpu_instance(row);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

static const device_t *inside(const struct nvmlGpuInstance_st *instance) {
    return instance ? &hl_node.devices[instance->row] : NULL;
}

NVML_BODY(nvmlGpuInstanceGetInfo, (nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info), (instance, info)) {
    const device_t *device = inside(instance);
    if (!device || !info) return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){.device = &hl_nvml_handles[device->parent - 1],
                                    .id = device->gpu_instance,
                                    .profileId = kind_of(device)->id,
                                    .placement = {device->slice, kind_of(device)->memory_slices}};
    return NVML_SUCCESS;
}

/* ---- compute instances ----------------------------------------------------------------------------------------- */

/* Slices of a compute instance by its form, which is also its number; three only where they do not leave one alone. */
static const unsigned form_slices[COMPUTE_PROFILES] = {1, 2, 3, 4, 7};

static unsigned form(const kind_t *kind, unsigned profile) {
    unsigned slices = profile < COMPUTE_PROFILES ? form_slices[profile] : 0;
    return slices > kind->slices || (slices == 3 && kind->slices == 4) ? 0 : slices;
}

static nvmlReturn_t compute_kind(nvmlGpuInstance_t instance, unsigned profile, unsigned engines,
                                 nvmlComputeInstanceProfileInfo_v3_t *out) {
    const device_t *device = inside(instance);
    if (!device || profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT ||
        engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    const kind_t *kind = kind_of(device);
    unsigned slices = form(kind, profile);
    if (!slices) return NVML_ERROR_NOT_SUPPORTED;
    *out = (nvmlComputeInstanceProfileInfo_v3_t){.id = profile,
                                                 .sliceCount = slices,
                                                 .instanceCount = kind->slices / slices,
                                                 .multiprocessorCount = kind->sm_count / kind->slices * slices,
                                                 .sharedCopyEngineCount = kind->copy_engines,
                                                 .sharedDecoderCount = kind->decoders,
                                                 .sharedEncoderCount = kind->encoders,
                                                 .sharedJpegCount = kind->jpegs,
                                                 .sharedOfaCount = kind->ofas};
    if (slices == kind->slices) {
        out->multiprocessorCount = kind->sm_count;
        snprintf(out->name, sizeof out->name, "MIG %s", kind->name);
    } else {
        snprintf(out->name, sizeof out->name, "MIG %uc.%s", slices, kind->name);
    }
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpuInstanceGetComputeInstanceProfileInfo,
          (nvmlGpuInstance_t instance, unsigned int profile, unsigned int engines,
           nvmlComputeInstanceProfileInfo_t *info),
          (instance, profile, engines, info)) {
    nvmlComputeInstanceProfileInfo_v3_t all;
    nvmlReturn_t result = info ? compute_kind(instance, profile, engines, &all) : NVML_ERROR_INVALID_ARGUMENT;
    if (result) return result;
    *info = (nvmlComputeInstanceProfileInfo_t){.id = all.id,
                                               .sliceCount = all.sliceCount,
                                               .instanceCount = all.instanceCount,
                                               .multiprocessorCount = all.multiprocessorCount,
                                               .sharedCopyEngineCount = all.sharedCopyEngineCount,
                                               .sharedDecoderCount = all.sharedDecoderCount,
                                               .sharedEncoderCount = all.sharedEncoderCount,
                                               .sharedJpegCount = all.sharedJpegCount,
                                               .sharedOfaCount = all.sharedOfaCount};
    return NVML_SUCCESS;
}

/* Version 3 begins with version 2. */
_Static_assert(offsetof(nvmlComputeInstanceProfileInfo_v3_t, capabilities) <=
                       sizeof(nvmlComputeInstanceProfileInfo_v2_t) &&
                   offsetof(nvmlComputeInstanceProfileInfo_v3_t, name) ==
                       offsetof(nvmlComputeInstanceProfileInfo_v2_t, name),
               "the two versions differ in their ends only");
NVML_BODY(nvmlGpuInstanceGetComputeInstanceProfileInfoV,
          (nvmlGpuInstance_t instance, unsigned int profile, unsigned int engines,
           nvmlComputeInstanceProfileInfo_v2_t *info),
          (instance, profile, engines, info)) {
    if (!info ||
        (info->version != nvmlComputeInstanceProfileInfo_v2 && info->version != nvmlComputeInstanceProfileInfo_v3))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlComputeInstanceProfileInfo_v3_t all;
    nvmlReturn_t result = compute_kind(instance, profile, engines, &all);
    if (result) return result;
    all.version = info->version;
    memcpy(info, &all, info->version == nvmlComputeInstanceProfileInfo_v3 ? sizeof all : sizeof *info);
    return NVML_SUCCESS;
}

/* Everything is taken by the one that is there. */
NVML_BODY(nvmlGpuInstanceGetComputeInstanceRemainingCapacity,
          (nvmlGpuInstance_t instance, unsigned int id, unsigned int *count), (instance, id, count)) {
    const device_t *device = inside(instance);
    if (!device || !count) return NVML_ERROR_INVALID_ARGUMENT;
    if (!form(kind_of(device), id)) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpuInstanceGetComputeInstancePossiblePlacements,
          (nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstancePlacement_t *out, unsigned int *count),
          (instance, id, out, count)) {
    const device_t *device = inside(instance);
    if (!device || !count) return NVML_ERROR_INVALID_ARGUMENT;
    const kind_t *kind = kind_of(device);
    unsigned slices = form(kind, id), found = 0;
    if (!slices) return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned start = 0; start + slices <= kind->slices; start += slices, found++)
        if (out) out[found] = (nvmlComputeInstancePlacement_t){start, slices};
    *count = found;
    return NVML_SUCCESS;
}

static nvmlComputeInstance_t compute_instance(uint32_t row) {
    compute_instances[row].row = row;
    return &compute_instances[row];
}

/* The form of the compute instance that takes the whole GPU instance. */
static unsigned whole(const kind_t *kind) {
    unsigned profile = 0;
    while (profile < COMPUTE_PROFILES - 1 && form_slices[profile] != kind->slices) profile++;
    return profile;
}

NVML_BODY(nvmlGpuInstanceGetComputeInstances,
          (nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstance_t *out, unsigned int *count),
          (instance, id, out, count)) {
    const device_t *device = inside(instance);
    if (!device || !out || !count) return NVML_ERROR_INVALID_ARGUMENT;
    if (!form(kind_of(device), id)) return NVML_ERROR_NOT_SUPPORTED;
    *count = id == whole(kind_of(device));
    if (*count) out[0] = compute_instance(instance->row);
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpuInstanceGetComputeInstanceById,
          (nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstance_t *out), (instance, id, out)) {
    const device_t *device = inside(instance);
    if (!device || !out) return NVML_ERROR_INVALID_ARGUMENT;
    if (id != device->compute_instance) return NVML_ERROR_NOT_FOUND;
    *out = compute_instance(instance->row);
    return NVML_SUCCESS;
}

/* The first version ends before the placement. */
static nvmlReturn_t compute_info(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out, size_t bytes) {
    if (!instance || !out) return NVML_ERROR_INVALID_ARGUMENT;
    const device_t *device = &hl_node.devices[instance->row];
    nvmlComputeInstanceInfo_t info = {.device = &hl_nvml_handles[device->parent - 1],
                                      .gpuInstance = gpu_instance(instance->row),
                                      .id = device->compute_instance,
                                      .profileId = whole(kind_of(device)),
                                      .placement = {0, kind_of(device)->slices}};
    memcpy(out, &info, bytes);
    return NVML_SUCCESS;
}
NVML_BODY(nvmlComputeInstanceGetInfo, (nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info),
          (instance, info)) {
    return compute_info(instance, info, offsetof(nvmlComputeInstanceInfo_t, placement));
}
NVML_BODY(nvmlComputeInstanceGetInfo_v2, (nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info),
          (instance, info)) {
    return compute_info(instance, info, sizeof *info);
}

/* ---- changes: the administrator's ------------------------------------------------------------------------------ */

static nvmlReturn_t create(nvmlDevice_t handle, const void *out) {
    NVML_DEVICE(device, handle);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    return device->mig ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_SUPPORTED;
}
NVML_BODY(nvmlDeviceCreateGpuInstance, (nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *out),
          (handle, id, out)) {
    (void)id;
    return create(handle, out);
}
NVML_BODY(nvmlDeviceCreateGpuInstanceWithPlacement,
          (nvmlDevice_t handle, unsigned int id, const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *out),
          (handle, id, placement, out)) {
    (void)id;
    return placement ? create(handle, out) : NVML_ERROR_INVALID_ARGUMENT;
}
NVML_BODY(nvmlGpuInstanceDestroy, (nvmlGpuInstance_t instance), (instance)) {
    return instance ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_INVALID_ARGUMENT;
}
NVML_BODY(nvmlGpuInstanceCreateComputeInstance,
          (nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstance_t *out), (instance, id, out)) {
    (void)id;
    return instance && out ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_INVALID_ARGUMENT;
}
NVML_BODY(nvmlGpuInstanceCreateComputeInstanceWithPlacement,
          (nvmlGpuInstance_t instance, unsigned int id, const nvmlComputeInstancePlacement_t *placement,
           nvmlComputeInstance_t *out),
          (instance, id, placement, out)) {
    (void)id;
    return instance && placement && out ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_INVALID_ARGUMENT;
}
NVML_BODY(nvmlComputeInstanceDestroy, (nvmlComputeInstance_t instance), (instance)) {
    return instance ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_INVALID_ARGUMENT;
}
