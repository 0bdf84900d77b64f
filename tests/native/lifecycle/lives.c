/* A guest that does what its words say, one after another, and prints a line for each: `lives WORD...`
 *   init alloc free view          CUDA; the line has the result (view: the free MiB)
 *   own                           a handler of its own for SIGUSR2
 *   wait                          until a line comes on standard input
 *   exit _exit                    ends so
 *   fork clone vfork ... join     a child (libc's fork, a bare clone, vfork with exec) does what stands up to `join`
 *   exec                          becomes a fresh image that does the rest
 *   daemon                        forks twice; the grandchild does the rest, the others end at once */
#define _GNU_SOURCE
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 64 };
static CUdeviceptr held[MANY];
static int count;

static int init(void) {
    CUcontext context;
    int result = cuInit(0);
    if (!result) result = cuDevicePrimaryCtxRetain(&context, 0);
    return result ? result : (int)cuCtxSetCurrent(context);
}

static void ignore(int number) { (void)number; }

static int result_of(const char *word) {
    size_t left = 0, total = 0;
    if (!strcmp(word, "init")) return init();
    if (!strcmp(word, "alloc")) return count < MANY ? (int)cuMemAlloc_v2(&held[count++], 64 << 20) : -1;
    if (!strcmp(word, "free")) return count ? (int)cuMemFree_v2(held[--count]) : -1;
    if (!strcmp(word, "view")) return cuMemGetInfo_v2(&left, &total) ? -1 : (int)(left >> 20);
    if (!strcmp(word, "own")) return signal(SIGUSR2, ignore) == SIG_ERR;
    return -2;
}

static int play(int words, char **word);

static void say(const char *word, int result) {
    printf("%s %d %d\n", word, result, (int)getpid());
    fflush(stdout);
}

static int join_of(int words, char **word, int from) {
    while (from < words && strcmp(word[from], "join")) from++;
    return from;
}

static int child(int words, char **word, int at, int join) {
    pid_t pid;
    if (!strcmp(word[at], "vfork")) {
        char *image[MANY] = {"lives"};
        int count_of = 1;
        for (int i = at + 1; i < join; i++) image[count_of++] = word[i];
        pid = vfork();
        if (!pid) {
            execv("/proc/self/exe", image);
            _exit(9);
        }
    } else {
        pid = word[at][0] == 'c' ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
        if (!pid) {
            int status = play(join - at - 1, word + at + 1);
            if (word[at][0] == 'c') _exit(status);
            exit(status);
        }
    }
    int status = 0;
    waitpid(pid, &status, 0);
    (void)words;
    return status;
}

static int play(int words, char **word) {
    for (int i = 0; i < words; i++) {
        char line[8], *image[MANY] = {"lives"};
        if (!strcmp(word[i], "join")) continue;
        if (!strcmp(word[i], "wait")) {
            say("waiting", 0);
            if (!fgets(line, sizeof line, stdin)) return 1;
        } else if (!strcmp(word[i], "exit")) {
            exit(0);
        } else if (!strcmp(word[i], "_exit")) {
            _exit(0);
        } else if (!strcmp(word[i], "fork") || !strcmp(word[i], "clone") || !strcmp(word[i], "vfork")) {
            int join = join_of(words, word, i);
            say(word[i], child(words, word, i, join));
            i = join;
        } else if (!strcmp(word[i], "exec")) {
            memcpy(image + 1, word + i + 1, (size_t)(words - i - 1) * sizeof *image);
            execv("/proc/self/exe", image);
            return 9;
        } else if (!strcmp(word[i], "daemon")) {
            if (fork()) _exit(0);
            setsid();
            if (fork()) _exit(0);
        } else {
            say(word[i], result_of(word[i]));
        }
    }
    return 0;
}

int main(int words, char **word) { return play(words - 1, word + 1); }
