/* Being initialised: cuInit, the devices that CUDA_VISIBLE_DEVICES leaves, fork, the driver's lock. */
#include "fake.h"

#include <ctype.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config.h"
#include "hl_fake_stubs.h"

struct fake fake;
__thread struct ctx *fake_current __attribute__((tls_model("initial-exec")));
static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;

/* 0 free, 1 held, 2 held and someone sleeps. Never held across a sleep, a copy of user data or a callback. */
void fake_lock(void) {
    uint32_t seen = 0;
    if (__builtin_expect(__atomic_compare_exchange_n(&fake.lock, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED), 1))
        return;
    for (int spin = 0; spin < 100; spin++) {
        seen = 0;
        if (__atomic_load_n(&fake.lock, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(&fake.lock, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    while (__atomic_exchange_n(&fake.lock, 2, __ATOMIC_ACQUIRE) != 0)
        syscall(SYS_futex, &fake.lock, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void fake_unlock(void) {
    if (__builtin_expect(__atomic_exchange_n(&fake.lock, 0, __ATOMIC_RELEASE) == 2, 0))
        syscall(SYS_futex, &fake.lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void fake_crash(void) {
    signal(SIGSEGV, SIG_DFL);
    for (;;) raise(SIGSEGV);
}

/* The child of an initialised parent has a driver that answers "not initialised" for ever; the child of one that only
 * looked symbols up starts afresh. */
static void in_child(int was_attached) {
    (void)was_attached;
    fake.lock = 0;
    pthread_mutex_init(&init_mutex, NULL);
    if (fake.state == READY) fake.state = FORKED;
}

struct visible *visible_device(CUdevice device) {
    return device >= 0 && device < fake.count ? &fake.visible[device] : NULL;
}

CUdevice ordinal_of(uint32_t physical_index) {
    for (int i = 0; i < fake.count; i++)
        if (fake.visible[i].physical == physical_index) return i;
    return 0;
}

/* Which device a "GPU-..." or "MIG-..." prefix of at least one digit means; -1 none or more than one. */
static int by_uuid(const char *token, size_t length, int instance) {
    int found = -1;
    if (length <= 4) return -1;
    for (uint32_t i = 0; i < hl_node.header->device_count; i++) {
        if ((physical(i)->parent != 0) != (instance != 0)) continue;
        const uint8_t *u = physical(i)->uuid;
        char text[48];
        snprintf(text, sizeof text, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                 instance ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
                 u[12], u[13], u[14], u[15]);
        if (length <= strlen(text) && strncasecmp(text, token, length) == 0) {
            if (found >= 0) return -1;
            found = (int)i;
        }
    }
    return found;
}

/* The form of drivers before 470: "MIG-GPU-<uuid of the card>/<GPU instance>/<compute instance>". */
static int by_instance_ids(const char *token, size_t length) {
    char text[96];
    if (length >= sizeof text) return -1;
    memcpy(text, token, length);
    text[length] = 0;
    char *slash = strchr(text, '/');
    unsigned gpu, compute;
    char more;
    if (!slash || sscanf(slash, "/%u/%u%c", &gpu, &compute, &more) != 2) return -1;
    int card = by_uuid(text + 4, (size_t)(slash - text) - 4, 0);
    for (uint32_t i = hl_node.header->card_count; card >= 0 && i < hl_node.header->device_count; i++)
        if (physical(i)->parent == (uint32_t)card + 1 && physical(i)->gpu_instance == gpu &&
            physical(i)->compute_instance == compute)
            return (int)i;
    return -1;
}

/* What stands for a card: itself, or the first of its MIG devices where it is cut; -1: it is cut and has none. */
static int usable(uint32_t card) {
    if (!physical(card)->mig) return (int)card;
    for (uint32_t i = hl_node.header->card_count; i < hl_node.header->device_count; i++)
        if (physical(i)->parent == card + 1) return (int)i;
    return -1;
}

/* How CUDA numbers the node's cards: the fastest first, by SMs and clock (assumed: NVIDIA documents no measure), equal
 * ones by their bus; by the bus alone where CUDA_DEVICE_ORDER says PCI_BUS_ID. */
static void number_devices(uint32_t *order, uint32_t count) {
    const char *wanted = hl_config("CUDA_DEVICE_ORDER");
    int by_bus = wanted && strcmp(wanted, "PCI_BUS_ID") == 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t speed = (uint64_t)physical(i)->sm_count * physical(i)->clock_khz;
        uint32_t at = i;
        for (; at && !by_bus; at--) {
            const struct hl_node_device *before = physical(order[at - 1]);
            if ((uint64_t)before->sm_count * before->clock_khz >= speed) break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
}

/* A process that sees a MIG device sees no other device: the first MIG device is what counts. */
static CUresult only_instance(void) {
    for (int i = 0; i < fake.count; i++)
        if (physical(fake.visible[i].physical)->parent) {
            fake.visible[0] = fake.visible[i];
            fake.count = 1;
        }
    return fake.count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* CUDA_VISIBLE_DEVICES as the real driver reads it: entries up to the first one that makes no sense; the first entry
 * decides whether numbers or UUIDs are meant; trailing letters of a number are ignored; a repeated device is an error. */
static CUresult choose_devices(void) {
    const char *text = hl_config("CUDA_VISIBLE_DEVICES");
    uint32_t count = hl_node.header->card_count, order[HL_MAX_DEVICES];
    number_devices(order, count);
    fake.count = 0;
    if (!text) {
        for (uint32_t i = 0; i < count; i++) {
            int row = usable(order[i]);
            if (row >= 0) fake.visible[fake.count++] = (struct visible){.physical = (uint32_t)row};
        }
        return only_instance();
    }
    int form = 0; /* 1 numbers, 2 UUIDs */
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, ",");
        const char *start = at;
        size_t size = length;
        while (size && isspace((unsigned char)*start)) start++, size--;
        while (size && isspace((unsigned char)start[size - 1])) size--;
        int instance = size >= 4 && strncasecmp(start, "MIG-", 4) == 0;
        int device = -1, kind = instance || (size >= 4 && strncasecmp(start, "GPU-", 4) == 0) ? 2 : 1;
        if (form && kind != form) break;
        form = kind;
        if (instance) {
            device = memchr(start, '/', size) ? by_instance_ids(start, size) : by_uuid(start, size, 1);
        } else if (kind == 2) {
            device = by_uuid(start, size, 0);
            if (device >= 0) device = usable((uint32_t)device);
        } else {
            char *end;
            long number = strtol(start, &end, 10);
            if (end != start && end <= start + size && number >= 0 && number < (long)count)
                device = usable(order[number]);
        }
        if (device < 0) break;
        for (int i = 0; i < fake.count; i++)
            if (fake.visible[i].physical == (uint32_t)device) {
                fake.count = 0;
                return CUDA_ERROR_INVALID_DEVICE;
            }
        fake.visible[fake.count++] = (struct visible){.physical = (uint32_t)device};
        at += length;
        if (*at == ',') at++;
    }
    return only_instance();
}

static uint8_t current_device(void) { return fake_current ? (uint8_t)fake_current->device : 0xFF; }

static CUresult initialise(void) {
    CUresult result = choose_devices();
    if (result) return result;
    if (!arena.bytes && arena_open(hl_node.memory_fd, hl_node.memory_bytes, hl_node.header->device_count)) {
        fprintf(stderr, "hooklab fake driver: cannot map %llu bytes of device memory\n",
                (unsigned long long)hl_node.memory_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    hl_latency(fake.visible[0].physical, HL_LATENCY_INIT);
    hl_fake_device = current_device;
    fake.next_ctx_id = 1;
    fake.next_stream_id = 7;
    __atomic_store_n(&fake.state, READY, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult start(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&init_mutex);
    CUresult result = fake.state == READY ? CUDA_SUCCESS : initialise();
    pthread_mutex_unlock(&init_mutex);
    return result;
}

API cuInit(unsigned int flags) {
    if (fake.state == FORKED) return CUDA_ERROR_NOT_INITIALIZED;
    hl_node_on_fork(in_child);
    /* Attached before the call is counted: faults planned for cuInit are in the node file. */
    if (hl_node_attach(HL_REQUEST_ATTACH_CUDA)) return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NO_DEVICE;
    ENTER(cuInit);
    LEAVE(start(flags), flags, 0);
}

API cuDriverGetVersion(int *version) {
    hl_node_on_fork(in_child);
    int attached = fake.state != FORKED && hl_node_attach(HL_REQUEST_ATTACH_CUDA) == 0;
    static int known; /* the answer stays the same in a forked child, which has no node */
    if (attached) known = hl_node.header->driver_version;
    ENTER(cuDriverGetVersion);
    if (!version) LEAVE(CUDA_ERROR_INVALID_VALUE, 0, 0);
    *version = known ? known : hl_fake_driver;
    LEAVE(CUDA_SUCCESS, *version, 0);
}
