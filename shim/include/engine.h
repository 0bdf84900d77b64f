/* The contract between the preload library (small, links no libpython) and the engine (a private CPython).
 *
 * The preload library dlopens the engine on the first policy decision, holding no lock of ours, and asks it for
 * this table. Every entry may be called from any thread of the host, with or without the host's own GIL, before
 * boot (boot happens inside, once) and after fork. No entry ever exits, prints to stdout or throws.
 *
 * Answers of admit: 0 = admitted; a positive CUresult = refused with that code; HL_ENGINE_* = no verdict, the C
 * default of the caller applies and the event is counted.
 */
#ifndef HOOKLAB_ENGINE_H
#define HOOKLAB_ENGINE_H
#include <stddef.h>
#include <stdint.h>

#define HL_ENGINE_ABI 1u
#define HL_ENGINE_ABSENT (INT64_MIN) /* could not boot; reason() says why */
#define HL_ENGINE_FAULT                                                                                                \
    (INT64_MIN + 1) /* the policy raised or answered nonsense: charges are refused, views and launches pass */
#define HL_ENGINE_REENTRY (INT64_MIN + 2) /* called from inside the engine or from a signal handler during a call */

struct hl_engine_config {
    const char *policy;        /* NULL or "" = built in; else "/abs/file.py:Class" */
    const char *pacing;        /* NULL: launches are not paced; "default", a name, or "/abs/file.py:Class" */
    void (*log)(const char *); /* one line, no newline; never NULL */
};

enum {
    HL_ENGINE_HAS_SETTLE = 1,
    HL_ENGINE_HAS_RELEASE = 2,
    HL_ENGINE_HAS_LEASE = 4,
    HL_ENGINE_HAS_OBSERVE = 8,
    HL_ENGINE_PACES_BLOCKS = 16,  /* a launch costs its thread blocks, else its GPU time in ns */
    HL_ENGINE_PACES_BOUNDED = 32, /* the launch path bounds the work in flight */
    HL_ENGINE_PACES_INSTEAD = 64  /* the pacing policy asked for cannot be used: the default one applies, it was said */
};

struct hl_engine_api {
    uint32_t abi;            /* HL_ENGINE_ABI */
    uint32_t size;           /* sizeof(struct hl_engine_api) */
    const char *source_hash; /* hash of the policy sources frozen into this engine */
    const char *python;      /* e.g. "3.11.7 static" */
    /* Boots the interpreter if it has not been booted in this process. 0 or HL_ENGINE_ABSENT. Takes no loader lock. */
    int64_t (*boot)(const struct hl_engine_config *config);
    const char *(*reason)(void); /* why boot failed or the last fault, "" if none; static storage */
    uint64_t (*faults)(void);    /* policy faults so far in this process */
    uint64_t (*boot_ns)(void);   /* how long boot took, 0 if not booted */
    uint32_t (*features)(void);  /* HL_ENGINE_HAS_*, HL_ENGINE_PACES_*: what the policies define */
    /* device ordinal, bytes asked, HL_KIND_*, bytes the container uses now (pending included), limit (0 none),
     * bytes of `used` that other processes of the container hold. */
    int64_t (*admit)(int device, uint64_t size, int kind, uint64_t used, uint64_t limit, uint64_t shared);
    /* > 0 tokens granted, < 0 wait that many ns; shared = the policy words of the device in the region. */
    int64_t (*lease)(int device, int64_t cost, uint64_t now_ns, void *shared, size_t shared_bytes);
    int64_t (*observe)(int device, uint64_t busy_ns, uint64_t window_ns, uint64_t now_ns, void *shared,
                       size_t shared_bytes);
    int64_t (*settle)(int device, uint64_t size, int kind, int ok);
    int64_t (*release)(int device, uint64_t size, int kind);
};

/* The only symbol the engine library exports. */
const struct hl_engine_api *hl_engine(void);
typedef const struct hl_engine_api *(*hl_engine_fn)(void);
#endif
