/* inits: a program that starts NVML and says how often the library beneath was started. */
#include <dlfcn.h>
#include <stdio.h>

extern int nvmlInit_v2(void);

int main(void) {
    void *handle = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
    int *count = handle ? dlsym(handle, "mini_inits") : NULL;
    int result = nvmlInit_v2();
    return printf("%d %d\n", result, count ? *count : -1) < 0;
}
