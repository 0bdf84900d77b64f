/* Which cases a walk has, in which order: every function over the routes by name, then every step of the resolver's
 * version map at its boundary (ten below, at it, ten above) with each of the stream flags. */
#include "walk.h"

#include "hl_table.h"

#include <string.h>

static const struct {
    const char *base;
    int since;
    bool function;
} names[HL_NAME_COUNT] = {
#define X(name, lib, action, fake, running, since, base) [HL_##name] = {base, since, true},
    HL_TABLE(X)
#undef X
};

const char *walk_base(unsigned name) { return names[name].base; }

static bool is_data(unsigned name) { return !strncmp(hl_name_text[name], "cudbg", 5) && !*names[name].base; }

/* Two names of one base since one version (a function and its per-thread twin) are one boundary. */
static bool boundary_seen(unsigned name) {
    for (unsigned other = name; other-- > 0;) {
        if (strncmp(hl_name_text[other], names[name].base, strlen(names[name].base))) break;
        if (!strcmp(names[other].base, names[name].base) && names[other].since == names[name].since) return true;
    }
    return false;
}

unsigned walk_cases(struct hl_routes_row *rows) {
    unsigned count = 0;
    for (unsigned name = 0; name < HL_NAME_COUNT; name++) {
        if (is_data(name)) continue; /* partly data, and no program asks for them */
        for (int route = HL_WALK_LINK; route <= HL_WALK_DLVSYM; route++, count++)
            if (rows) rows[count] = (struct hl_routes_row){.name = (uint16_t)name, .route = (uint8_t)route};
    }
    for (unsigned name = 0; name < HL_CUDA_COUNT; name++) {
        if (!*names[name].base || boundary_seen(name)) continue;
        for (int step = -10; step <= 10; step += 10)
            for (int flags = 0; flags <= 2; flags++)
                for (int route = HL_WALK_RESOLVER1; route <= HL_WALK_ENTRY; route++, count++)
                    if (rows)
                        rows[count] = (struct hl_routes_row){.name = (uint16_t)name,
                                                             .route = (uint8_t)route,
                                                             .flags = (uint8_t)flags,
                                                             .version = names[name].since + step};
    }
    return count;
}
