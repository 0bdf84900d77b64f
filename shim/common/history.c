/* Appends records to the history of a run (see history.h, layout history.toml).
 *
 * Invariants: a record is written by the one thread that drew its ticket; `commit` is stored last (release), so a writer
 * that is killed leaves a record that readers skip; a ticket beyond the capacity writes nothing, and `next` keeps
 * counting, which tells readers how many were lost. The file is made by the runner and never by a guest. errno is kept. */
#define _GNU_SOURCE
#include "history.h"

#include "config.h"
#include "hl_layout_history.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { UNKNOWN, ON, OFF };

static int state = UNKNOWN; /* release/acquire: ON means the four below are set */
static struct hl_history_header *header;
static struct hl_history_record *records;
static uint64_t capacity;
static uint16_t process = 0xFFFF, container = 0xFFFF;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t self_pid;       /* 0 = ask again */
static uint32_t fork_epoch = 1; /* a thread id cached under another epoch is stale */
static __thread uint32_t self_tid __attribute__((tls_model("initial-exec")));
static __thread uint32_t tid_epoch __attribute__((tls_model("initial-exec")));

uint64_t hl_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void hl_history_host_pid(uint32_t pid) { __atomic_store_n(&self_pid, pid, __ATOMIC_RELAXED); }

void hl_history_fork_child(void) {
    __atomic_store_n(&self_pid, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&fork_epoch, 1, __ATOMIC_RELAXED);
    pthread_mutex_init(&mutex, NULL); /* another thread of the parent may have held it */
}

static uint16_t config_index(const char *key) {
    const char *text = hl_config(key);
    if (!text || *text < '0' || *text > '9') return 0xFFFF;
    unsigned long value = strtoul(text, NULL, 10);
    return value < 0xFFFF ? (uint16_t)value : 0xFFFF;
}

/* NULL and one line on stderr when the file cannot be used: a run without its history must be noticed. */
static void *map_file(const char *path) {
    const char *cause = NULL;
    void *at = MAP_FAILED;
    struct stat info = {0};
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info)) {
        cause = strerror(errno);
    } else if (info.st_size < (off_t)sizeof *header) {
        cause = "shorter than its header";
    } else {
        at = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) cause = strerror(errno);
    }
    if (fd >= 0) close(fd);
    if (!cause) {
        const struct hl_history_header *head = at;
        if (head->magic != HL_HISTORY_MAGIC) cause = "not a history file";
        else if (head->version != HL_HISTORY_VERSION || head->record_size != sizeof(struct hl_history_record))
            cause = "a history of another layout version";
        else if (head->capacity > ((uint64_t)info.st_size - sizeof *head) / sizeof(struct hl_history_record))
            cause = "shorter than its header says";
        if (cause) munmap(at, (size_t)info.st_size);
    }
    if (!cause) return at;
    char line[512];
    int length =
        snprintf(line, sizeof line,
                 "hooklab: %s: no history is written: %s; give HOOKLAB_HISTORY a file made by this version's runner\n",
                 path, cause);
    if (length > (int)sizeof line) length = (int)sizeof line;
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0) { /* nobody reads it */
    }
    return NULL;
}

static int open_history(void) {
    int saved = errno;
    pthread_mutex_lock(&mutex);
    if (state == UNKNOWN) {
        const char *path = hl_config("HOOKLAB_HISTORY");
        header = path && *path ? map_file(path) : NULL;
        if (header) {
            records = (struct hl_history_record *)(header + 1);
            capacity = header->capacity;
            process = config_index("HOOKLAB_PROCESS");
            container = config_index("HOOKLAB_CONTAINER");
            pthread_atfork(NULL, NULL, hl_history_fork_child);
        }
        __atomic_store_n(&state, header ? ON : OFF, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return state == ON;
}

int hl_history_on(void) {
    int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    return now == UNKNOWN ? open_history() : now == ON;
}

static uint32_t thread_id(void) {
    uint32_t epoch = __atomic_load_n(&fork_epoch, __ATOMIC_RELAXED);
    if (tid_epoch != epoch) {
        self_tid = (uint32_t)syscall(SYS_gettid);
        tid_epoch = epoch;
    }
    return self_tid;
}

static uint32_t process_id(void) {
    uint32_t pid = __atomic_load_n(&self_pid, __ATOMIC_RELAXED);
    if (!pid) {
        pid = (uint32_t)getpid();
        uint32_t none = 0; /* never over the host PID that another thread has just set */
        __atomic_compare_exchange_n(&self_pid, &none, pid, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    return pid;
}

void hl_history_add(const struct hl_event *event) {
    if (!hl_history_on()) return;
    uint64_t ticket = __atomic_fetch_add(&header->next, 1, __ATOMIC_RELAXED);
    if (ticket >= capacity) return;
    struct hl_history_record *record = &records[ticket];
    record->time_ns = event->time_ns ? event->time_ns : hl_now_ns();
    record->a = event->a;
    record->b = event->b;
    record->c = event->c;
    record->pid = process_id();
    record->tid = thread_id();
    record->result = event->result;
    record->name = event->name;
    record->process = process;
    record->step = event->step;
    record->container = container;
    record->event = event->event;
    record->source = event->source;
    record->route = event->route;
    record->device = event->device;
    record->extra = event->extra;
    __atomic_store_n(&record->commit, 1, __ATOMIC_RELEASE);
}
