/* The sampler's loops, compiled for AVX2 and FMA. See sampler_loops.h. */
#define SAMPLER_LOOPS cpu_sampler_loops_avx2
#include "kernels/cpu/sampler_loops.h"
