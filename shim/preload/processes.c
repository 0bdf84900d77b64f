/* NVML's lists of processes: those of this container, by their PIDs in this namespace. What the driver lists and the books
 * do not know is left out; what the books hold bytes of and the driver does not list, or under a PID that nobody can match,
 * has a row whose figure is "not available": an unknown figure is never a zero.
 *
 * Invariants: the driver is asked first, with room of our own, so that a caller never sees more than its rows; its errors
 * are its own answer to the caller's own question. The count protocol is NVML's with our number of rows. Without books
 * every call is the driver's. */
#include "own.h"
#include "preload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64, TRIES = 8, ROOM_MOST = 1 << 16 };
static const unsigned no_instance = 0xFFFFFFFFu;

#define PASSES HL_UNLIKELY(hl_depth) || !hl_ready() || hl_limits.all_processes || !hl_books_usable() || !hl_enter()

typedef nvmlReturn_t (*ask_fn)(nvmlDevice_t device, unsigned *count, void *rows);

/* The driver's whole list in *rows (free it), or its answer to a question for nothing. */
static nvmlReturn_t whole(ask_fn ask, nvmlDevice_t device, size_t stride, unsigned *count, void **rows) {
    unsigned room = FIRST_ROOM;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    *rows = NULL;
    for (int i = 0; i < TRIES && result == NVML_ERROR_INSUFFICIENT_SIZE && room <= ROOM_MOST; i++) {
        void *more = realloc(*rows, room * stride);
        if (!more) return NVML_ERROR_MEMORY;
        *rows = more;
        *count = room;
        result = ask(device, count, *rows);
        room = *count + FIRST_ROOM; /* who comes meanwhile has room, too */
    }
    return result;
}

/* Every list of processes begins its rows so. */
struct row {
    unsigned pid;
    unsigned long long bytes;
};
_Static_assert(offsetof(nvmlProcessInfo_v1_t, usedGpuMemory) == 8 &&
                   offsetof(nvmlProcessInfo_v2_t, usedGpuMemory) == 8 &&
                   offsetof(nvmlProcessInfo_t, usedGpuMemory) == 8 &&
                   offsetof(nvmlProcessDetail_v1_t, usedGpuMemory) == 8 && offsetof(nvmlProcessInfo_t, pid) == 0,
               "a row begins with its PID and bytes");

/* Leaves our rows, under our PIDs, at the beginning of `rows`; how many. `at`: where in a row its PID is. */
static unsigned filter(const struct hl_own *own, void *rows, unsigned count, size_t stride, size_t at) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++) {
        char *from = (char *)rows + i * stride, *to = (char *)rows + kept * stride;
        const struct hl_own_process *process = hl_own_listed(own, *(unsigned *)(from + at));
        if (!process || !process->here) continue;
        memmove(to, from, stride);
        *(unsigned *)(to + at) = process->here;
        kept++;
    }
    return kept;
}

static bool is_in(const void *rows, unsigned count, size_t stride, uint32_t pid) {
    for (unsigned i = 0; i < count; i++)
        if (((const struct row *)((const char *)rows + i * stride))->pid == pid) return true;
    return false;
}

/* Rows for those that hold bytes and are not listed: *rows grows. */
static unsigned unknown(const struct hl_own *own, void **rows, unsigned count, size_t stride) {
    unsigned listed = count;
    for (uint32_t i = 0; i < own->count; i++) {
        const struct hl_own_process *process = &own->process[i];
        if (!process->here || !process->held || is_in(*rows, listed, stride, process->here)) continue;
        void *more = realloc(*rows, (count + 1) * stride);
        if (!more) break;
        *rows = more;
        char *row = (char *)*rows + count++ * stride;
        memset(row, 0, stride);
        *(struct row *)row = (struct row){process->here, (unsigned long long)NVML_VALUE_NOT_AVAILABLE};
        if (stride >= sizeof(nvmlProcessInfo_t))
            ((nvmlProcessInfo_t *)row)->gpuInstanceId = ((nvmlProcessInfo_t *)row)->computeInstanceId = no_instance;
    }
    return count;
}
_Static_assert(offsetof(nvmlProcessInfo_t, gpuInstanceId) == offsetof(nvmlProcessDetail_v1_t, gpuInstanceId) &&
                   offsetof(nvmlProcessInfo_t, computeInstanceId) ==
                       offsetof(nvmlProcessDetail_v1_t, computeInstanceId),
               "both rows name their instances in one place");

/* Our rows of a list of the driver, in *rows (free it), or the driver's error. */
static nvmlReturn_t ours(ask_fn ask, nvmlDevice_t device, size_t stride, bool computes, unsigned *count, void **rows) {
    int saved = errno;
    nvmlReturn_t result = whole(ask, device, stride, count, rows);
    struct hl_own *own = result == NVML_SUCCESS ? malloc(sizeof *own) : NULL;
    if (result == NVML_SUCCESS && !own) result = NVML_ERROR_MEMORY;
    if (own) {
        hl_share_bury(); /* the dead have no row */
        int number = hl_books_nvml(device);
        hl_own_find(own, number, *rows, *count, stride);
        *count = filter(own, *rows, *count, stride, 0);
        if (computes && number >= 0) *count = unknown(own, rows, *count, stride);
    }
    free(own);
    errno = saved;
    return result;
}

/* Always the exact count out; too small a buffer is left alone. */
static nvmlReturn_t give(const void *rows, unsigned found, size_t stride, unsigned *count, void *out) {
    unsigned room = *count;
    *count = found;
    if (room && !out) return NVML_ERROR_INVALID_ARGUMENT;
    if (room < found) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (found) memcpy(out, rows, found * stride);
    return NVML_SUCCESS;
}

#define LIST(name, type, computes)                                                                                     \
    static nvmlReturn_t ask_##name(nvmlDevice_t device, unsigned *count, void *rows) {                                 \
        return HL_REAL(name)(device, count, (type *)rows);                                                             \
    }                                                                                                                  \
    HL_EXPORT nvmlReturn_t DECLDIR name(nvmlDevice_t device, unsigned int *infoCount, type *infos) {                   \
        HL_BEGIN(name, NVML_ERROR_FUNCTION_NOT_FOUND);                                                                 \
        if (PASSES) return HL_PASS_ON(real(device, infoCount, infos));                                                 \
        void *rows = NULL;                                                                                             \
        unsigned found = 0;                                                                                            \
        nvmlReturn_t result =                                                                                          \
            infoCount ? ours(ask_##name, device, sizeof *infos, computes, &found, &rows) : NVML_ERROR_UNKNOWN;         \
        result = result == NVML_SUCCESS ? give(rows, found, sizeof *infos, infoCount, infos)                           \
                                        : real(device, infoCount, infos);                                              \
        free(rows);                                                                                                    \
        hl_leave();                                                                                                    \
        return result;                                                                                                 \
    }
LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, true)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, false)

static nvmlReturn_t ask_details(nvmlDevice_t device, unsigned *count, void *rows, unsigned mode) {
    nvmlProcessDetailList_t list = {nvmlProcessDetailList_v1, mode, *count, rows};
    nvmlReturn_t result = HL_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &list);
    *count = list.numProcArrayEntries;
    return result;
}
#define DETAILS(mode)                                                                                                  \
    static nvmlReturn_t ask_mode_##mode(nvmlDevice_t device, unsigned *count, void *rows) {                            \
        return ask_details(device, count, rows, mode);                                                                 \
    }
DETAILS(0) /* NVML_PROCESS_MODE_COMPUTE */
DETAILS(1) /* NVML_PROCESS_MODE_GRAPHICS */
DETAILS(2) /* NVML_PROCESS_MODE_MPS */

HL_EXPORT nvmlReturn_t DECLDIR nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                                     nvmlProcessDetailList_t *plist) {
    static const ask_fn ask[] = {ask_mode_0, ask_mode_1, ask_mode_2};
    HL_BEGIN(nvmlDeviceGetRunningProcessDetailList, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (PASSES) return HL_PASS_ON(real(device, plist));
    void *rows = NULL;
    unsigned found = 0;
    nvmlReturn_t result = NVML_ERROR_UNKNOWN;
    if (plist && plist->version == nvmlProcessDetailList_v1 && plist->mode < sizeof ask / sizeof *ask)
        result = ours(ask[plist->mode], device, sizeof *plist->procArray, plist->mode == NVML_PROCESS_MODE_COMPUTE,
                      &found, &rows);
    result = result == NVML_SUCCESS
                 ? give(rows, found, sizeof *plist->procArray, &plist->numProcArrayEntries, plist->procArray)
                 : real(device, plist);
    free(rows);
    hl_leave();
    return result;
}

/* ---- utilisation by process: room for all samples that are kept is asked for, whosever they are ---- */

static nvmlReturn_t ask_present(nvmlDevice_t device, unsigned *count, void *rows) {
    __typeof__(&nvmlDeviceGetComputeRunningProcesses_v2) newer = HL_REAL(nvmlDeviceGetComputeRunningProcesses_v3);
    if (!newer) newer = HL_REAL(nvmlDeviceGetComputeRunningProcesses_v2);
    return newer ? newer(device, count, rows) : NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* Leaves our samples at the beginning; how many. Whose numbers NVML uses, its list of processes tells. */
static unsigned our_samples(nvmlDevice_t device, void *samples, unsigned count, size_t stride, size_t at) {
    int saved = errno;
    void *rows = NULL;
    unsigned listed = 0;
    struct hl_own *own = malloc(sizeof *own);
    if (whole(ask_present, device, sizeof(nvmlProcessInfo_v2_t), &listed, &rows) != NVML_SUCCESS) listed = 0;
    bool known = own && hl_own_find(own, hl_books_nvml(device), rows, listed, sizeof(nvmlProcessInfo_v2_t));
    unsigned kept = known ? filter(own, samples, count, stride, at) : 0;
    free(own);
    free(rows);
    errno = saved;
    return kept;
}

/* `call(room, buffer)` is the driver's: into a buffer of ours, then our samples into the caller's. */
#define SAMPLES(type, count, out, call)                                                                                \
    unsigned number = *(count) < ROOM_MOST ? *(count) : ROOM_MOST;                                                     \
    type *buffer = malloc(number * sizeof *buffer);                                                                    \
    nvmlReturn_t result = buffer ? call(&number, buffer) : NVML_ERROR_MEMORY;                                          \
    if (result == NVML_SUCCESS) {                                                                                      \
        number = our_samples(device, buffer, number, sizeof *buffer, offsetof(type, pid));                             \
        if (number) memcpy(out, buffer, number * sizeof *buffer);                                                      \
        else result = NVML_ERROR_NOT_FOUND; /* as where nobody was at work */                                          \
        if (number) *(count) = number;                                                                                 \
    } else if (result == NVML_ERROR_INSUFFICIENT_SIZE) *(count) = number;                                              \
    free(buffer);                                                                                                      \
    hl_leave();                                                                                                        \
    return result

HL_EXPORT nvmlReturn_t DECLDIR nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                               nvmlProcessUtilizationSample_t *utilization,
                                                               unsigned int *processSamplesCount,
                                                               unsigned long long lastSeenTimeStamp) {
    HL_BEGIN(nvmlDeviceGetProcessUtilization, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (!utilization || !processSamplesCount || !*processSamplesCount || PASSES)
        return HL_PASS_ON(real(device, utilization, processSamplesCount, lastSeenTimeStamp));
#define LOADS(room, rows) real(device, rows, room, lastSeenTimeStamp)
    SAMPLES(nvmlProcessUtilizationSample_t, processSamplesCount, utilization, LOADS);
}

HL_EXPORT nvmlReturn_t DECLDIR nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                                     nvmlProcessesUtilizationInfo_t *procesesUtilInfo) {
    HL_BEGIN(nvmlDeviceGetProcessesUtilizationInfo, NVML_ERROR_FUNCTION_NOT_FOUND);
    nvmlProcessesUtilizationInfo_t *info = procesesUtilInfo;
    if (!info || info->version != nvmlProcessesUtilizationInfo_v1 || !info->procUtilArray ||
        !info->processSamplesCount || PASSES)
        return HL_PASS_ON(real(device, info));
    nvmlProcessesUtilizationInfo_t asked = *info;
#define DETAILED_LOADS(room, rows)                                                                                     \
    (asked.procUtilArray = (rows), result_of(real(device, &asked), &asked.processSamplesCount, room))
#define result_of(code, from, to)                                                                                      \
    __extension__({                                                                                                    \
        nvmlReturn_t answer = (code);                                                                                  \
        *(to) = *(from);                                                                                               \
        answer;                                                                                                        \
    })
    SAMPLES(nvmlProcessUtilizationInfo_v1_t, &info->processSamplesCount, info->procUtilArray, DETAILED_LOADS);
}

/* A PID of a list is understood again. */
HL_EXPORT nvmlReturn_t DECLDIR nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    HL_BEGIN(nvmlSystemGetProcessName, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (PASSES) return HL_PASS_ON(real(pid, name, length));
    int saved = errno;
    struct hl_own *own = malloc(sizeof *own);
    unsigned there = pid;
    if (own && hl_own_find(own, -1, NULL, 0, 0))
        for (uint32_t i = 0; i < own->count; i++)
            if (own->process[i].here == pid && own->process[i].listed) there = own->process[i].listed;
    free(own);
    errno = saved;
    nvmlReturn_t result = real(there, name, length);
    hl_leave();
    return result;
}
