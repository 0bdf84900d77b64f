/* The engine as a guest: what of the host it must leave alone. Every thing is looked at before boot and after calls, among
 * them calls whose policy fails. Run with the policy Faulty of policies.py. */
#define _GNU_SOURCE
#include "thin.h"
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static uint64_t environment(void) {
    uint64_t hash = 1469598103934665603u;
    for (char **at = environ; *at; at++)
        for (char *c = *at; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return hash;
}

static int open_files(void) {
    int count = 0;
    for (int i = 0; i < 256; i++) count += fcntl(i, F_GETFD) >= 0;
    return count;
}

int main(void) {
    char locale[256];
    struct sigaction before[65], now;
    thin_engine();
    snprintf(locale, sizeof locale, "%s", setlocale(LC_ALL, NULL));
    for (int i = 1; i < 65; i++) sigaction(i, NULL, &before[i]);
    uint64_t variables = environment();
    int files = open_files();

    errno = 1234;
    CHECK(thin_engine()->boot_ns() == 0);
    CHECK(thin_boot() == 0);
    CHECK(thin_boot() == 0);
    CHECK(thin_engine()->boot_ns() > 0);
    CHECK(errno == 1234);
    for (int kind = 0; kind < 8; kind++) {
        int state, type = PTHREAD_CANCEL_DEFERRED;
        int wanted = kind & 1 ? PTHREAD_CANCEL_DISABLE : PTHREAD_CANCEL_ENABLE;
        pthread_setcancelstate(wanted, NULL);
        errno = 77 + kind;
        thin_engine()->admit(0, 10, kind, 0, 100, 0);
        CHECK(errno == 77 + kind);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
        CHECK(state == wanted);
        pthread_setcanceltype(type, &type);
        CHECK(type == PTHREAD_CANCEL_DEFERRED);
    }
    CHECK(thin_engine()->faults() > 0 && thin_log_lines > 0);

    CHECK(!strcmp(locale, setlocale(LC_ALL, NULL)));
    CHECK(variables == environment());
    CHECK(files == open_files());
    for (int i = 1; i < 65; i++) {
        if (sigaction(i, NULL, &now)) continue;
        CHECK(now.sa_handler == before[i].sa_handler && now.sa_flags == before[i].sa_flags);
    }
    return 0;
}
