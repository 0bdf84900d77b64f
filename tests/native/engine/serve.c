/* Asks the engine what standard input says and answers on standard output, one line a question:
 * "admit DEVICE SIZE KIND USED LIMIT SHARED", "lease DEVICE COST NOW", "observe DEVICE BUSY WINDOW NOW",
 * "settle DEVICE SIZE KIND OK", "release DEVICE SIZE KIND", "word INDEX", "poke INDEX VALUE", "faults", "features",
 * "reason", "log", "lines". lease and observe get 64 shared words. The first line out is the answer of boot and the reason. */
#define _GNU_SOURCE
#include "thin.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t words[64];

int main(void) {
    static char line[4096];
    const struct hl_engine_api *api = thin_engine();
    int64_t booted = thin_boot();
    printf("%" PRId64 " %s\n", booted, api->reason());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char name[32] = "";
        uint64_t v[6] = {0};
        sscanf(line, "%31s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, name, v, v + 1, v + 2,
               v + 3, v + 4, v + 5);
        int64_t answer = 0;
        if (!strcmp(name, "admit")) answer = api->admit((int)v[0], v[1], (int)v[2], v[3], v[4], v[5]);
        else if (!strcmp(name, "lease")) answer = api->lease((int)v[0], (int64_t)v[1], v[2], words, sizeof words);
        else if (!strcmp(name, "observe")) answer = api->observe((int)v[0], v[1], v[2], v[3], words, sizeof words);
        else if (!strcmp(name, "settle")) answer = api->settle((int)v[0], v[1], (int)v[2], (int)v[3]);
        else if (!strcmp(name, "release")) answer = api->release((int)v[0], v[1], (int)v[2]);
        else if (!strcmp(name, "word")) answer = (int64_t)words[v[0] & 63];
        else if (!strcmp(name, "poke")) words[v[0] & 63] = v[1];
        else if (!strcmp(name, "faults")) answer = (int64_t)api->faults();
        else if (!strcmp(name, "features")) answer = api->features();
        else if (!strcmp(name, "lines")) answer = thin_log_lines;
        if (!strcmp(name, "reason")) puts(api->reason());
        else if (!strcmp(name, "log")) puts(thin_log_last);
        else printf("%" PRId64 "\n", answer);
        fflush(stdout);
    }
    return 0;
}
