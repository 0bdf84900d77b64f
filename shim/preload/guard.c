/* The mark of a thread that is inside a wrapper. Initial-exec: reading it must neither allocate nor call the loader,
 * because the exported dlsym reads it before the process has finished starting. */
#include "preload.h"

__thread int hl_depth;
