/* A library whose constructor allocates, which is its process's first policy decision on that thread, while another
 * thread of the program is on its way to boot the engine: the loader's lock is held here, and the other thread needs
 * it. With -DHOST this is the program: it opens the library while a second thread allocates. */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef HOST
pthread_barrier_t barrier;

static void *body(void *context) {
    CUdeviceptr pointer = 0;
    cuCtxSetCurrent(context);
    pthread_barrier_wait(&barrier);
    return (void *)(size_t)cuMemAlloc_v2(&pointer, 1 << 20);
}

int main(int count, char **words) {
    (void)count;
    CUcontext context = NULL;
    pthread_t thread;
    void *result = NULL;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 3;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, body, context);
    if (!dlopen(words[1], RTLD_NOW)) return fprintf(stderr, "%s\n", dlerror()), 2;
    pthread_join(thread, &result);
    printf("[%d, %s]\n", (int)(size_t)result, getenv("CONSTRUCTOR_RESULT"));
    return 0;
}
#else
extern pthread_barrier_t barrier;

__attribute__((constructor)) static void construct(void) {
    CUdeviceptr pointer = 0;
    char text[16];
    pthread_barrier_wait(&barrier); /* the loader's lock is held by now */
    snprintf(text, sizeof text, "%d", cuMemAlloc_v2(&pointer, 1 << 20));
    setenv("CONSTRUCTOR_RESULT", text, 1);
}
#endif
