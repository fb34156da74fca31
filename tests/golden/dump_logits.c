/* Writes the logits of every position of sequences.bin in the form that compare_logits.py reads.
 *
 *     dump_logits MODEL SEQUENCES OUTPUT f32|int8 f32|f16|int8 [SEQUENCES_MAX]
 *
 * Owner: the main thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "model/model.h"

enum { CHUNK = 64, CONTEXT = 2048, PAGE_TOKENS = 32, PAGES = CONTEXT / PAGE_TOKENS };

static void die(const char *what)
{
    fprintf(stderr, "dump_logits: %s\n", what);
    exit(1);
}

static uint32_t read_u32(FILE *file)
{
    uint32_t value;
    if (fread(&value, sizeof value, 1, file) != 1)
        die("the sequences end early");
    return value;
}

static void write_all(FILE *file, const void *data, size_t bytes)
{
    if (fwrite(data, 1, bytes, file) != bytes)
        die("cannot write");
}

static void chunk_run(struct engine *engine, uint32_t slot, const uint32_t *pages,
                      const uint32_t *ids, uint32_t begin, uint32_t end, float *logits)
{
    struct engine_step *step = engine_step_begin(engine);
    struct engine_seq_input input = {.slot = slot,
                                     .tokens = ids + begin,
                                     .row_count = end - begin,
                                     .prev_sample = ENGINE_NONE,
                                     .position_begin = begin,
                                     .pages = pages,
                                     .page_count = PAGES,
                                     .logits_out = logits};
    if (engine_step_add(step, &input, NULL) != STATUS_OK || engine_submit(step) != STATUS_OK)
        die("a sequence does not fit");
    struct engine_event event;
    do
        engine_wait(engine, NS_PER_S);
    while (!engine_poll(engine, &event) || event.kind != ENGINE_STEP_DONE);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        die("MODEL SEQUENCES OUTPUT f32|int8 f32|f16|int8 [SEQUENCES_MAX]");
    struct err err = ERR_INIT;
    struct model_file *model;
    struct engine *engine;
    struct engine_options options = {.compute = strcmp(argv[4], "int8") == 0 ? KERN_COMPUTE_INT8
                                                                             : KERN_COMPUTE_F32,
                                     .kv_pages = PAGES,
                                     .page_tokens = PAGE_TOKENS,
                                     .context_tokens = CONTEXT,
                                     .rows_max = CHUNK,
                                     .samples_max = CHUNK,
                                     .seqs_max = 1};
    if (!kern_kv_type_parse(argv[5], &options.kv_type))
        die("the KV type is none of f32, f16, int8");
    if (model_open(argv[1], &model, &err) != STATUS_OK ||
        engine_create(&options, model, &engine, &err) != STATUS_OK)
        die(err.message);
    FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb");
    char magic[8];
    if (!in || !out || fread(magic, 8, 1, in) != 1 || memcmp(magic, "BSEQ0001", 8))
        die("cannot open the sequences or the output");
    uint32_t vocab = engine_info(engine)->vocab_size, pages[PAGES], slot, count = read_u32(in);
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = i;
    engine_slot_take(engine, &slot);
    write_all(out, "BLGT0001", 8);
    write_all(out, &vocab, sizeof vocab);
    float *logits = malloc((size_t)CHUNK * vocab * sizeof *logits);
    uint32_t most = argc > 6 ? (uint32_t)atoi(argv[6]) : count;
    for (uint32_t s = 0; s < count && s < most; s++) {
        fseek(in, read_u32(in), SEEK_CUR); /* the script's name */
        uint32_t tokens = read_u32(in), ids[CONTEXT];
        if (tokens > CONTEXT)
            die("a sequence is longer than the context");
        for (uint32_t i = 0; i < tokens; i++) {
            uint8_t id[2];
            if (fread(id, 2, 1, in) != 1)
                die("the sequences end early");
            ids[i] = (uint32_t)(id[0] | id[1] << 8);
        }
        write_all(out, &tokens, sizeof tokens);
        write_all(out, ids, tokens * sizeof *ids);
        for (uint32_t begin = 0; begin < tokens; begin += CHUNK) {
            uint32_t end = begin + CHUNK < tokens ? begin + CHUNK : tokens;
            chunk_run(engine, slot, pages, ids, begin, end, logits);
            write_all(out, logits, (size_t)(end - begin) * vocab * sizeof *logits);
        }
    }
    if (fclose(out) != 0)
        die("cannot write");
    fclose(in);
    free(logits);
    engine_destroy(engine);
    model_close(model);
    return 0;
}
