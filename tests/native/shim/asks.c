/* Answers single questions about lookups: asks QUESTION. Prints one line an answer: "absent", or file and symbol that
 * own it. Opens the miniature driver by itself so that each question starts without it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(void *pointer) {
    Dl_info info = {0};
    if (!pointer) {
        const char *error = dlerror();
        printf("absent %s\n", error ? "with-error" : "without-error");
        return;
    }
    if (!dladdr(pointer, &info)) {
        puts("nowhere");
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    printf("%s %s\n", slash ? slash + 1 : info.dli_fname,
           info.dli_sname && info.dli_saddr == pointer ? info.dli_sname : "-");
}

static void *driver(int how) {
    void *handle = dlopen("libcuda.so.1", RTLD_LAZY | how);
    if (!handle) fprintf(stderr, "%s\n", dlerror()), exit(2);
    return handle;
}

static void *plugin(const char *path, int how) {
    void *handle = dlopen(path, RTLD_LAZY | how);
    if (!handle) fprintf(stderr, "%s\n", dlerror()), exit(2);
    return handle;
}

/* What the program looks up while the driver calls it back. */
static void *from_callback(void) { return dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), "cuMemAlloc_v2"); }

/* A caller that lies in no object: machine code in an anonymous page, as a JIT makes it. */
#include <sys/mman.h>
static void *from_jit(void *handle, const char *name) {
#if defined(__x86_64__)
    static const unsigned char code[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd2,
                                         0x48, 0x83, 0xc4, 0x08, 0xc3}; /* calls rdx */
#else
    static const unsigned char code[] = {0xfd, 0x7b, 0xbf, 0xa9, 0x40, 0x00, 0x3f, 0xd6,
                                         0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6};
#endif
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    __builtin___clear_cache(page, (char *)page + sizeof code);
    return ((void *(*)(void *, const char *, void *(*)(void *, const char *)))page)(handle, name, dlsym);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "", *argument = count > 2 ? words[2] : NULL;
    if (!strcmp(what, "default-without-driver")) say(dlsym(RTLD_DEFAULT, "cuInit"));
    else if (!strcmp(what, "next-without-driver")) say(dlsym(RTLD_NEXT, "cuInit"));
    else if (!strcmp(what, "default-local-driver")) driver(RTLD_LOCAL), say(dlsym(RTLD_DEFAULT, "cuInit"));
    else if (!strcmp(what, "default-global-driver")) driver(RTLD_GLOBAL), say(dlsym(RTLD_DEFAULT, "cuInit"));
    else if (!strcmp(what, "handle")) say(dlsym(driver(RTLD_LOCAL), argument));
    else if (!strcmp(what, "default")) driver(RTLD_GLOBAL), say(dlsym(RTLD_DEFAULT, argument));
    else if (!strcmp(what, "handle-of")) say(dlsym(plugin(argument, RTLD_LOCAL), "cuMemAlloc_v2"));
    else if (!strcmp(what, "default-beside")) plugin(argument, RTLD_GLOBAL), say(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    else if (!strcmp(what, "own-handle")) say(dlsym(plugin(argument, RTLD_NOLOAD), "cuInit"));
    else if (!strcmp(what, "dlsym-of-libc")) say(dlsym(plugin("libc.so.6", RTLD_NOLOAD), "dlsym"));
    else if (!strcmp(what, "jit")) say(from_jit(driver(RTLD_LOCAL), "cuInit"));
    else if (!strcmp(what, "inside")) {
        void *handle = driver(RTLD_GLOBAL);
        void *(*ask)(void *, const char *) = (void *(*)(void *, const char *))dlsym(handle, "mini_ask");
        void *(*resolve)(const char *) = (void *(*)(const char *))dlsym(handle, "mini_resolve");
        say(ask(handle, "cuMemAlloc_v2"));
        say(ask(RTLD_DEFAULT, "cuMemAlloc_v2"));
        say(ask(RTLD_NEXT, "cuMemAlloc_v2"));
        say(resolve("cuMemAlloc"));
    } else if (!strcmp(what, "callback")) {
        int (*call)(size_t *, int) = (int (*)(size_t *, int))dlsym(driver(RTLD_LOCAL), "cuDeviceTotalMem_v2");
        size_t pointer = (size_t)&from_callback;
        call(&pointer, 0);
        say((void *)pointer);
        say(from_callback()); /* and afterwards it is an ordinary caller again */
    } else if (!strcmp(what, "plugin") ||
               !strcmp(what, "plugin-global")) { /* PATH NAME: the plug-in asks RTLD_NEXT, then RTLD_DEFAULT */
        void *handle = plugin(argument, what[6] ? RTLD_GLOBAL : RTLD_LOCAL);
        say(((void *(*)(const char *))dlsym(handle, "plugin_next"))(words[3]));
        say(((void *(*)(const char *))dlsym(handle, "plugin_default"))(words[3]));
    } else return 2;
    return 0;
}
