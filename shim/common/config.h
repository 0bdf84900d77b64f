/* Configuration of a guest: the environment first, then the container's file /usr/local/vgpu/hooklab.conf (KEY=VALUE
 * lines), so that a child with a cleared environment stays under its limits. Thread-safe, read once. */
#ifndef HOOKLAB_CONFIG_H
#define HOOKLAB_CONFIG_H
#include <stdint.h>
const char *hl_config(const char *key); /* NULL when unset in both */
/* Calls found(key) once for each key that begins with the prefix, set in the environment or in the file. */
void hl_config_each(const char *prefix, void (*found)(const char *key));
/* Sizes as HAMi writes them: digits with optional k/m/g/t (KiB...), "b" or "ib" after them allowed, any case.
 * 0 = parsed, 1 = unset or empty (no limit), -1 = not a size. */
int hl_parse_size(const char *text, uint64_t *bytes);
#endif
