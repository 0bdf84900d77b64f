/* A program for others to look at: it refers to the driver by relocation, as compiled programs do, and holds still.
 * Arguments: "allocate" makes a context and 2 MiB first, another word is a library to open with RTLD_DEEPBIND.
 * Says "ready" and ends when its standard input does. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context;
    CUdeviceptr pointer;
    if (argc > 1 && !strcmp(argv[1], "allocate")) {
        if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device)) return 1;
        if (cuCtxSetCurrent(context) || cuMemAlloc_v2(&pointer, 2 << 20)) return 1;
    } else if (argc > 1 && !dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND)) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    char byte;
    return puts("ready") < 0 || fflush(stdout) || read(0, &byte, 1) != 0;
}
