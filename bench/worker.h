/* The burst worker of hooklab-bench; exit status: 0, 2 wrong use, 3 the parent is gone. */
#ifndef HOOKLAB_WORKER_H
#define HOOKLAB_WORKER_H
int worker_main(int argc, char **argv);
int load_main(int argc, char **argv); /* load.c */
#endif
