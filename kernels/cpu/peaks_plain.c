/* See peaks_loops.h: what the compiler makes of plain C, for CPUs and levels that have no loops of their own. */
#include <string.h>

#include "kernels/cpu/peaks_loops.h"

enum { PASSES = 200000, LANES = 64 };

/* Zero, which the compiler cannot know; and where sums go, which it must not leave out. Several threads measure at a time. */
static _Thread_local volatile float zero_f32, sink_f32;
static _Thread_local volatile int32_t zero_i32, sink_i32;

static void loop_f32(void *unused)
{
    (void)unused;
    float sums[LANES] = {0}, a = zero_f32, b = a + 1;
    for (int pass = 0; pass < PASSES; pass++)
        for (int i = 0; i < LANES; i++)
            sums[i] = sums[i] * a + b;
    for (int i = 0; i < LANES; i++)
        sink_f32 = sums[i];
}

static void loop_i32(void *unused)
{
    (void)unused;
    int32_t sums[LANES] = {0}, a = zero_i32;
    for (int pass = 0; pass < PASSES; pass++)
        for (int i = 0; i < LANES; i++)
            sums[i] += a * (int8_t)pass;
    for (int i = 0; i < LANES; i++)
        sink_i32 = sums[i];
}

void peaks_plain_arithmetic(struct peaks_loop loops_out[PEAKS_LOOPS])
{
    const double operations = 2.0 * PASSES * LANES;
    loops_out[PEAKS_F32] = (struct peaks_loop){"plain C, float", loop_f32, operations};
    for (int i = PEAKS_INT8; i < PEAKS_LOOPS; i++)
        loops_out[i] = (struct peaks_loop){"plain C, integers", loop_i32, operations};
}

void peaks_plain_read(void *data)
{
    const struct peaks_span *span = data;
    uint64_t all[8] = {0}, line[8];
    for (size_t at = 0; at < span->bytes; at += sizeof line) {
        memcpy(line, span->begin + at, sizeof line);
        for (int i = 0; i < 8; i++)
            all[i] |= line[i];
    }
    for (int i = 0; i < 8; i++)
        sink_i32 = (int32_t)all[i];
}

#if !defined(__x86_64__) && !defined(__aarch64__)
void peaks_loops_arithmetic(enum cpu_isa_level isa, struct peaks_loop loops_out[PEAKS_LOOPS])
{
    (void)isa;
    peaks_plain_arithmetic(loops_out);
}

peaks_read *peaks_loops_read(enum cpu_isa_level isa, size_t pattern)
{
    (void)isa;
    return pattern == 0 ? peaks_plain_read : NULL;
}
#endif
