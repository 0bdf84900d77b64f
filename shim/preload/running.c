/* Suspension: SIGUSR2 makes this process begin no more work that its hook declares `running` (allocations, launches);
 * SIGUSR1 lets it go on. Views, frees and lookups are never held up: a suspended program can be looked at and can give
 * memory back. What runs in the driver already goes on.
 *
 * Invariants: the handlers only store words and wake (async-signal-safe). They are installed only when the region's books
 * are open and the host left both signals at their default; a host's own handlers stay, and its slot then says that it
 * takes no signals. Nobody waits inside the frame, nor holding anything of ours. */
#include "preload.h"

#include "config.h"
#include "hl_layout_hooklab_1.h"
#include "ledger.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

uint32_t hl_suspended;

static void handler(int number) {
    int saved = errno;
    uint32_t on = number == SIGUSR2;
    __atomic_store_n(&hl_suspended, on, __ATOMIC_SEQ_CST);
    hl_ledger_status(on ? HL_SLOT_SUSPENDED : 0, on ? 0 : HL_SLOT_SUSPENDED);
    if (!on) syscall(SYS_futex, &hl_suspended, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    errno = saved;
}

static bool is_free(int number) {
    struct sigaction now;
    if (sigaction(number, NULL, &now)) return false;
    if (now.sa_flags & SA_SIGINFO) return false;
    return now.sa_handler == SIG_DFL || now.sa_handler == handler;
}

void hl_running_watch(void) {
    const char *wish = hl_config("HOOKLAB_SIGNALS");
    if ((wish && !strcmp(wish, "off")) || !is_free(SIGUSR1) || !is_free(SIGUSR2)) return;
    struct sigaction ours = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaddset(&ours.sa_mask, SIGUSR1); /* one after the other, so that the last one sent is the last one heard */
    sigaddset(&ours.sa_mask, SIGUSR2);
    if (!sigaction(SIGUSR1, &ours, NULL) && !sigaction(SIGUSR2, &ours, NULL))
        hl_ledger_status(HL_SLOT_TAKES_SIGNALS, 0);
}

void hl_running_fork_child(void) {
    __atomic_store_n(&hl_suspended, 0, __ATOMIC_SEQ_CST);
    hl_ledger_status(0, HL_SLOT_SUSPENDED | HL_SLOT_TAKES_SIGNALS); /* of the slot to come */
}

void hl_wait_running(void) {
    if (hl_depth) return; /* the driver, or we, on behalf of a call that has begun */
    int saved = errno;
    while (__atomic_load_n(&hl_suspended, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &hl_suspended, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    errno = saved;
}
