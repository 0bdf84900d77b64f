/* A library whose constructor calls the engine: it runs under the loader's lock. First it gives the booting thread what
 * that waits for (the policy, through the named pipe $LATE_PIPE), so that boot and constructor overlap for certain. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int64_t late_call(void);
int64_t late_answer = 1;

__attribute__((constructor)) static void call_early(void) {
    static const char policy[] = "import enum\nclass Late:\n    def admit(self, *all):\n        return 0\n";
    int pipe = open(getenv("LATE_PIPE"), O_WRONLY);
    if (pipe < 0 || write(pipe, policy, strlen(policy)) < 0 || close(pipe)) abort();
    late_answer = late_call();
}
