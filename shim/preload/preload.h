/* What the files of the preload library share: the frame of a wrapper, the real driver, who asks, and the guest's
 * configuration.
 *
 * The frame: a wrapper that finds the thread already inside a wrapper (the driver calls back, or we call the driver)
 * passes straight through; otherwise it marks the thread for its whole length. A wrapper keeps the errno that the
 * driver left. */
#ifndef HOOKLAB_PRELOAD_H
#define HOOKLAB_PRELOAD_H
#include "hl_hooked.h"
#include "hl_names.h"

#include <cuda.h>
#include <nvml.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* what the vendor advises against is hooked all the same */

#define HL_EXPORT __attribute__((visibility("default")))
#define HL_LIKELY(x) __builtin_expect(!!(x), 1)
#define HL_UNLIKELY(x) __builtin_expect(!!(x), 0)

enum { HL_DEVICES = 16 };
enum hl_library { HL_LIBRARY_CUDA, HL_LIBRARY_NVML, HL_LIBRARY_LIBC, HL_LIBRARY_NONE };

/* -- the frame (guard.c) -- */
extern __thread int hl_depth __attribute__((tls_model("initial-exec")));
static inline bool hl_enter(void) {
    if (HL_UNLIKELY(hl_depth)) return false;
    hl_depth = 1;
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* a signal handler that calls CUDA must see the mark */
    return true;
}
static inline void hl_leave(void) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    hl_depth = 0;
}

/* -- the real libraries (real.c) -- */
typedef void *(*hl_dlsym_fn)(void *handle, const char *name);
typedef void *(*hl_dlvsym_fn)(void *handle, const char *name, const char *version);
void *hl_libc_symbol(const char *name); /* libc's definition from its own tables */
hl_dlsym_fn hl_libc_dlsym(void);        /* libc's own, from its tables; NULL if the process has no libc we know */
hl_dlvsym_fn hl_libc_dlvsym(void);
void *hl_real_load(int id); /* opens the library of a name if need be; NULL if driver or name is absent */
bool hl_real_ready(enum hl_library library);            /* opened by us: its table is complete. Takes no lock */
enum hl_library hl_real_owner(const void *address);     /* which real library an address lies in. Takes no lock */
void *hl_real_defined(enum hl_library library, int id); /* NULL unless the library is mapped and defines the name */
extern void *hl_real_table[HL_NAME_COUNT];
static inline enum hl_library hl_library_of(int id) { return id < HL_CUDA_COUNT ? HL_LIBRARY_CUDA : HL_LIBRARY_NVML; }
static inline void *hl_real(int id) {
    void *real = __atomic_load_n(&hl_real_table[id], __ATOMIC_ACQUIRE);
    return HL_LIKELY(real != NULL) ? real : hl_real_load(id);
}
#define HL_REAL(name) ((__typeof__(&name))hl_real(HL_##name))
/* -- suspension (running.c) -- */
extern uint32_t hl_suspended; /* SIGUSR2 came and SIGUSR1 has not yet */
void hl_running_watch(void);  /* books are open: from now on this process can be suspended */
void hl_running_fork_child(void);
void hl_wait_running(void);
#define HL_RUNS(name, lib, action, fake, running, ...) HL_RUNNING_##name = running,
enum { HL_HOOKED(HL_RUNS) };

/* First line of a wrapper: `real`, or the answer for a name that this machine's driver lacks. */
#define HL_BEGIN(name, absent)                                                                                         \
    __typeof__(&name) real = HL_REAL(name);                                                                            \
    if (HL_UNLIKELY(!real)) return (absent);                                                                           \
    if (HL_RUNNING_##name && HL_UNLIKELY(__atomic_load_n(&hl_suspended, __ATOMIC_RELAXED))) hl_wait_running()
/* The driver's own answer, nothing of ours: the thread is marked all the same, because what the driver looks up
 * meanwhile is the driver's business. */
#define HL_PASS_ON(call)                                                                                               \
    __extension__({                                                                                                    \
        bool entered = hl_enter();                                                                                     \
        __typeof__(call) passed = (call);                                                                              \
        if (entered) hl_leave();                                                                                       \
        passed;                                                                                                        \
    })

/* -- who asks (caller.c) -- */
struct link_map;
struct hl_place {
    const void *start, *end;
    const struct link_map *map; /* NULL when only the range is known */
    bool driver;                /* one of the driver's own libraries, by file name */
    enum hl_library library;    /* when only the range is known: which library, */
    int order;                  /* and its place in the loader's list */
};
bool hl_place_of(const void *address, struct hl_place *place);  /* false: in no object (JIT, foreign call) */
enum hl_library hl_place_library(const struct hl_place *place); /* by soname */
bool hl_caller_is_driver(const void *return_address);

/* -- the hooks (hooks.c) -- */
void *hl_hook_of(int id);               /* our function for a name id, NULL = not hooked */
int hl_hook_named(const char *name);    /* name id if hooked, else -1 */
int hl_hook_at(const void *real);       /* name id of the hooked name whose real pointer this is, -1 none, -2 several */
void hl_hooks_index(void *const *real); /* builds the index for hl_hook_at from the real pointers by name id */

/* -- life (init.c) -- */
bool hl_ready(void); /* pre-init done; false: nothing to keep books about, pass everything */
void hl_phase(uint64_t phase, int result);

/* -- limits (limits.c) -- */
struct hl_limits {
    uint64_t memory[HL_DEVICES], cores[HL_DEVICES]; /* 0 = none */
    bool refuse[HL_DEVICES];                        /* the value could not be read: charges are refused */
    bool any;
    bool disabled;      /* CUDA_DISABLE_CONTROL: everything passes */
    bool oversubscribe; /* managed memory is not charged: it may lie on the host */
    bool plain_views;   /* memory is shown as the driver shows it */
    bool all_cards;     /* NVML lists devices that CUDA does not see */
    bool all_processes; /* NVML lists processes of other containers */
};
extern struct hl_limits hl_limits;
void hl_limits_read(void);
struct hl_uuid_limit { /* what was said of a device by its UUID */
    unsigned char uuid[16];
    bool has_memory, has_cores, refuse;
    uint64_t memory, cores;
};
const struct hl_uuid_limit *hl_limits_of(const unsigned char *uuid); /* NULL: nothing */
/* The device of this ordinal has that UUID: what was said by UUID counts from now on. */
void hl_limits_settle(int device, const unsigned char *uuid);

/* -- region and verdicts (books.c, verdict.c) -- */
bool hl_books_open(void); /* pre-init: false = nothing asked for, the process runs as if we were not there */
bool hl_books_usable(void);
void hl_books_forget(void);             /* fork child: opened again when needed */
int hl_books_nvml(nvmlDevice_t device); /* by which number the books know it here; -1: they do not */
void hl_books_devices(void);            /* post-init: which device has which UUID is known, and so limits and rows */
uint64_t hl_books_limit(int device);    /* what applies now: the region's, else the environment's; 0 = none */
int32_t hl_verdict(int device, uint64_t size, int kind, uint64_t used, uint64_t limit, uint64_t others);
const char *hl_policy(void); /* NULL = the built-in one */

struct hl_engine_api;
const struct hl_engine_api *hl_engine_of_process(void); /* booted when first asked for; NULL = there is none */
void hl_engine_failed(const struct hl_engine_api *api); /* a policy raised: counted, said once */

/* -- the limiter (pacing.c) -- */
void hl_pacing_prepare(void); /* pre-init, after the books */
void hl_pacing_fork_child(void);
void hl_pacing_close(void);         /* clean end, before the books */
const char *hl_pacing_wanted(void); /* NULL: no core limit, the engine needs no pacing policy */
void hl_measure_context_ended(CUcontext context);

/* -- charges (charge.c) -- */
struct hl_ticket;
enum hl_admission { HL_PASS, HL_ADMITTED, HL_REFUSED };
/* With HL_REFUSED, *code is what to answer: the policy's, CUDA_ERROR_OUT_OF_MEMORY where nobody could decide. With 0 bytes
 * nothing is reserved: what is taken is asked for when it is settled. */
enum hl_admission hl_charge_begin(struct hl_ticket *ticket, int device, uint64_t bytes, int kind, CUresult *code);
bool hl_current(CUcontext *context, int *device); /* the calling thread's context and its device */
uint64_t hl_taken(uint64_t bytes); /* what an allocation fills: whole blocks from 2 MiB up, else 512 bytes at a time */

/* -- what the driver takes by itself, read off it (meters.c, pools.c, graphs.c) -- */
extern uint32_t hl_meters_used;     /* how many were ever watched: 0 = nothing to look at */
void hl_meters_look(void);          /* reads them again: after what may have given memory back */
bool hl_meters_reclaim(int device); /* makes pools give up what nothing lies in; true: some memory came back */
void hl_meters_fork_child(void);
struct hl_entry;
void hl_pool_freed(const struct hl_entry *entry, bool waited); /* a free of pool memory succeeded */
extern uint32_t hl_graph_memory;                               /* this process may launch graphs that allocate */
extern uint32_t hl_captures;                                   /* a capture was ever begun */
void hl_graphs_allocate(void);
CUresult hl_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream);
void hl_pools_forget(void); /* fork child */

/* -- what the driver takes by itself, as NVML shows it (hidden.c) -- */
extern uint32_t hl_hidden_on; /* HOOKLAB_HIDDEN=observed */
void hl_hidden_prepare(void); /* pre-init, after the books */
void hl_hidden_fork_child(void);
void hl_hidden_context_changed(int device);  /* one was made or ended there; inside the frame */
void hl_hidden_look(void);                   /* memory may have been given back; inside the frame */
void hl_hidden_launched(const void *object); /* a function or graph was launched; outside the frame */

/* -- devices (devices.c) -- */
void hl_devices_learn(void);                                           /* post-init */
void hl_devices_forget(void);                                          /* fork child */
void hl_devices_forget_nvml(void);                                     /* NVML initialised again */
bool hl_devices_uuid(int device, unsigned char *uuid);                 /* 16 bytes; false: not known */
bool hl_devices_handle_uuid(nvmlDevice_t device, unsigned char *uuid); /* what NVML says; false: it does not */
/* 16 bytes of "GPU-..." or "MIG-..." in any case, with '_' or '-' between; false: there is no whole UUID in the text. */
bool hl_uuid_bytes(const char *text, unsigned char *bytes);
int hl_devices_count(void);               /* 0 before cuInit succeeded */
int hl_devices_nvml(nvmlDevice_t device); /* CUDA ordinal of an NVML device, -1 = not visible to CUDA here */
enum { HL_CARDS = 64 };
struct hl_cards { /* every card of NVML, by NVML's own index */
    unsigned count;
    struct hl_card {
        nvmlDevice_t handle; /* NULL: it does not answer */
        int ordinal;         /* to CUDA; -1: hidden from it */
        char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    } card[HL_CARDS];
};
bool hl_cards_chosen(struct hl_cards *cards); /* false: no card is hidden, or nobody can tell; *cards is nothing then */

/* -- contexts (context.c) -- */
void hl_context_fork_child(void);
uint64_t hl_context_cost(int device); /* bytes booked for one, 0 = nothing is */
uint64_t hl_context_ends(void);       /* how many contexts ended in this process so far */

/* -- speech (log.c) -- */
void hl_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3))); /* one line on stderr */
void hl_log_error(const char *line);                                                   /* level 0: always */
#endif
