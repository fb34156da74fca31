/* What the fuzz targets share. Each is one LLVMFuzzerTestOneInput, hosted by libFuzzer (-Dfuzzers=true) or, in the normal
 * tests, by replay.c. */
#ifndef BATON_TESTS_FUZZ_FUZZ_H
#define BATON_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What a target has read goes here, so that no compiler drops the reading. */
static volatile unsigned fuzz_sink __attribute__((unused));

#endif
