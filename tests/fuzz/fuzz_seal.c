/* A stream of sealed messages over a line that alters, loses, repeats and overtakes: what its reader takes is what was sent, in
 * order, bit by bit, up to where it stops. The input is what is sent and what happens to it: a row of {what, a byte for it, the
 * message's bytes, the message}. And the input as a message of its own: nothing is read past its end. */
#include "proto/seal.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SENT_MAX = 64 };
enum what { PASSES, IS_LOST, COMES_TWICE, IS_OVERTAKEN, FLIPS, IS_CUT, IS_RAW, WHAT_COUNT };

struct sent {
    uint8_t *data; /* of exactly `bytes` */
    size_t bytes;
};

struct reader {
    struct seal seal;
    const struct sent *sent;
    size_t count, taken;
    bool over;
};

static void read_one(struct reader *reader, const uint8_t *data, size_t bytes)
{
    if (reader->over)
        return;
    enum seal_verdict verdict = seal_take(&reader->seal, data, bytes);
    reader->over = verdict == SEAL_BROKEN || verdict == SEAL_GAP;
    if (verdict)
        return;
    assert(reader->taken < reader->count);
    const struct sent *want = &reader->sent[reader->taken++];
    assert(bytes == want->bytes && memcmp(data, want->data, bytes) == 0);
}

static void read_altered(struct reader *reader, const struct sent *sent, enum what what,
                         uint8_t detail)
{
    size_t bytes = what == IS_CUT   ? detail % sent->bytes
                   : what == IS_RAW ? sent->bytes - SEAL_BYTES
                                    : sent->bytes;
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert(copy);
    memcpy(copy, sent->data, bytes);
    if (what == FLIPS)
        copy[detail % bytes] ^= (uint8_t)(1 << detail % 8);
    struct seal before = reader->seal;
    bool over = reader->over;
    read_one(reader, copy, bytes);
    assert(over || reader->over); /* none of this is taken for another's */
    assert(memcmp(&before, &reader->seal, sizeof before) == 0);
    free(copy);
}

static void line_run(const uint8_t *data, size_t bytes)
{
    struct sent sent[SENT_MAX] = {{0}}, *waits = NULL;
    struct seal out = {.on = true};
    struct reader reader = {.seal = {.on = true}, .sent = sent};
    for (size_t at = 0; at + 3 <= bytes && reader.count < SENT_MAX;) {
        enum what what = (enum what)(data[at] % WHAT_COUNT);
        uint8_t detail = data[at + 1];
        size_t length = data[at + 2] < bytes - at - 3 ? data[at + 2] : bytes - at - 3;
        struct sent *s = &sent[reader.count++];
        s->bytes = length + SEAL_BYTES;
        s->data = malloc(s->bytes);
        assert(s->data);
        memcpy(s->data, data + at + 3, length);
        seal_put(&out, s->data, length);
        at += 3 + length;
        if (what == PASSES || what == COMES_TWICE)
            read_one(&reader, s->data, s->bytes);
        if (what == COMES_TWICE)
            read_one(&reader, s->data, s->bytes);
        if (what >= FLIPS)
            read_altered(&reader, s, what, detail);
        if (waits)
            read_one(&reader, waits->data, waits->bytes);
        waits = what == IS_OVERTAKEN ? s : NULL;
    }
    for (size_t i = 0; i < reader.count; i++)
        free(sent[i].data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    line_run(data, bytes);
    struct seal in = {.on = true};
    fuzz_sink += (unsigned)seal_take(&in, data, bytes);
    struct seal first;
    fuzz_sink += (unsigned)seal_take_first(&first, true, data, bytes);
    return 0;
}
