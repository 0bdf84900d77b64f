/* A planted offender: an interposer that holds a lock of its container's across the driver's allocation. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    CUresult (*real)(CUdeviceptr *, size_t) = (CUresult (*)(CUdeviceptr *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    int fd = open(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    flock(fd, LOCK_EX);
    CUresult result = real(pointer, bytes);
    close(fd);
    return result;
}
