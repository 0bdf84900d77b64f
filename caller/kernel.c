/* Modules and launches. The built-in image holds `vadd` (c[i] = a[i] + b[i]) and `mail` (a fixed sentence), whose
 * results are checked byte by byte; any other name gets an image whose kernel spins for `duration` nanoseconds of the
 * GPU's own clock, so that the same scenario means the same on a fake and on a real device. A checked launch makes
 * its own buffers over the same route and frees them: they count against a limit like any other allocation. */
#include "caller.h"
#include "history.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD ".version 6.0\n.target sm_50\n.address_size 64\n"
static const char SENTENCE[] = "the little gpu man says you've got mail";
#define SENTENCE_BYTES (sizeof SENTENCE - 1)

static const char VADD[] = ".visible .entry vadd(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)\n"
                           "{\n"
                           " .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %d<8>; .reg .f32 %f<4>;\n"
                           " mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
                           " mad.lo.s32 %r4, %r1, %r2, %r3;\n"
                           " ld.param.u32 %r5, [pn];\n"
                           " setp.ge.u32 %p1, %r4, %r5;\n"
                           " @%p1 bra DONE;\n"
                           " ld.param.u64 %d1, [pa]; ld.param.u64 %d2, [pb]; ld.param.u64 %d3, [pc];\n"
                           " cvta.to.global.u64 %d1, %d1; cvta.to.global.u64 %d2, %d2; cvta.to.global.u64 %d3, %d3;\n"
                           " mul.wide.u32 %d4, %r4, 4;\n"
                           " add.s64 %d5, %d1, %d4; add.s64 %d6, %d2, %d4; add.s64 %d7, %d3, %d4;\n"
                           " ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6];\n"
                           " add.f32 %f3, %f1, %f2;\n"
                           " st.global.f32 [%d7], %f3;\n"
                           "DONE:\n ret;\n}\n";

static const char MAIL[] = ".visible .entry mail(.param .u64 po, .param .u32 pn)\n"
                           "{\n"
                           " .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<6>;\n"
                           " mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
                           " mad.lo.s32 %r4, %r1, %r2, %r3;\n"
                           " ld.param.u32 %r5, [pn];\n"
                           " setp.ge.u32 %p1, %r4, %r5;\n"
                           " @%p1 bra DONE;\n"
                           " rem.u32 %r6, %r4, 39;\n"
                           " cvt.u64.u32 %d1, %r6; mov.u64 %d2, sentence; add.s64 %d2, %d2, %d1;\n"
                           " ld.global.u8 %r7, [%d2];\n"
                           " ld.param.u64 %d3, [po]; cvta.to.global.u64 %d3, %d3;\n"
                           " cvt.u64.u32 %d4, %r4; add.s64 %d3, %d3, %d4;\n"
                           " st.global.u8 [%d3], %r7;\n"
                           "DONE:\n ret;\n}\n";

static const char SPIN[] = ".visible .entry %s(.param .u64 duration)\n"
                           "{\n"
                           " .reg .pred %%p<2>; .reg .b64 %%d<5>;\n"
                           " ld.param.u64 %%d1, [duration];\n"
                           " mov.u64 %%d2, %%globaltimer;\n"
                           "AGAIN:\n"
                           " mov.u64 %%d3, %%globaltimer;\n"
                           " sub.u64 %%d4, %%d3, %%d2;\n"
                           " setp.lt.u64 %%p1, %%d4, %%d1;\n"
                           " @%%p1 bra AGAIN;\n"
                           " ret;\n}\n";

static int is_builtin(const char *kernel) { return strcmp(kernel, "vadd") == 0 || strcmp(kernel, "mail") == 0; }

/* PTX text of a module that has the kernel; NULL asks for the image with both built-in kernels. */
static char *image(const char *kernel) {
    size_t size = sizeof HEAD + sizeof VADD + sizeof MAIL + 512;
    char *text = malloc(size);
    if (!text) abort();
    size_t used = (size_t)snprintf(text, size, "%s", HEAD);
    if (kernel && !is_builtin(kernel)) {
        snprintf(text + used, size - used, SPIN, kernel);
        return text;
    }
    used += (size_t)snprintf(text + used, size - used, ".global .align 1 .b8 sentence[%zu] = {", SENTENCE_BYTES);
    for (size_t i = 0; i < SENTENCE_BYTES; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? ", " : "", SENTENCE[i]);
    snprintf(text + used, size - used, "};\n%s%s", VADD, MAIL);
    return text;
}

static char *file_image(const char *path) {
    FILE *file = fopen(path, "re");
    char *text = NULL;
    if (file && fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        rewind(file);
        text = size >= 0 ? calloc(1, (size_t)size + 1) : NULL;
        if (text && fread(text, 1, (size_t)size, file) != (size_t)size) {
            free(text);
            text = NULL;
        }
    }
    if (file) fclose(file);
    return text;
}

void step_module(const struct play *play, struct outcome *out) {
    const char *label = step_text(play->step, "as", step_text(play->step, "what", "module"));
    if (strcmp(step_text(play->step, "op", "load"), "unload") == 0) {
        struct object *object = object_find(label, OBJECT_MODULE);
        if (!object) {
            out->result = STEP_SKIPPED;
            return;
        }
        out->name = caller_hook_id(C_cuModuleUnload);
        out->result = CALL(&play->how, cuModuleUnload, (CUmodule)(uintptr_t)object->handle); /* NOLINT: a handle */
        object_drop(object);
        return;
    }
    const char *path = step_text(play->step, "image", "builtin");
    char *text = strcmp(path, "builtin") == 0 ? image(NULL) : file_image(path);
    CUmodule module = NULL;
    out->name = caller_hook_id(C_cuModuleLoadData);
    if (!text) {
        fprintf(stderr, "hooklab-caller: %s: cannot read the module image\n", path);
        out->result = CUDA_ERROR_FILE_NOT_FOUND;
        return;
    }
    out->result = CALL(&play->how, cuModuleLoadData, &module, text);
    free(text);
    if (out->result == CUDA_SUCCESS) object_add(label, OBJECT_MODULE, (uint64_t)(uintptr_t)module);
    out->b = (uint64_t)(uintptr_t)module;
}

static int32_t find_function(const struct play *play, const char *kernel, CUfunction *function, struct outcome *out) {
    char label[80];
    struct object *object = object_find(step_text(play->step, "module", "module"), OBJECT_MODULE);
    snprintf(label, sizeof label, "image of %.60s %p", is_builtin(kernel) ? "builtin" : kernel,
             (void *)current_context());
    if (!object) object = object_find(label, OBJECT_MODULE);
    if (!object) {
        CUmodule module = NULL;
        char *text = image(kernel);
        out->name = caller_hook_id(C_cuModuleLoadData);
        int32_t result = CALL(&play->how, cuModuleLoadData, &module, text);
        free(text);
        if (result != CUDA_SUCCESS) return result;
        object = object_add(label, OBJECT_MODULE, (uint64_t)(uintptr_t)module);
    }
    out->name = caller_hook_id(C_cuModuleGetFunction);
    return CALL(&play->how, cuModuleGetFunction, function, (CUmodule)(uintptr_t)object->handle,
                kernel); /* NOLINT: a handle */
}

struct shape {
    unsigned blocks, threads;
};

static int32_t launch(const struct play *play, CUfunction function, const struct shape *shape, void **arguments,
                      int waits, struct outcome *out) {
    out->name = caller_hook_id(C_cuLaunchKernel);
    int32_t result =
        CALL(&play->how, cuLaunchKernel, function, shape->blocks, 1, 1, shape->threads, 1, 1, 0, NULL, arguments, NULL);
    if (result != CUDA_SUCCESS || !waits) return result;
    out->name = caller_hook_id(C_cuCtxSynchronize);
    result = CALL(&play->how, cuCtxSynchronize);
    if (result == CUDA_SUCCESS) out->name = caller_hook_id(C_cuLaunchKernel);
    return result;
}

static int32_t buffers(const struct play *play, CUdeviceptr *pointers, int count, uint64_t bytes, struct outcome *out) {
    for (int i = 0; i < count; i++) {
        out->name = caller_hook_id(C_cuMemAlloc_v2);
        int32_t result = CALL(&play->how, cuMemAlloc_v2, &pointers[i], bytes);
        if (result != CUDA_SUCCESS) {
            pointers[i] = 0;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

/* Memory of the step's own; what the driver would not take back is the program's still. */
static void give_back(const struct play *play, CUdeviceptr pointer, uint64_t bytes) {
    if (CALL(&play->how, cuMemFree_v2, pointer) == CUDA_SUCCESS) return;
    struct object *kept = object_add("launch", OBJECT_MEMORY, pointer);
    kept->bytes = bytes;
    kept->memory_kind = HL_KIND_SYNC;
    kept->device = play->device;
}

static void run_vadd(const struct play *play, CUfunction function, const struct shape *shape, uint32_t n,
                     struct outcome *out) {
    const struct how *how = &play->how;
    CUdeviceptr device[3] = {0};
    uint64_t bytes = 4ull * n;
    float *host = malloc(3 * bytes + 1);
    if (!host) abort();
    for (uint32_t i = 0; i < n; i++) {
        host[i] = (float)(i % 4096) * 0.5f;
        host[n + i] = (float)(i % 1000) * 0.25f + 1.0f;
        host[2 * (uint64_t)n + i] = -1.0f;
    }
    out->result = buffers(play, device, 3, bytes, out);
    for (int i = 0; i < 3 && out->result == CUDA_SUCCESS; i++) {
        out->name = caller_hook_id(C_cuMemcpyHtoD_v2);
        out->result = CALL(how, cuMemcpyHtoD_v2, device[i], host + i * (uint64_t)n, bytes);
    }
    if (out->result == CUDA_SUCCESS) {
        void *arguments[] = {&device[0], &device[1], &device[2], &n};
        out->result = launch(play, function, shape, arguments, 1, out);
    }
    if (out->result == CUDA_SUCCESS) {
        out->result = CALL(how, cuMemcpyDtoH_v2, host + 2 * (uint64_t)n, device[2], bytes);
        for (uint32_t i = 0; i < n; i++) out->b += host[2 * (uint64_t)n + i] != host[i] + host[n + i];
        out->a = out->b == 0;
    }
    for (int i = 0; i < 3; i++)
        if (device[i]) give_back(play, device[i], bytes);
    free(host);
}

static void run_mail(const struct play *play, CUfunction function, const struct shape *shape, uint32_t n,
                     struct outcome *out) {
    const struct how *how = &play->how;
    CUdeviceptr device = 0;
    char *host = calloc(1, (size_t)n + 1);
    if (!host) abort();
    out->result = buffers(play, &device, 1, n, out);
    if (out->result == CUDA_SUCCESS) {
        void *arguments[] = {&device, &n};
        out->result = launch(play, function, shape, arguments, 1, out);
    }
    if (out->result == CUDA_SUCCESS) {
        out->result = CALL(how, cuMemcpyDtoH_v2, host, device, n);
        for (uint32_t i = 0; i < n && i < SENTENCE_BYTES; i++) /* what follows the sentence is not ours to say */
            out->b += host[i] != SENTENCE[i];
        out->a = out->b == 0;
    }
    if (device) give_back(play, device, n);
    free(host);
}

void step_launch(const struct play *play, struct outcome *out) {
    const struct step *step = play->step;
    const char *kernel = step_text(step, "kernel", "vadd");
    int vadd = strcmp(kernel, "vadd") == 0, mail = strcmp(kernel, "mail") == 0;
    uint32_t n = (uint32_t)step_number(step, "n", mail ? SENTENCE_BYTES : 1024);
    struct shape shape = {.threads = (unsigned)step_number(step, "threads", 256)};
    shape.blocks = (unsigned)step_number(step, "blocks", vadd || mail ? (n + shape.threads - 1) / shape.threads : 1);
    CUfunction function = NULL;
    out->result = find_function(play, kernel, &function, out);
    if (out->result != CUDA_SUCCESS) return;
    for (uint64_t left = step_number(step, "count", 1); left; left--) { /* each with an end record of its own */
        uint64_t start = hl_now_ns();
        out->a = out->b = 0;
        if (vadd) {
            run_vadd(play, function, &shape, n, out);
        } else if (mail) {
            run_mail(play, function, &shape, n, out);
        } else { /* a queue of launches, as a program makes it; only the last one waits */
            uint64_t duration = step_number(step, "duration", 0);
            void *arguments[] = {&duration};
            out->result = launch(play, function, &shape, arguments, left == 1, out);
            out->a = 2;
        }
        out->c = hl_now_ns() - start;
        if (left > 1) report_end(play, out);
    }
}
