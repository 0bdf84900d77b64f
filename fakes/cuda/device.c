/* Devices: name, identity, memory size, attributes. Attributes that a profile does not state are those of a measured
 * data-centre device; the table below is by attribute number, as the vendor's header counts them. */
#include "array.h"
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTRIBUTES = 148 };

/* -2: not an attribute. Rows of ten. */
static const int measured[ATTRIBUTES] = {
    -2,       1024,      1024,     1024,  64,    2147483647, 65535, 65535, 49152,  65536,     32,     2147483647,
    65536,    1980000,   512,      1,     132,   0,          0,     1,     0,      131072,    131072, 65536,
    16384,    16384,     16384,    32768, 32768, 2048,       512,   1,     1,      0,         6,      0,
    3201000,  6016,      62914560, 2048,  3,     1,          32768, 2048,  1,      32768,     32768,  8192,
    8192,     32768,     0,        32,    32768, 32768,      2046,  32768, 131072, 65536,     16384,  16384,
    16384,    32768,     2048,     32768, 32768, 2048,       32768, 32768, 2046,   268435456, 131072, 65000,
    2097120,  32768,     32768,    9,     0,     32768,      1,     1,     1,      233472,    65536,  1,
    0,        0,         0,        2,     0,     1,          1,     1,     0,      0,         0,      1,
    1,        232448,    0,        1,     0,     0,          1,     1,     0,      0,         32,     1,
    39321600, 134217728, 1,        1024,  1,     1,          1,     1,     1,      1,         100,    9,
    1,        1,         1,        1,     1,     1,          4,     1,     1,      1,         0,      -1,
    0,        0,         0,        0,     0,     0,          0,     0,     0,      1,         1,      0,
    1,        1,         0,        0,
};

static int attribute(const struct hl_node_device *d, int which) {
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return (int)d->clock_khz;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return (int)d->sm_count;
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: return (int)d->ecc;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return (int)d->pci_bus;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: return (int)d->pci_device;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: return (int)d->pci_domain;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return (int)d->memory_clock_khz;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return (int)d->bus_width_bits;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return (int)d->l2_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return (int)d->threads_per_sm;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return (int)d->copy_engines;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return d->cc_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return d->cc_minor;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return (int)d->shared_bytes_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return (int)d->registers_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return (int)d->shared_bytes_optin;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return (int)d->blocks_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: return d->cc_major >= 8 ? (int)(d->l2_bytes / 8 * 5) : 0;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return d->cc_major >= 9;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST: return d->integrated ? 1 : measured[which];
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: return d->integrated ? 0 : measured[which];
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID: return (int)d->pci_device_id;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID: return (int)d->pci_subsystem_id;
    default: return measured[which];
    }
}

static CUresult known(CUdevice device, struct hl_node_device **out) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    *out = physical(v->physical);
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *out, int which, CUdevice device) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!out || which < 0 || which >= ATTRIBUTES || measured[which] == -2) return CUDA_ERROR_INVALID_VALUE;
    *out = attribute(d, which);
    return CUDA_SUCCESS;
}
API cuDeviceGetAttribute(int *value, CUdevice_attribute attrib, CUdevice device) {
    ENTER(cuDeviceGetAttribute);
    LEAVE(get_attribute(value, (int)attrib, device), attrib, 0);
}

static CUresult get(CUdevice *out, int ordinal) {
    CUresult result = need_init();
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!visible_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *out = ordinal;
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGet, (CUdevice * device, int ordinal), get(device, ordinal))

static CUresult count(int *out) {
    CUresult result = need_init();
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = fake.count;
    hl_output(out, sizeof *out);
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetCount, (int *value), count(value))

static CUresult name(char *out, int length, CUdevice device) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (length == 0) fake_crash();
    /* A negative length is no bound at all; a positive one is padded with zeros, as strncpy does. */
    if (length < 0) {
        strcpy(out, d->name);
    } else {
        strncpy(out, d->name, (size_t)length - 1);
        out[length - 1] = 0;
    }
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetName, (char *text, int length, CUdevice device), name(text, length, device))

/* Of a MIG device, the second version gives its own, the first its card's. */
static CUresult uuid(CUuuid *out, CUdevice device, int card) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (card && d->parent) d = physical(d->parent - 1);
    memcpy(out->bytes, d->uuid, sizeof out->bytes);
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetUuid, (CUuuid * id, CUdevice device), uuid(id, device, 1))
ENTRY(cuDeviceGetUuid_v2, (CUuuid * id, CUdevice device), uuid(id, device, 0))

static CUresult total(size_t *out, CUdevice device) {
    if (out) *out = 0;
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = d->total_bytes;
    hl_output(out, sizeof *out);
    return CUDA_SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem_v2);
    CUresult result = total(bytes, device);
    LEAVE(result, result ? 0 : *bytes, 0);
}
static CUresult total32(unsigned *out, CUdevice device) {
    size_t bytes = 0;
    CUresult result = total(out ? &bytes : NULL, device);
    if (out) *out = bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
    return result;
}
ENTRY(cuDeviceTotalMem, (unsigned int *bytes, CUdevice device), total32(bytes, device))

static CUresult capability(int *major, int *minor, CUdevice device) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = d->cc_major;
    *minor = d->cc_minor;
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device), capability(major, minor, device))

static CUresult properties(CUdevprop *out, CUdevice device) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdevprop){.maxThreadsPerBlock = measured[1],
                       .maxThreadsDim = {measured[2], measured[3], measured[4]},
                       .maxGridSize = {measured[5], measured[6], measured[7]},
                       .sharedMemPerBlock = measured[8],
                       .totalConstantMemory = measured[9],
                       .SIMDWidth = measured[10],
                       .memPitch = measured[11],
                       .regsPerBlock = measured[12],
                       .clockRate = (int)d->clock_khz,
                       .textureAlign = measured[14]};
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetProperties, (CUdevprop * prop, CUdevice device), properties(prop, device))

static CUresult pci(char *out, int length, CUdevice device) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!out || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    int wanted = snprintf(out, (size_t)length, "%04x:%02x:%02x.0", d->pci_domain, d->pci_bus, d->pci_device);
    return wanted < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuDeviceGetPCIBusId, (char *text, int length, CUdevice device), pci(text, length, device))

static CUresult by_pci(CUdevice *out, const char *text) {
    CUresult result = need_init();
    if (result) return result;
    unsigned domain, bus, dev, function = 0;
    if (!out || !text || sscanf(text, "%x:%x:%x.%x", &domain, &bus, &dev, &function) < 3)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < fake.count; i++) {
        struct hl_node_device *d = physical(fake.visible[i].physical);
        if (d->pci_domain == domain && d->pci_bus == bus && d->pci_device == dev) {
            *out = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}
ENTRY(cuDeviceGetByPCIBusId, (CUdevice * device, const char *text), by_pci(device, text))

/* Peers: cards of one model that are no consumer cards reach each other's memory; MIG devices reach nobody's. */
int peer_possible(uint32_t device, uint32_t other) {
    enum { BRAND_GEFORCE = 5 };
    return device != other && !physical(device)->parent && !physical(other)->parent &&
           physical(device)->brand != BRAND_GEFORCE && strcmp(physical(device)->name, physical(other)->name) == 0;
}

static CUresult peer(int *out, CUdevice device, CUdevice other) {
    struct hl_node_device *one, *two;
    CUresult result = known(device, &one);
    if (result == CUDA_SUCCESS) result = known(other, &two);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = peer_possible((uint32_t)(one - hl_node.devices), (uint32_t)(two - hl_node.devices));
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice other), peer(can, device, other))

static CUresult p2p(int *out, int which, CUdevice device, CUdevice other) {
    struct hl_node_device *one, *two;
    CUresult result = known(device, &one);
    if (result == CUDA_SUCCESS) result = known(other, &two);
    if (result) return result;
    if (device == other) return CUDA_ERROR_INVALID_DEVICE;
    if (!out || which < 1) return CUDA_ERROR_INVALID_VALUE;
    *out = which == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
               ? 0
               : peer_possible((uint32_t)(one - hl_node.devices), (uint32_t)(two - hl_node.devices));
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetP2PAttribute, (int *value, CUdevice_P2PAttribute which, CUdevice device, CUdevice other),
      p2p(value, (int)which, device, other))

static CUresult affinity(int *out, CUdevice device) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = 0;
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetExecAffinitySupport, (int *pi, CUexecAffinityType type, CUdevice device),
      ((void)type, affinity(pi, device)))

/* Identity numbers of Windows and of NvSci: no device of this platform has them. */
static CUresult elsewhere(const void *out, CUdevice device) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    return result ? result : out ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuDeviceGetLuid, (char *luid, unsigned int *mask, CUdevice device), ((void)mask, elsewhere(luid, device)))
ENTRY(cuDeviceGetNvSciSyncAttributes, (void *list, CUdevice device, int flags), ((void)flags, elsewhere(list, device)))

/* The host's writes reach a device in order: there is nothing to flush. */
static CUresult flush_writes(int target, int scope) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
                   (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ||
                    scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuFlushGPUDirectRDMAWrites, (CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope),
      flush_writes((int)target, (int)scope))

/* ---- multicast: no profile has a device that can (attribute 132 is 0, measured) ------------------------------- */

static CUresult multicast(void) {
    CUresult result = need_init();
    return result ? result : CUDA_ERROR_NOT_SUPPORTED;
}
ENTRY(cuMulticastCreate, (CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *prop),
      ((void)handle, (void)prop, multicast()))
ENTRY(cuMulticastGetGranularity,
      (size_t *granularity, const CUmulticastObjectProp *prop, CUmulticastGranularity_flags option),
      ((void)granularity, (void)prop, (void)option, multicast()))
ENTRY(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device),
      ((void)handle, (void)device, multicast()))
ENTRY(cuMulticastBindMem,
      (CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset,
       size_t size, unsigned long long flags),
      ((void)handle, (void)offset, (void)memory, (void)memory_offset, (void)size, (void)flags, multicast()))
ENTRY(cuMulticastBindAddr,
      (CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr at, size_t size, unsigned long long flags),
      ((void)handle, (void)offset, (void)at, (void)size, (void)flags, multicast()))
ENTRY(cuMulticastUnbind, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size),
      ((void)handle, (void)device, (void)offset, (void)size, multicast()))

static CUresult texture(size_t *out, CUarray_format format, unsigned channels, CUdevice device) {
    struct hl_node_device *d;
    CUresult result = known(device, &d);
    if (result) return result;
    if (!out || !array_channel_bytes(format) || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    *out = 1 << 30;
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetTexture1DLinearMaxWidth, (size_t *width, CUarray_format format, unsigned channels, CUdevice device),
      texture(width, format, channels, device))
