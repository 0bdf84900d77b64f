/* Many processes register in one region of layout hami-1.2 at once, through the real code.
 *
 * Usage: members FOLDER COUNT. Each child stamps when it has registered; all stay until the parent has looked: the count,
 * one slot each, no PID twice. Prints the ns from the release to the last registration. */
#define _GNU_SOURCE
#include "hami.h"
#include "kit.h"

#include <time.h>

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **arguments) {
    if (argc < 3) return 2;
    int count = atoi(arguments[2]), gate[2], end[2];
    char path[512], why[1400];
    static const uint64_t none[16];
    snprintf(path, sizeof path, "%s/region", arguments[1]);
    uint64_t *stamps = kit_shared(sizeof *stamps * (size_t)(count + 1));
    uint32_t *done = kit_shared(sizeof *done), *failed = kit_shared(sizeof *failed);
    CHECK(!pipe(gate) && !pipe(end));
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child) continue;
        struct hl_hami hami;
        char byte;
        close(gate[1]), close(end[1]);
        CHECK(!read(gate[0], &byte, 1));
        int problem = hl_hami_open(&hami, path, none, none, why, sizeof why);
        if (!problem) problem = hl_hami_register(&hami);
        if (problem) {
            fprintf(stderr, "%d: %s\n", problem, why);
            kit_count(failed);
            kit_count(done);
            exit(1);
        }
        stamps[i] = now();
        kit_count(done);
        CHECK(!read(end[0], &byte, 1));
        hl_hami_leave(&hami);
        exit(0);
    }
    uint64_t released = now(), last = 0;
    close(gate[1]);
    kit_reach(done, (uint32_t)count);
    EQUAL(*failed, 0);
    struct hl_hami hami;
    CHECK(!hl_hami_open(&hami, path, NULL, NULL, why, sizeof why));
    EQUAL(hami.map->proc_count, count);
    for (int i = 0; i < count; i++) {
        CHECK(hami.map->procs[i].pid > 0);
        for (int j = 0; j < i; j++) CHECK(hami.map->procs[i].pid != hami.map->procs[j].pid);
        CHECK(stamps[i] > released);
        if (stamps[i] > last) last = stamps[i];
    }
    EQUAL(hami.map->owner_pid, 0);
    close(end[1]);
    for (int i = 0; i < count; i++) {
        int status;
        CHECK(wait(&status) > 0 && WIFEXITED(status) && !WEXITSTATUS(status));
    }
    printf("%llu\n", (unsigned long long)(last - released));
    return 0;
}
