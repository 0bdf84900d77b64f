/* Prints what the configuration says. Usage: settings get KEY ... | size TEXT ... (a size: state and
 * bytes) | each PREFIX ... (the keys that begin so) */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void found(const char *key) { puts(key); }

int main(int count, char **arguments) {
    for (int i = 2; i < count; i++) {
        if (!strcmp(arguments[1], "size")) {
            uint64_t bytes = 0;
            int state = hl_parse_size(arguments[i], &bytes);
            printf("%d %llu\n", state, (unsigned long long)bytes);
        } else if (!strcmp(arguments[1], "each")) {
            hl_config_each(arguments[i], found);
        } else {
            const char *first = hl_config(arguments[i]);
            printf("%s%s\n", first ? "=" : "unset", first ? first : "");
            setenv(arguments[i], "changed later", 1);
            if (hl_config(arguments[i]) != first) return 1; /* an answer stays */
        }
    }
    return 0;
}
