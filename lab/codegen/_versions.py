"""The resolver's answers: hl_versions.h/.c."""

from __future__ import annotations

from lab.codegen._text import FIND, HEADER, guard, open_table, quote, rows
from lab.spec import HookTable
from lab.spec.profile import MEASURED_CUDA


def emit(table: HookTable) -> dict[str, str]:
    return {"hl_versions.h": guard("hl_versions.h", _HEADER), "hl_versions.c": _source(table)}


_HEADER = """/* Which name a driver's resolver hands out for (base name, version, flags). No allocation, no lock. */
enum { HL_RESOLVE_FOUND = 0, HL_RESOLVE_UNKNOWN = 1, HL_RESOLVE_TOO_OLD = 2 };
/* The default driver: name id, or -1 with *status (which may be NULL) saying why. version -1 = newest.
 * Flags 2 and 3 are the per-thread class; what a driver refuses (flags above 3, versions above its own) is not
 * judged here. */
int hl_resolve(const char *base, int version, unsigned long long flags, int *status);
/* A driver of CUDA version `driver`: names that it does not know yet are not there. */
int hl_resolve_driver(const char *base, int version, unsigned long long flags, int driver, int *status);
/* The same over every known name, newer drivers' included. */
int hl_resolve_any(const char *base, int version, unsigned long long flags, int *status);
"""


def _source(table: HookTable) -> str:
    default, whole = table.resolver(), table.resolver(absent=True)
    bases = sorted(whole)
    steps: list[str] = []
    records: list[str] = []
    for base in bases:
        spans: list[int] = []
        for klass in (whole[base].legacy, whole[base].per_thread):
            spans += [len(steps), len(klass)]
            for version, name in klass:
                steps.append(f"    {{{version}, HL_{name}, {int(table[name].fake == 'absent')}}},\n")
        records.append(
            f"    {{{quote(base)}, {{{spans[0]}, {spans[2]}}}, {{{spans[1]}, {spans[3]}}}, {int(base in default)}}},\n"
        )
    width = -(-(max(map(len, bases)) + 1) // 8) * 8
    slots = open_table(bases)
    mask = len(slots) - 1
    return f"""{HEADER}#include "hl_versions.h"
#include "hl_names.h"
#include <string.h>

struct step {{
    uint16_t since, name, absent;
}};
struct base {{
    char text[{width}];
    uint16_t first[2], count[2]; /* legacy, per-thread */
    uint16_t known;              /* to the default driver */
}};

static const struct step steps[] = {{
{"".join(steps)}}};

static const struct base bases[] = {{
{"".join(records)}}};

static const uint16_t slots[{len(slots)}] = {{
{rows(slots, 16)}}};

{FIND}
static int answer(const struct base *base, int version, unsigned long long flags, int *status, int any) {{
    int thread = (flags & 2) != 0, found = -1;
    const struct step *step = steps + base->first[thread];
    for (int i = 0; i < base->count[thread]; i++)
        if ((any || !step[i].absent) && (version == -1 || (int)step[i].since <= version)) found = step[i].name;
    if (status) *status = found < 0 ? HL_RESOLVE_TOO_OLD : HL_RESOLVE_FOUND;
    return found;
}}

int hl_resolve_driver(const char *name, int version, unsigned long long flags, int driver, int *status) {{
    int unknown = HL_RESOLVE_UNKNOWN;
    for (uint32_t at = hash(name) & {mask}u; slots[at]; at = (at + 1) & {mask}u) {{
        const struct base *base = &bases[slots[at] - 1];
        if (strcmp(base->text, name)) continue;
        int found = -1;
        for (int thread = 0; thread < 2; thread++)
            for (int i = 0; i < base->count[thread]; i++) {{
                const struct step *step = &steps[base->first[thread] + i];
                if ((step->absent && (int)step->since <= {MEASURED_CUDA}) || (int)step->since > driver) continue;
                unknown = HL_RESOLVE_TOO_OLD;
                if (thread == ((flags & 2) != 0) && (version == -1 || (int)step->since <= version)) found = step->name;
            }}
        if (status) *status = found < 0 ? unknown : HL_RESOLVE_FOUND;
        return found;
    }}
    if (status) *status = HL_RESOLVE_UNKNOWN;
    return -1;
}}

static int resolve(const char *name, int version, unsigned long long flags, int *status, int any) {{
    for (uint32_t at = hash(name) & {mask}u; slots[at]; at = (at + 1) & {mask}u) {{
        const struct base *base = &bases[slots[at] - 1];
        if (strcmp(base->text, name) == 0 && (any || base->known)) return answer(base, version, flags, status, any);
    }}
    if (status) *status = HL_RESOLVE_UNKNOWN;
    return -1;
}}

int hl_resolve(const char *base, int version, unsigned long long flags, int *status) {{
    return resolve(base, version, flags, status, 0);
}}

int hl_resolve_any(const char *base, int version, unsigned long long flags, int *status) {{
    return resolve(base, version, flags, status, 1);
}}
"""
