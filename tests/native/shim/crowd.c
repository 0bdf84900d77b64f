/* THREADS threads call cuInit at the same moment (released by a barrier); prints a JSON list of their results. */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_barrier_t barrier;
static CUresult results[1024];

static void *body(void *index) {
    pthread_barrier_wait(&barrier);
    results[(size_t)index] = cuInit(0);
    return NULL;
}

int main(int count, char **words) {
    size_t threads = count > 1 ? strtoul(words[1], NULL, 10) : 64;
    pthread_t ids[1024];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (size_t i = 0; i < threads; i++) pthread_create(&ids[i], NULL, body, (void *)i);
    for (size_t i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    for (size_t i = 0; i < threads; i++) printf("%s%d", i ? ", " : "[", results[i]);
    puts("]");
    return 0;
}
