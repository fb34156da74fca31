/* Hosts a fuzz target in the normal tests: every file of its corpus, whole, cut short and with bytes changed (from a fixed
 * seed). Each input lies in a block of exactly its size, so that a sanitizer sees a read past its end.
 * FUZZ_CORPUS names the folder. */
#include "tests/fuzz/fuzz.h"
#include "tests/test.h"

#include <dirent.h>

enum { FILE_BYTES_MAX = 1 << 20, CHANGES = 200, CUTS = 64 };

static uint64_t random_state = 20261129;

static uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void run(const uint8_t *data, size_t bytes, size_t changes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    CHECK(copy);
    memcpy(copy, data, bytes);
    for (size_t i = 0; i < changes && bytes; i++) {
        size_t at = draw() % bytes;
        copy[at] = draw() & 1 ? (uint8_t)draw() : (uint8_t)(copy[at] ^ 1 << draw() % 8);
    }
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

TEST(fuzz, corpus_is_replayed)
{
    const char *folder = getenv("FUZZ_CORPUS");
    CHECK_MSG(folder, "FUZZ_CORPUS is not set");
    DIR *dir = opendir(folder);
    CHECK_MSG(dir, "%s cannot be opened", folder);
    uint8_t *data = malloc(FILE_BYTES_MAX);
    CHECK(data);
    int files = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "rb");
        CHECK_MSG(file, "%s cannot be opened", path);
        size_t bytes = fread(data, 1, FILE_BYTES_MAX, file);
        fclose(file);
        files++;
        run(data, bytes, 0);
        for (int i = 0; i < CUTS; i++)
            run(data, bytes ? draw() % bytes : 0, 0);
        for (int i = 0; i < CHANGES; i++)
            run(data, bytes, 1 + draw() % 4);
    }
    CHECK_MSG(files, "%s is empty", folder);
    closedir(dir);
    free(data);
}
