/* kernels/cpu/attention_avx512.c over the emulated intrinsics.
 * Owner: tests. */
#include "tests/kernels/emulate_avx512.h"

#include "kernels/cpu/attention_avx512.c"
