/* NVML's beginning: a process that only uses NVML has no cuInit, so its pre-init runs here, and handles that were
 * remembered may mean other devices after NVML was shut down and started again. */
#include "preload.h"

#define START(name, call)                                                                                              \
    HL_BEGIN(name, NVML_ERROR_FUNCTION_NOT_FOUND);                                                                     \
    if (HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return HL_PASS_ON(call);                                  \
    nvmlReturn_t result = call;                                                                                        \
    if (result == NVML_SUCCESS) hl_devices_forget_nvml();                                                              \
    hl_leave();                                                                                                        \
    return result

HL_EXPORT nvmlReturn_t DECLDIR nvmlInit(void) { START(nvmlInit, real()); }

HL_EXPORT nvmlReturn_t DECLDIR nvmlInit_v2(void) { START(nvmlInit_v2, real()); }

HL_EXPORT nvmlReturn_t DECLDIR nvmlInitWithFlags(unsigned int flags) { START(nvmlInitWithFlags, real(flags)); }
