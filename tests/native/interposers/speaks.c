/* A small interposer that is told its limits by another dialect than ours, so that the lab's side of it can be tested:
 * -DSPEAKS=1 vgpu-manager: the limit of the first device from vgpu.config; what it holds stands in vmem_node.config, where
 * -DFAULT=1 plants two faults: it never takes a free out of the books, and reads the limit of the next device.
 * -DSPEAKS=2 nvshare: cuInit succeeds only while somebody listens at the scheduler's socket; no limit.
 * It answers on relocation, for cuInit, cuMemAlloc_v2 and cuMemFree_v2; one allocation lives at a time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "hl_layout_vgpu_manager_1.h"

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, UNKNOWN = 999 };

#if SPEAKS == 1
static const void *mapped(const char *path, size_t bytes, int create) {
    int file = open(path, create ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666);
    if (file < 0 || (create && ftruncate(file, HL_VGPUM_FILE_BYTES))) return NULL;
    void *memory = mmap(NULL, bytes, create ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct hl_vgpum_region *books(void) {
    static struct hl_vgpum_region *region;
    if (!region) region = (struct hl_vgpum_region *)mapped("/tmp/.vmem_node/vmem_node.config", sizeof *region, 1);
    if (region) {
        region->magic = HL_VGPUM_MAGIC;
        region->version = HL_VGPUM_VERSION;
    }
    return region;
}

static int admits(uint64_t bytes) {
    static const struct hl_vgpum_config *config;
    struct hl_vgpum_region *region = books();
    if (!config) config = mapped("/etc/vgpu-manager/config/vgpu.config", sizeof *config, 0);
    if (!config || !region || config->magic != HL_VGPUM_CONFIG_MAGIC) return 0;
    const struct hl_vgpum_limits *device = &config->devices[FAULT];
    struct hl_vgpum_process *own = &region->devices[0].processes[0];
    if (device->memory_limit && own->used + bytes > device->total_memory) return 0;
    own->pid = getpid();
    own->used += bytes;
    return 1;
}

static void gives(void) {
    struct hl_vgpum_region *region = books();
    if (region && !FAULT) memset(&region->devices[0].processes[0], 0, sizeof region->devices[0].processes[0]);
}
#else
static int admits(uint64_t bytes) { return bytes > 0; }
static void gives(void) {}
#endif

__attribute__((visibility("default"))) int cuInit(unsigned flags) {
    int (*real)(unsigned) = (int (*)(unsigned))dlsym(RTLD_NEXT, "cuInit");
#if SPEAKS == 2
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/var/run/nvshare/scheduler.sock"};
    int scheduler = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(scheduler, (struct sockaddr *)&address, sizeof address)) return UNKNOWN;
    close(scheduler);
#endif
    return real ? real(flags) : UNKNOWN;
}

__attribute__((visibility("default"))) int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
    int (*real)(unsigned long long *, size_t) =
        (int (*)(unsigned long long *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    return admits(bytes) ? real(pointer, bytes) : OUT_OF_MEMORY;
}

__attribute__((visibility("default"))) int cuMemFree_v2(unsigned long long pointer) {
    int (*real)(unsigned long long) = (int (*)(unsigned long long))dlsym(RTLD_NEXT, "cuMemFree_v2");
    gives();
    return real(pointer);
}
