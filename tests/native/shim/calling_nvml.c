/* An NVML whose plain start goes through its own exported flag-taking start, by the loader: a preloaded library gets
 * called in between. */
int mini_inits;

int nvmlInitWithFlags(unsigned flags) {
    mini_inits++;
    return (int)flags;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
