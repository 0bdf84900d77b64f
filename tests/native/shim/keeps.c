/* errno around calls of every kind, as one JSON list: with a shim it must be what the driver alone leaves. */
#include <cuda.h>
#include <errno.h>
#include <nvml.h>
#include <stdio.h>

enum { MARK = 77 };
static int first = 1;

static void say(long result) {
    int left = errno;
    printf("%s[%ld, %d]", first ? "[" : ", ", result, left);
    first = 0;
    errno = MARK;
}

int main(void) {
    CUcontext context = NULL, own = NULL;
    CUdeviceptr pointer = 0;
    CUdriverProcAddressQueryResult status;
    nvmlDevice_t device = NULL;
    nvmlMemory_t memory;
    size_t left = 0, total = 0, pitch = 0;
    void *function = NULL;
    errno = MARK;
    say(cuMemAlloc_v2(&pointer, 4096)); /* before init */
    say(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status));
    say(cuInit(0));
    say(cuDevicePrimaryCtxRetain(&context, 0));
    say(cuCtxSetCurrent(context));
    say(cuMemAlloc_v2(&pointer, 4096)); /* boots the engine */
    say(cuMemFree_v2(pointer));
    say(cuMemFree_v2(pointer));
    say(cuMemAllocPitch_v2(&pointer, &pitch, 100, 100, 4));
    say(cuMemFreeAsync(pointer, NULL));
    say(cuMemAlloc_v2(&pointer, (size_t)1 << 40)); /* refused by the limit, or by the driver without one */
    say(cuMemGetInfo_v2(&left, &total));
    say(cuDeviceTotalMem_v2(&total, 0));
    say(cuCtxCreate_v2(&own, 0, 0));
    say(cuCtxDestroy_v2(own));
    say(nvmlInit_v2());
    say(nvmlDeviceGetHandleByIndex_v2(0, &device));
    say(nvmlDeviceGetMemoryInfo(device, &memory));
    say(cuDevicePrimaryCtxRelease_v2(0));
    puts("]");
    return 0;
}
