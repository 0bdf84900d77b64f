/* hooklab-box: makes the file system and PID view that a device plugin's Allocate gives a container, and runs
 * programs in it. What its files share. Nothing here knows CUDA; the runner writes what to mount into a spec file.
 * Invariants: nothing is ever mounted outside a fresh mount namespace with private propagation; every process made
 * here dies with its parent (PR_SET_PDEATHSIG), so that a killed runner leaves nothing behind. */
#ifndef HOOKLAB_BOX_H
#define HOOKLAB_BOX_H
#include <stddef.h>

/* mounts.c: plays a spec file in the present mount namespace. 0, or -1 with one line in `why`. */
int box_mounts(const char *spec, char *why, size_t size);

/* namespaces.c: new mount (and PID) namespaces for this process, in a user namespace of its own when without one the
 * kernel refuses and `user` allows it. *used_user says which. 0, or -1 with one line in `why`. */
int box_unshare(int pid_namespace, int *used_user, char *why, size_t size);
void box_die_with_parent(void);

int box_init(int argc, char **argv);
int box_enter(int argc, char **argv);
int box_probe(int argc, char **argv);
int box_say(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
#endif
