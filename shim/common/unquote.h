/* Words of the runner's line files, back as they were: %XX is a byte. The other end is `quote` in lab/runner/program.py.
 * In place, because a word never grows; a % without two characters behind it stands for itself. */
#ifndef HL_UNQUOTE_H
#define HL_UNQUOTE_H

#include <stdlib.h>

static inline void hl_unquote(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (from[0] == '%' && from[1] && from[2]) {
            char hex[3] = {from[1], from[2], 0};
            *to++ = (char)strtoul(hex, NULL, 16);
            from += 2;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
}

#endif
