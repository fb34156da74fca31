/* Where the demo model is: BATON_MODEL_FILE, else the cache that `./dev model` fills. */
#ifndef BATON_TESTS_GOLDEN_DEMO_MODEL_H
#define BATON_TESTS_GOLDEN_DEMO_MODEL_H

#include <unistd.h>

#include "tests/test.h"

/* The path, or the test is skipped. */
static inline const char *demo_model_path(void)
{
    static char path[4096];
    const char *file = getenv("BATON_MODEL_FILE"), *cache = getenv("XDG_CACHE_HOME");
    if (file && *file)
        return file;
    if (cache && *cache)
        snprintf(path, sizeof path, "%s/baton/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf",
                 getenv("HOME") ? getenv("HOME") : "");
    if (access(path, R_OK))
        TEST_SKIP("the demo model is not there (./dev model brings it)");
    return path;
}

#endif
