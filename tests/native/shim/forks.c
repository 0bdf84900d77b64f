/* The program forks again and again while other threads allocate and free; each child calls the driver (which refuses:
 * its parent was initialised) and exits. Prints [children that answered 3, results other than 0 or 2 in the threads,
 * bytes in use at the end]. A lock that a child inherits held would hang it. */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, FORKS = 40 };
static int stop;
static CUcontext context;

static void *body(void *unused) {
    size_t odd = 0;
    (void)unused;
    cuCtxSetCurrent(context);
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        CUdeviceptr pointer = 0;
        CUresult result = cuMemAlloc_v2(&pointer, 4 << 20);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) odd++;
        if (result == CUDA_SUCCESS && cuMemFree_v2(pointer)) odd++;
    }
    return (void *)odd;
}

int main(void) {
    pthread_t threads[THREADS];
    size_t answered = 0, odd = 0, left = 0, total = 0;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 3;
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, body, NULL);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            CUdeviceptr pointer = 0;
            _exit(cuInit(0) == 3 && cuMemAlloc_v2(&pointer, 4 << 20) == 3 && cuMemGetInfo_v2(&left, &total) == 3 ? 33
                                                                                                                 : 34);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child) return 4;
        answered += WIFEXITED(status) && WEXITSTATUS(status) == 33;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        odd += (size_t)result;
    }
    if (cuMemGetInfo_v2(&left, &total)) return 5;
    printf("[%zu, %zu, %zu]\n", answered, odd, total - left);
    return 0;
}
