/* Which cards NVML lists: those that CUDA sees here, in NVML's own order and numbered without gaps, as if no others were in
 * the machine. A hidden card is found by no index, UUID, bus address or serial number; handles stay the driver's own.
 *
 * Invariants: the driver is asked first and its errors go through; an output is written only where the driver would have.
 * Where nothing is hidden, or nobody can tell what is, every call is the driver's. */
#include "preload.h"

#include <errno.h>

#define PASSES HL_UNLIKELY(hl_depth) || !hl_ready() || hl_limits.all_cards || !hl_enter()

/* *cards is filled and something is hidden. */
static bool chosen(struct hl_cards *cards) {
    int saved = errno;
    bool some = hl_cards_chosen(cards);
    errno = saved;
    return some;
}

static unsigned shown(const struct hl_cards *cards) {
    unsigned count = 0;
    for (unsigned i = 0; i < cards->count; i++) count += cards->card[i].ordinal >= 0;
    return count;
}

/* NVML's index of the n-th shown card; as many as there are cards: none, so that the driver itself refuses it. */
static unsigned place(const struct hl_cards *cards, unsigned n) {
    for (unsigned i = 0; i < cards->count; i++)
        if (cards->card[i].ordinal >= 0 && n-- == 0) return i;
    return cards->count;
}

/* Where the handle of a whole card stands among the cards; false: it is none of theirs. */
static bool find(const struct hl_cards *cards, nvmlDevice_t device, unsigned *at) {
    for (*at = 0; *at < cards->count; ++*at)
        if (cards->card[*at].handle == device) return true;
    return false;
}

static bool hidden(const struct hl_cards *cards, nvmlDevice_t device) {
    unsigned at;
    return find(cards, device, &at) && cards->card[at].ordinal < 0;
}

#define COUNT(name)                                                                                                    \
    HL_EXPORT nvmlReturn_t DECLDIR name(unsigned int *deviceCount) {                                                   \
        HL_BEGIN(name, NVML_ERROR_FUNCTION_NOT_FOUND);                                                                 \
        if (PASSES) return HL_PASS_ON(real(deviceCount));                                                              \
        struct hl_cards cards;                                                                                         \
        nvmlReturn_t result = real(deviceCount);                                                                       \
        if (result == NVML_SUCCESS && chosen(&cards)) *deviceCount = shown(&cards);                                    \
        hl_leave();                                                                                                    \
        return result;                                                                                                 \
    }
COUNT(nvmlDeviceGetCount)
COUNT(nvmlDeviceGetCount_v2)

#define BY_INDEX(name)                                                                                                 \
    HL_EXPORT nvmlReturn_t DECLDIR name(unsigned int index, nvmlDevice_t *device) {                                    \
        HL_BEGIN(name, NVML_ERROR_FUNCTION_NOT_FOUND);                                                                 \
        if (PASSES) return HL_PASS_ON(real(index, device));                                                            \
        struct hl_cards cards;                                                                                         \
        nvmlReturn_t result = real(chosen(&cards) ? place(&cards, index) : index, device);                             \
        hl_leave();                                                                                                    \
        return result;                                                                                                 \
    }
BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

HL_EXPORT nvmlReturn_t DECLDIR nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    HL_BEGIN(nvmlDeviceGetIndex, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (PASSES) return HL_PASS_ON(real(device, index));
    struct hl_cards cards;
    unsigned at, before = 0;
    nvmlReturn_t result = real(device, index);
    if (result == NVML_SUCCESS && chosen(&cards) && find(&cards, device, &at) && cards.card[at].ordinal >= 0) {
        for (unsigned i = 0; i < at; i++) before += cards.card[i].ordinal >= 0;
        *index = before;
    }
    hl_leave();
    return result;
}

/* By what is written on a card. */
#define BY_MARK(name, type)                                                                                            \
    HL_EXPORT nvmlReturn_t DECLDIR name(type mark, nvmlDevice_t *device) {                                             \
        HL_BEGIN(name, NVML_ERROR_FUNCTION_NOT_FOUND);                                                                 \
        if (PASSES) return HL_PASS_ON(real(mark, device));                                                             \
        struct hl_cards cards;                                                                                         \
        nvmlDevice_t found = NULL;                                                                                     \
        nvmlReturn_t result = real(mark, device ? &found : NULL);                                                      \
        if (result == NVML_SUCCESS && chosen(&cards) && hidden(&cards, found)) result = NVML_ERROR_NOT_FOUND;          \
        if (result == NVML_SUCCESS) *device = found;                                                                   \
        hl_leave();                                                                                                    \
        return result;                                                                                                 \
    }
BY_MARK(nvmlDeviceGetHandleByUUID, const char *)
BY_MARK(nvmlDeviceGetHandleByUUIDV, const nvmlUUID_t *)
BY_MARK(nvmlDeviceGetHandleBySerial, const char *)
BY_MARK(nvmlDeviceGetHandleByPciBusId, const char *)
BY_MARK(nvmlDeviceGetHandleByPciBusId_v2, const char *)

/* Lists of cards: without room the number, else as many as there is room for. `ask(count, devices)` is the driver's. */
#define LIST(ask)                                                                                                      \
    struct hl_cards cards;                                                                                             \
    nvmlDevice_t near[HL_CARDS];                                                                                       \
    unsigned all = 0, found = 0;                                                                                       \
    if (!count || (*count && !devices) || !chosen(&cards) || ask(&all, NULL) != NVML_SUCCESS || all > HL_CARDS ||      \
        (all && ask(&all, near) != NVML_SUCCESS)) {                                                                    \
        nvmlReturn_t plain = ask(count, devices);                                                                      \
        hl_leave();                                                                                                    \
        return plain;                                                                                                  \
    }                                                                                                                  \
    for (unsigned i = 0; i < all; i++) {                                                                               \
        if (hidden(&cards, near[i])) continue;                                                                         \
        if (*count && found == *count) break;                                                                          \
        if (*count) devices[found] = near[i];                                                                          \
        found++;                                                                                                       \
    }                                                                                                                  \
    *count = found;                                                                                                    \
    hl_leave();                                                                                                        \
    return NVML_SUCCESS

HL_EXPORT nvmlReturn_t DECLDIR nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                                                unsigned int *count, nvmlDevice_t *devices) {
    HL_BEGIN(nvmlDeviceGetTopologyNearestGpus, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (PASSES) return HL_PASS_ON(real(device, level, count, devices));
#define NEAREST(number, list) real(device, level, number, list)
    LIST(NEAREST);
}

HL_EXPORT nvmlReturn_t DECLDIR nvmlSystemGetTopologyGpuSet(unsigned int cpuNumber, unsigned int *count,
                                                           nvmlDevice_t *devices) {
    HL_BEGIN(nvmlSystemGetTopologyGpuSet, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (PASSES) return HL_PASS_ON(real(cpuNumber, count, devices));
#define OF_PROCESSOR(number, list) real(cpuNumber, number, list)
    LIST(OF_PROCESSOR);
}
