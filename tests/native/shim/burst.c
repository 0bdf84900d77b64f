/* Looks up every NVML name of the table, known to a shim or not, before anything is initialised, from two threads in
 * opposite order; prints how many were found, and whether both threads saw the same. */
#include "hl_names.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void *seen[2][HL_NAME_COUNT];
static pthread_barrier_t start;

static void *look(void *which) {
    int backwards = which != NULL;
    void *handle = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    pthread_barrier_wait(&start);
    for (int at = HL_CUDA_COUNT; at < HL_NAME_COUNT; at++) {
        int name = backwards ? HL_NAME_COUNT - 1 - (at - HL_CUDA_COUNT) : at;
        seen[backwards][name] = dlsym(handle, hl_name_text[name]);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    int found = 0;
    pthread_barrier_init(&start, NULL, 2);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, look, i ? (void *)&start : NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int at = HL_CUDA_COUNT; at < HL_NAME_COUNT; at++) found += seen[0][at] != NULL;
    printf("%d %s\n", found, memcmp(seen[0], seen[1], sizeof seen[0]) ? "different" : "same");
    return 0;
}
