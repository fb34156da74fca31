/* kernels/cpu/attention_int8_avx512vnni.c over the emulated intrinsics.
 * Owner: tests. */
#include "tests/kernels/emulate_avx512.h"

#include "kernels/cpu/attention_int8_avx512vnni.c"
