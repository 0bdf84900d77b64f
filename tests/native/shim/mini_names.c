/* A miniature driver for lookups: every name of one library as a function of its own that returns the name's id plus
 * one. Compile with -DMINI_CUDA or -DMINI_NVML; mini_driver.c overrides what must do more. */
#include "hl_names.h"
#include "hl_table.h"

#ifdef MINI_CUDA
#define DEFINE_CUDA(name)                                                                                              \
    __attribute__((weak)) int name(void) { return HL_##name + 1; }
#define DEFINE_NVML(name)
#else
#define DEFINE_CUDA(name)
#define DEFINE_NVML(name)                                                                                              \
    __attribute__((weak)) int name(void) { return HL_##name + 1; }
#endif
#define DEFINE(name, library, ...) DEFINE_##library(name)
HL_TABLE(DEFINE)
