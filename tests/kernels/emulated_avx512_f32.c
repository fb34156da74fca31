/* kernels/cpu/linear_avx512_f32.c over the emulated intrinsics.
 * Owner: tests. */
#include "tests/kernels/emulate_avx512.h"

#include "kernels/cpu/linear_avx512_f32.c"
