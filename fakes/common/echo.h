/* The recording driver, seen from the walker: which function of the driver each call reached, and with what arguments.
 *
 * The walker names the function under test; a call of it, or of another variant of its base name, is recorded and
 * answered without doing anything. Every other call goes on to the next driver, so that an interposer finds a working
 * driver beneath the one call that is tested. Only calls of the walker's own thread are recorded. */
#ifndef HOOKLAB_ECHO_H
#define HOOKLAB_ECHO_H
#include <stdint.h>

enum { HL_ECHO_CALLS = 64, HL_ECHO_REGISTERS = 8, HL_ECHO_STACK = 8, HL_ECHO_NONE = 0xFFFF, HL_ECHO_STUB = 16 };

struct hl_echo_call {
    uint32_t name;
    uint32_t answered; /* 1 = answered here, 0 = went on to the next driver */
    uint64_t registers[HL_ECHO_REGISTERS], stack[HL_ECHO_STACK];
};

struct hl_echo {
    uint32_t version;             /* HL_ECHO_STUB: the walker checks it */
    uint32_t first, count;        /* name ids */
    const char *stubs;            /* the function of a name: stubs + (id - first) * HL_ECHO_STUB */
    volatile uint64_t thread;     /* pthread_self() of the walker; 0 = record nothing */
    volatile uint32_t under_test; /* name id or HL_ECHO_NONE */
    volatile uint32_t calls;      /* may be larger than what fits into `call` */
    volatile int64_t answer;
    volatile uint64_t junk_start, junk_end; /* handles in this range are made up: nothing may be done with them */
    struct hl_echo_call call[HL_ECHO_CALLS];
};
#endif
