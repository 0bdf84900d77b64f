/* The command line of hooklab-box.
 *
 *   hooklab-box probe                                   prints `direct`, `user` or `no REASON`
 *   hooklab-box init --spec FILE --report FD [--pid-namespace]
 *       makes the namespaces, mounts, says `ready PID user|direct` or `error LINE` on FD and holds them until killed
 *   hooklab-box enter --report FD [--of PID [--user] [--pid-namespace]] [--hold FD] [--environment FILE] [--cwd DIR] -- CMD...
 *       runs CMD there; says `pid N` (as seen here) on FD; ends as CMD ends, by the same code or signal
 */
#include "box.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int box_say(int fd, const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    int size = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (size >= (int)sizeof line) {
        size = sizeof line;
        line[size - 1] = '\n';
    }
    return fd >= 0 && write(fd, line, (size_t)size) == size ? 0 : -1;
}

int main(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "probe") == 0) return box_probe(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "init") == 0) return box_init(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "enter") == 0) return box_enter(argc - 1, argv + 1);
    fputs("usage: hooklab-box probe | init --spec FILE --report FD [--pid-namespace] | enter ... -- CMD\n", stderr);
    return 2;
}
