/* The sampler's loops in plain C. See sampler_loops.h. */
#define SAMPLER_LOOPS cpu_sampler_loops_plain
#include "kernels/cpu/sampler_loops.h"
