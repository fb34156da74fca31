/* Any bytes as text: valid UTF-8 is tokenised and comes back whole, anything else is refused; ids are in the vocabulary, and
 * plain text never gives a special token. The bytes are also taken as token ids, for the detokenizer. */
#include "base/buf.h"
#include "base/utf8.h"
#include "model/detok.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct model_file *model;
static struct tokenizer_scratch *scratch;

/* The tiny model: BATON_UNIT_MODEL, else where the build folder of the fuzzers has it. */
static void start(void)
{
    const char *path = getenv("BATON_UNIT_MODEL");
    struct err err = ERR_INIT;
    if (model_open(path ? path : FUZZ_UNIT_MODEL, &model, &err)) {
        fprintf(stderr, "fuzz_tokenizer: %s\n", err.message);
        abort();
    }
    scratch = tokenizer_scratch_create();
    assert(scratch);
}

static void check_text(const uint8_t *data, size_t bytes, bool parse_special)
{
    struct token_list ids = TOKEN_LIST_INIT;
    struct err err = ERR_INIT;
    enum status status =
        tokenizer_encode(model->tokenizer, scratch, (const char *)data, bytes,
                         (struct tokenizer_options){.parse_special = parse_special}, &ids, &err);
    assert((status == STATUS_OK) == utf8_valid(data, bytes));
    assert(status == STATUS_OK || status == STATUS_INVALID);
    if (status == STATUS_OK) {
        struct buf back = BUF_INIT;
        for (size_t i = 0; i < ids.count; i++) {
            const char *piece;
            size_t piece_bytes;
            bool known = tokenizer_piece(model->tokenizer, ids.ids[i], &piece, &piece_bytes);
            assert(known);
            assert(parse_special || !tokenizer_is_special(model->tokenizer, ids.ids[i]));
            buf_append(&back, piece, piece_bytes);
        }
        assert(back.bytes == bytes && (!bytes || !memcmp(back.data, data, bytes)));
        buf_finish(&back);
    }
    token_list_finish(&ids);
}

static void check_ids(const uint8_t *data, size_t bytes)
{
    struct buf text = BUF_INIT;
    size_t count = bytes / 2 < 4096 ? bytes / 2 : 4096;
    uint32_t *ids = malloc((count ? count : 1) * sizeof *ids);
    for (size_t i = 0; i < count; i++)
        ids[i] = (uint32_t)(data[2 * i] | data[2 * i + 1] << 8) % 512;
    detok_text(model->tokenizer, ids, count, &text);
    assert(utf8_valid(text.data ? (const void *)text.data : "", text.bytes));
    buf_finish(&text);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!model)
        start();
    check_text(data, bytes, false);
    check_text(data, bytes, true);
    check_ids(data, bytes);
    return 0;
}
