/* The engine's promises beside the arithmetic: events in order, cancel within a layer, failures that stay with their request,
 * checksums and copies of pieces, options refused by name. */
#include "base/clock.h"
#include "tests/engine/harness.h"
#include "tests/test.h"

static struct engine_options options_make(void)
{
    return (struct engine_options){.compute = KERN_COMPUTE_INT8,
                                   .kv_type = KERN_KV_F16,
                                   .threads = 1,
                                   .page_tokens = 32,
                                   .kv_pages = 128,
                                   .layer_run = 2,
                                   .rows_max = 1024,
                                   .samples_max = 64,
                                   .seqs_max = 32};
}

static void pages_take(struct engine *engine, uint32_t *pages, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pages[i] = first + i;
    engine_pages_zero(engine, pages, count);
}

static uint32_t slot_take(struct engine *engine)
{
    uint32_t slot;
    CHECK_INT(engine_slot_take(engine, &slot), STATUS_OK);
    return slot;
}

static const struct engine_copy *copy_run(struct engine *engine, struct engine_copy *copy)
{
    struct engine_event event;
    CHECK_INT(engine_copy_submit(engine, copy), STATUS_OK);
    for (int i = 0; i < 1000; i++) {
        while (engine_poll(engine, &event))
            if (event.kind == ENGINE_COPY_DONE && event.copy == copy)
                return copy;
        engine_wait(engine, NS_PER_S / 100);
    }
    TEST_FAIL("a copy did not end within 10 s");
    return NULL;
}

/* A long sequence alone: several threads share its one row's attention, a shorter one beside it stays whole. */
TEST(engine, a_long_sequence_on_threads)
{
    enum { JOBS = 2 };
    static struct job expected[JOBS], got[JOBS];
    struct model_file *model = harness_model();
    uint32_t vocab = model->config.vocab;
    const struct run_options run = {.chunk = 512};
    for (int type = KERN_KV_F16; type <= KERN_KV_INT8; type++) {
        struct engine_options options = options_make();
        options.kv_type = (enum kern_kv_type)type;
        options.samples_max = options.rows_max;
        for (unsigned threads = 1; threads <= 5; threads += 2) {
            struct job *jobs = threads == 1 ? expected : got;
            options.threads = threads;
            struct engine *engine = harness_engine(model, options);
            for (uint32_t j = 0; j < JOBS; j++)
                job_init(&jobs[j], j, j ? 65 : 595, 4, vocab);
            jobs_run(engine, jobs, JOBS, &run, 3);
            engine_destroy(engine);
            for (uint32_t j = 0; j < JOBS && threads > 1; j++) {
                job_compare(&expected[j], &got[j], vocab, true, "threads");
                job_finish(&got[j]);
            }
        }
        for (uint32_t j = 0; j < JOBS; j++)
            job_finish(&expected[j]);
    }
    model_close(model);
}

TEST(engine, events_come_in_order)
{
    struct model_file *model = harness_model();
    struct engine *engine = harness_engine(model, options_make());
    CHECK_INT(engine_info(engine)->run_count, 3);
    uint32_t pages[4], tokens[100] = {0}, slot = slot_take(engine);
    pages_take(engine, pages, 5, 4);
    struct engine_step *step = engine_step_begin(engine);
    struct engine_seq_input input = {.slot = slot,
                                     .tokens = tokens,
                                     .row_count = 100,
                                     .prev_sample = ENGINE_NONE,
                                     .pages = pages,
                                     .page_count = 4};
    CHECK_INT(engine_step_add(step, &input, NULL), STATUS_OK);
    engine_step_cookie_set(step, tokens);
    CHECK_INT(engine_submit(step), STATUS_OK);
    struct engine_event event;
    for (uint32_t want = 0; want <= 3;) {
        if (!engine_poll(engine, &event)) {
            CHECK(engine_wait(engine, 10 * NS_PER_S));
            continue;
        }
        CHECK(event.step == step && engine_step_cookie(event.step) == tokens);
        CHECK_INT(event.kind, want < 3 ? ENGINE_RUN_DONE : ENGINE_STEP_DONE);
        if (want < 3) {
            CHECK_INT(event.run, want);
            uint64_t sum;
            uint32_t sealed;
            const uint32_t *sealed_pages = engine_step_sealed(step, &sealed);
            CHECK_INT(sealed, 3); /* 96 of 100 positions */
            CHECK_INT(sealed_pages[2], 7);
            CHECK(engine_piece_sum(engine, 7, want, &sum));
            CHECK(!engine_piece_sum(engine, 8, want, &sum)); /* not full, not named */
            CHECK(want == 2 || !engine_piece_sum(engine, 7, want + 1, &sum));
        }
        want++;
    }
    CHECK(!engine_poll(engine, &event));
    CHECK(engine_page_sealed(engine, 7) && !engine_page_sealed(engine, 8));
    struct engine_progress progress;
    engine_progress(engine, &progress);
    CHECK_INT(progress.layers_finished, 5);
    CHECK_INT(progress.busy_since_ns, 0);
    CHECK(progress.longest_layer_ns > 0);
    engine_destroy(engine);
    model_close(model);
}

/* Zeroing that is on its way would come over what somebody else receives: pages are not quiet before it has been. */
TEST(engine, pages_are_given_back_after_their_zeroing)
{
    struct model_file *model = harness_model();
    struct engine *engine = harness_engine(model, options_make());
    uint32_t pages[4], tokens[100] = {0}, slot = slot_take(engine);
    uint32_t early[2] = {40, 41}, late[2] = {50, 51};
    pages_take(engine, pages, 5, 4);
    struct engine_seq_input input = {.slot = slot,
                                     .tokens = tokens,
                                     .row_count = 50,
                                     .prev_sample = ENGINE_NONE,
                                     .pages = pages,
                                     .page_count = 4};
    engine_pages_zero(engine, early, 2);
    CHECK(engine_pages_release(engine, early, 2)); /* no step was submitted with it: taken back */
    struct engine_step *steps[2];
    for (int i = 0; i < 2; i++) {
        steps[i] = engine_step_begin(engine);
        CHECK_INT(engine_step_add(steps[i], &input, NULL), STATUS_OK);
        CHECK_INT(engine_submit(steps[i]), STATUS_OK);
        input.position_begin = 50;
        if (i == 0) {
            CHECK(engine_pages_release(engine, early, 2));
            CHECK(!engine_pages_release(engine, pages, 4));
            engine_pages_zero(engine, late, 2); /* goes ahead of the second step */
        }
    }
    struct engine_event event;
    uint32_t events = 0, runs = engine_info(engine)->run_count;
    while (events < 2 * (runs + 1)) {
        CHECK(engine_pages_release(engine, late, 2) == (events > runs + 1));
        if (engine_poll(engine, &event))
            events++;
        else
            CHECK(engine_wait(engine, 10 * NS_PER_S));
        CHECK(engine_pages_release(engine, pages, 4) == (events > 0));
    }
    engine_destroy(engine);
    model_close(model);
}

/* Cancels at random moments of a long prefill with a second step in flight behind it. After the acknowledgement nothing may
 * touch the pages: they are filled by hand then, and must stay as they are. */
TEST(engine, cancel_within_a_layer)
{
#ifdef BATON_SANITIZED
    enum { ROUNDS = 12 };
#else
    enum { ROUNDS = 60 };
#endif
    struct model_file *model = harness_model();
    struct engine_options options = options_make();
    options.threads = 2;
    struct engine *engine = harness_engine(model, options);
    uint32_t tokens[512], early = 0;
    for (uint32_t i = 0; i < 512; i++)
        tokens[i] = i * 31 % model->config.vocab;
    uint64_t step_ns = 4 * NS_PER_MS;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t pages[32], mate_pages[1], slot = slot_take(engine), mate = slot_take(engine);
        pages_take(engine, pages, 0, 32);
        pages_take(engine, mate_pages, 40, 1);
        struct engine_seq_input input = {.slot = slot,
                                         .tokens = tokens,
                                         .row_count = 512,
                                         .prev_sample = ENGINE_NONE,
                                         .pages = pages,
                                         .page_count = 32};
        struct engine_seq_input mate_input = input;
        mate_input.slot = mate;
        mate_input.pages = mate_pages;
        mate_input.page_count = 1;
        mate_input.row_count = 3;
        for (int s = 0; s < 2; s++) {
            struct engine_step *step = engine_step_begin(engine);
            CHECK_INT(engine_step_add(step, &input, NULL), STATUS_OK);
            CHECK_INT(engine_step_add(step, &mate_input, NULL), STATUS_OK);
            CHECK_INT(engine_submit(step), STATUS_OK);
            input.position_begin = 512;
            mate_input.position_begin = 3;
        }
        CHECK(!engine_cancel_acked(engine, slot));
        uint64_t begin_ns = clock_now_ns();
        struct timespec pause = {0, (long)((round * 7919u % 300) * step_ns / 150)};
        nanosleep(&pause, NULL);
        engine_cancel(engine, slot);
        uint32_t done = 0;
        struct engine_event event;
        while (!engine_cancel_acked(engine, slot)) {
            if (engine_poll(engine, &event))
                done += event.kind == ENGINE_STEP_DONE;
            CHECK(clock_now_ns() - begin_ns < 10 * NS_PER_S);
        }
        early += done < 2;
        /* The pauses follow what they find: a step that was measured while the machine stood still misleads for long otherwise. */
        step_ns = done < 2 ? step_ns + step_ns / 4 : step_ns / 2;
        uint64_t pattern = 0x1234567800000000u + round;
        size_t words = engine_piece_bytes(engine, 0) / sizeof pattern;
        for (uint32_t p = 0; p < 32; p += 31)
            for (size_t i = 0; i < words; i++)
                ((uint64_t *)engine_piece_host(engine, pages[p], 0))[i] = pattern;
        engine_slot_release(engine, slot); /* while it may still be in flight */
        while (done < 2) {
            if (engine_poll(engine, &event))
                done += event.kind == ENGINE_STEP_DONE;
            else
                engine_wait(engine, NS_PER_S);
        }
        for (uint32_t p = 0; p < 32; p += 31)
            for (size_t i = 0; i < words; i++)
                CHECK(((uint64_t *)engine_piece_host(engine, pages[p], 0))[i] == pattern);
        engine_slot_release(engine, mate);
        if (round == 0)
            step_ns = clock_now_ns() - begin_ns;
    }
    CHECK_MSG(engine_cancel_layers_max(engine) <= 1, "%u layers began after a cancel",
              engine_cancel_layers_max(engine));
    CHECK_MSG(early > ROUNDS / 6, "only %u of %d cancels met a running step", early, ROUNDS);
    engine_destroy(engine);
    model_close(model);
}

TEST(engine, slots_run_out_and_return)
{
    struct model_file *model = harness_model();
    struct engine_options options = options_make();
    options.slots_max = 3;
    struct engine *engine = harness_engine(model, options);
    uint32_t slots[3], extra, page = 0, token = 1;
    for (int i = 0; i < 3; i++)
        slots[i] = slot_take(engine);
    CHECK_INT(engine_slot_take(engine, &extra), STATUS_FULL);
    engine_cancel(engine, slots[0]); /* in no step: at once */
    CHECK(engine_cancel_acked(engine, slots[0]));
    engine_slot_release(engine, slots[0]);
    CHECK_INT(slot_take(engine), slots[0]);
    CHECK(!engine_cancel_acked(engine, slots[0]));

    struct engine_step *step = engine_step_begin(engine);
    struct engine_seq_input input = {.slot = slots[1],
                                     .tokens = &token,
                                     .row_count = 1,
                                     .prev_sample = ENGINE_NONE,
                                     .pages = &page,
                                     .page_count = 1};
    CHECK_INT(engine_step_add(step, &input, NULL), STATUS_OK);
    CHECK_INT(engine_submit(step), STATUS_OK);
    engine_slot_release(engine, slots[1]);
    CHECK_INT(engine_slot_take(engine, &extra), STATUS_FULL); /* the step still holds it */
    harness_step_wait(engine);
    CHECK_INT(slot_take(engine), slots[1]);
    engine_destroy(engine);
    model_close(model);
}

TEST(engine, step_refuses_what_does_not_fit)
{
    struct model_file *model = harness_model();
    struct engine_options options = options_make();
    options.rows_max = 64;
    options.seqs_max = 4;
    options.samples_max = 2;
    struct engine *engine = harness_engine(model, options);
    uint32_t vocab = model->config.vocab, context = engine_info(engine)->context_tokens;
    uint32_t pages[32], tokens[65] = {0}, slot = slot_take(engine);
    pages_take(engine, pages, 0, 32);
    struct sampling_params params = sampling_params_default();
    struct kern_sampling sampling = {0};
    engine_sampling_set(&params, &sampling);
    struct engine_seq_input good = {.slot = slot,
                                    .tokens = tokens,
                                    .row_count = 40,
                                    .prev_sample = ENGINE_NONE,
                                    .pages = pages,
                                    .page_count = 2,
                                    .sampling = &sampling};
    struct engine_step *step = engine_step_begin(engine);
    CHECK_INT(engine_submit(step), STATUS_INVALID); /* empty */
    struct engine_seq_input bad = good;
    bad.slot = 9999;
    CHECK_INT(engine_step_add(step, &bad, NULL), STATUS_INVALID);
    bad = good;
    bad.row_count = 0;
    CHECK_INT(engine_step_add(step, &bad, NULL), STATUS_INVALID);
    bad = good;
    bad.page_count = 1; /* 40 rows need two */
    CHECK_INT(engine_step_add(step, &bad, NULL), STATUS_INVALID);
    bad = good;
    bad.position_begin = context - 39;
    bad.page_count = 32;
    CHECK_INT(engine_step_add(step, &bad, NULL), STATUS_INVALID);
    bad = good;
    bad.prev_sample = 0; /* no step was submitted */
    bad.tokens = NULL;
    bad.row_count = 1;
    CHECK_INT(engine_step_add(step, &bad, NULL), STATUS_INVALID);
    tokens[39] = vocab;
    CHECK_INT(engine_step_add(step, &good, NULL), STATUS_INVALID);
    tokens[39] = vocab - 1;
    pages[1] = 128;
    CHECK_INT(engine_step_add(step, &good, NULL), STATUS_INVALID);
    pages[1] = 127;
    uint32_t index = 77;
    CHECK_INT(engine_step_add(step, &good, &index), STATUS_OK);
    CHECK_INT(index, 0);
    CHECK_INT(engine_step_add(step, &good, NULL), STATUS_FULL); /* 80 rows */
    good.row_count = 1;
    CHECK_INT(engine_step_add(step, &good, &index), STATUS_OK);
    CHECK_INT(index, 1);
    CHECK_INT(engine_step_add(step, &good, NULL), STATUS_FULL); /* samples */
    good.sampling = NULL;
    CHECK_INT(engine_step_add(step, &good, &index), STATUS_OK);
    CHECK_INT(index, ENGINE_NONE);
    CHECK_INT(engine_step_add(step, &good, NULL), STATUS_OK);
    CHECK_INT(engine_step_add(step, &good, NULL), STATUS_FULL); /* sequences */
    engine_step_abandon(step);
    CHECK(engine_step_begin(engine) == step);
    CHECK_INT(engine_step_rows(step), 0);
    engine_destroy(engine);
    model_close(model);
}

static uint32_t rows_left(struct engine_step *step, const struct engine_row *rows, uint32_t count,
                          enum status expected)
{
    uint32_t added = 77, sample = 77, before = engine_step_rows(step);
    CHECK_INT(engine_step_add_rows(step, rows, count, &added, &sample), expected);
    CHECK_INT(engine_step_rows(step), before + added);
    return count - added;
}

TEST(engine, rows_are_refused_one_by_one)
{
    enum { COUNT = 6 };
    struct model_file *model = harness_model();
    struct engine_options options = options_make();
    options.seqs_max = COUNT - 1;
    struct engine *engine = harness_engine(model, options);
    const struct engine_info *info = engine_info(engine);
    struct sampling_params params = sampling_params_default();
    struct kern_sampling sampling = {0};
    engine_sampling_set(&params, &sampling);
    uint32_t tables[COUNT][2];
    struct engine_row good[COUNT], rows[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        pages_take(engine, tables[i], 2 * i, 2);
        good[i] = (struct engine_row){.pages = tables[i],
                                      .sampling = &sampling,
                                      .slot = slot_take(engine),
                                      .token = i,
                                      .page_count = 1,
                                      .opens = true};
    }
    struct engine_step *step = engine_step_begin(engine);
    struct {
        const char *what;
        struct engine_row row;
    } bad[] = {{"slot", good[3]},    {"token", good[3]},     {"unknown token", good[3]},
               {"table", good[3]},   {"position", good[3]},  {"a page behind the pool", good[3]},
               {"no page", good[3]}, {"not opened", good[3]}};
    uint32_t wrong_table[] = {info->page_count};
    bad[0].row.slot = info->slots_max;
    bad[1].row.token = info->vocab_size;
    bad[2].row.token = ENGINE_TOKEN_PREV(0); /* no step was submitted */
    bad[3].row.position = info->page_tokens;
    bad[4].row.position = info->context_tokens;
    bad[4].row.page_count = UINT32_MAX;
    bad[5].row.pages = wrong_table;
    bad[6].row.page_count = 0;
    bad[7].row.opens = false;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        memcpy(rows, good, sizeof rows);
        rows[3] = bad[k].row;
        CHECK_MSG(rows_left(step, rows, 5, STATUS_INVALID) == 2, "%s", bad[k].what);
        engine_step_abandon(step);
        CHECK(engine_step_begin(engine) == step);
    }
    CHECK_INT(rows_left(step, good, COUNT, STATUS_FULL), 1); /* sequences */
    CHECK_INT(rows_left(step, good + COUNT - 1, 1, STATUS_FULL), 1);
    CHECK_INT(engine_submit(step), STATUS_OK);
    harness_step_wait(engine);

    /* the next ones: from the samples, in another order, and one of them in a page that its slot has not opened */
    step = engine_step_begin(engine);
    for (uint32_t i = 0; i < 5; i++) {
        rows[i] = good[4 - i];
        rows[i].token = ENGINE_TOKEN_PREV(4 - i);
        rows[i].position = 1;
        rows[i].opens = false;
    }
    rows[4].position = info->page_tokens;
    rows[4].page_count = 2;
    CHECK_INT(rows_left(step, rows, 5, STATUS_INVALID), 1);
    rows[4].opens = true;
    CHECK_INT(rows_left(step, rows + 4, 1, STATUS_OK), 0);
    CHECK_INT(rows_left(step, rows, 1, STATUS_FULL), 1);
    CHECK_INT(engine_submit(step), STATUS_OK);
    harness_step_wait(engine);
    step = engine_step_begin(engine);
    rows[0].token = ENGINE_TOKEN_PREV(5); /* there were five */
    CHECK_INT(rows_left(step, rows, 1, STATUS_INVALID), 1);
    engine_step_abandon(step);
    engine_destroy(engine);
    model_close(model);
}

/* Every row that opens a page takes its checksum away, and a page that is full gets one. */
TEST(engine, rows_seal_what_they_fill)
{
    struct model_file *model = harness_model();
    struct engine *engine = harness_engine(model, options_make());
    const struct engine_info *info = engine_info(engine);
    struct sampling_params params = sampling_params_default();
    struct kern_sampling sampling = {0};
    engine_sampling_set(&params, &sampling);
    uint32_t answer[256] = {0}, pages[2], slot = slot_take(engine), added, sample = 0;
    sampling.generated = answer;
    pages_take(engine, pages, 0, 2);
    for (int round = 0; round < 2; round++) /* the same pages twice */
        for (uint32_t position = 0; position < info->page_tokens + 2; position++) {
            bool opens = position % info->page_tokens == 0;
            struct engine_row row = {.pages = pages,
                                     .sampling = &sampling,
                                     .slot = slot,
                                     .token = position ? ENGINE_TOKEN_PREV(sample) : 5,
                                     .position = position,
                                     .page_count = 2,
                                     .generated_count = position,
                                     .opens = opens};
            struct engine_step *step = engine_step_begin(engine);
            CHECK_INT(engine_step_add_rows(step, &row, 1, &added, &sample), STATUS_OK);
            CHECK_INT(engine_submit(step), STATUS_OK);
            CHECK(!engine_page_sealed(engine, pages[position / info->page_tokens]));
            harness_step_wait(engine);
            CHECK_INT(engine_page_sealed(engine, pages[0]), position + 1 >= info->page_tokens);
            CHECK(!engine_page_sealed(engine, pages[1]));
        }
    engine_destroy(engine);
    model_close(model);
}

TEST(engine, pieces_move_and_are_verified)
{
    static const struct {
        const char *backend;
        enum kern_kv_type kv_type;
    } cases[] = {{"cpu", KERN_KV_F16},
                 {"opaque", KERN_KV_F16},
                 {"cpu", KERN_KV_INT8},
                 {"opaque", KERN_KV_INT8}};
    struct model_file *model = harness_model();
    struct job there, here;
    uint32_t vocab = model->config.vocab;
    struct run_options run = {.chunk = 512};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct engine_options options = options_make();
        options.backend = cases[c].backend;
        options.kv_type = cases[c].kv_type;
        options.samples_max = 256;
        struct engine *from = harness_engine(model, options), *to = harness_engine(model, options);
        CHECK((engine_piece_host(from, 0, 0) == NULL) == (c % 2 == 1));
        job_init(&there, 3, 100, 20, vocab);
        jobs_run(from, &there, 1, &run, 0);
        /* the prompt's pages (100 positions: 3 full, 1 partly) as they are after the whole answer */
        uint32_t pages[4] = {11, 3, 90, 41}, runs = engine_info(to)->run_count;
        uint8_t *host = malloc(engine_info(to)->piece_bytes);
        for (uint32_t p = 0; p < 4; p++)
            for (uint32_t r = 0; r < runs; r++) {
                struct engine_copy copy = {.kind = ENGINE_COPY_EXPORT,
                                           .page = there.pages[p],
                                           .run = r,
                                           .host = host,
                                           .expect = true};
                CHECK(engine_piece_sum(from, copy.page, r, &copy.expected));
                CHECK_INT(copy_run(from, &copy)->status, STATUS_OK);
                struct engine_copy in = copy;
                in.kind = ENGINE_COPY_IMPORT;
                in.page = pages[p];
                if (p == 2 && r == 1) { /* a bit flips on the way */
                    host[1000] ^= 4;
                    CHECK_INT(copy_run(to, &in)->status, STATUS_CHECKSUM);
                    CHECK(!engine_page_sealed(to, pages[p]));
                    host[1000] ^= 4;
                }
                CHECK_INT(copy_run(to, &in)->status, STATUS_OK);
                in.kind = ENGINE_COPY_VERIFY;
                CHECK_INT(copy_run(to, &in)->status, STATUS_OK);
                in.expected ^= 1;
                CHECK_INT(copy_run(to, &in)->status, STATUS_CHECKSUM);
            }
        CHECK(engine_page_sealed(to, pages[0]));
        engine_pages_unseal(to, pages, 1);
        CHECK(!engine_page_sealed(to, pages[0]));
        /* go on from what was moved: the last token fed is the answer's 18th */
        struct engine_step *step = engine_step_begin(to);
        struct kern_sampling sampling = {.seed = there.seed,
                                         .prompt = there.prompt,
                                         .prompt_count = 100,
                                         .generated = there.answer};
        engine_sampling_set(&there.params, &sampling);
        here = there;
        here.logits = calloc(vocab, sizeof(float));
        struct engine_seq_input input = {.slot = slot_take(to),
                                         .tokens = &there.answer[18],
                                         .row_count = 1,
                                         .prev_sample = ENGINE_NONE,
                                         .position_begin = 118,
                                         .pages = pages,
                                         .page_count = 4,
                                         .sampling = &sampling,
                                         .generated_count = 19,
                                         .logits_out = here.logits};
        uint32_t index;
        CHECK_INT(engine_step_add(step, &input, &index), STATUS_OK);
        CHECK_INT(engine_submit(step), STATUS_OK);
        harness_step_wait(to);
        CHECK_INT(engine_step_result(step, index)->token, there.answer[19]);
        CHECK(memcmp(here.logits, there.logits + 118 * vocab, vocab * sizeof(float)) == 0);
        free(here.logits);
        free(host);
        job_finish(&there);
        engine_destroy(from);
        engine_destroy(to);
    }
    model_close(model);
}

/* A token whose embedding overflows the norm: its request fails, in that step and later ones; the others' bits stay. */
static void nonfinite_check(enum kern_kv_type kv_type)
{
    const char *path = getenv("BATON_ENGINE_MODEL_F32");
    CHECK(path);
    FILE *file = fopen(path, "rb");
    CHECK(file);
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    uint8_t *data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    rewind(file);
    CHECK(fread(data, 1, bytes, file) == bytes);
    fclose(file);
    struct model_file *model;
    struct err err = ERR_INIT;
    CHECK_MSG(model_open_memory(data, bytes, "patched", &model, &err) == STATUS_OK, "%s",
              err.message);
    float huge = 3e30f;
    uint32_t poison_token = 77;
    CHECK_INT(model->token_embd->type, TENSOR_F32);
    size_t at = model->token_embd->offset + poison_token * model->token_embd->row_bytes;
    for (uint32_t i = 0; i < model->config.hidden; i++)
        memcpy(data + at + i * sizeof huge, &huge, sizeof huge);
    struct engine_options options = options_make();
    options.samples_max = 512;
    options.compute = KERN_COMPUTE_F32;
    options.kv_type = kv_type;
    struct engine *engine = harness_engine(model, options);
    static struct job alone[3], mixed[3];
    struct run_options run = {.chunk = 16};
    for (uint32_t j = 0; j < 3; j++) {
        job_init(&alone[j], j + 4, 40 + j, 8, model->config.vocab);
        mixed[j] = alone[j];
        for (uint32_t i = 0; i < 42; i++) /* nobody else uses the token */
            if (mixed[j].prompt[i] == poison_token)
                mixed[j].prompt[i] = alone[j].prompt[i] = 78;
    }
    alone[0].params.logit_bias = alone[2].params.logit_bias = NULL;
    for (uint32_t j = 0; j < 3; j += 2)
        jobs_run(engine, &alone[j], 1, &run, 4 * j);
    mixed[1].prompt[3] = poison_token; /* in the first chunk, long before it is sampled */
    jobs_run(engine, mixed, 3, &run, 20);
    CHECK(!mixed[1].finite);
    CHECK(alone[0].finite && alone[2].finite && mixed[0].finite && mixed[2].finite);
    for (uint32_t j = 0; j < 3; j += 2)
        job_compare(&alone[j], &mixed[j], model->config.vocab, false, "beside a failing request");
    for (uint32_t j = 0; j < 3; j++) {
        job_finish(&mixed[j]);
        job_finish(&alone[j]);
    }
    engine_destroy(engine);
    model_close(model);
    free(data);
}

TEST(engine, nonfinite_fails_alone)
{
    for (int type = 0; type < KERN_KV_TYPE_COUNT; type++)
        nonfinite_check((enum kern_kv_type)type);
}

TEST(engine, options_are_refused_by_name)
{
    struct model_file *model = harness_model();
    static const struct {
        const char *name;
        const char *backend, *isa;
        uint32_t page_tokens, kv_pages, layer_run, context, rows;
    } cases[] = {
        {"page_tokens", NULL, NULL, 24, 8, 0, 0, 0},
        {"page_tokens", NULL, NULL, 256, 8, 0, 0, 0},
        {"kv_pages", NULL, NULL, 32, 0, 0, 0, 0},
        {"layer_run", NULL, NULL, 32, 8, 6, 0, 0},
        {"context_tokens", NULL, NULL, 32, 8, 0, 1025, 0},
        {"rows_max", NULL, NULL, 32, 8, 0, 0, 70000},
        {"backend", "gpu", NULL, 32, 8, 0, 0, 0},
        {"cuda", "cuda", NULL, 32, 8, 0, 0, 0},
        {"isa", NULL, "sse9", 32, 8, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine_options options = {.backend = cases[i].backend,
                                         .isa = cases[i].isa,
                                         .page_tokens = cases[i].page_tokens,
                                         .kv_pages = cases[i].kv_pages,
                                         .layer_run = cases[i].layer_run,
                                         .context_tokens = cases[i].context,
                                         .rows_max = cases[i].rows};
        struct engine *engine = NULL;
        struct err err = ERR_INIT;
        CHECK_INT(engine_create(&options, model, &engine, &err), STATUS_CONFIG);
        CHECK(engine == NULL);
        CHECK_MSG(strstr(err.message, cases[i].name), "\"%s\" does not name %s", err.message,
                  cases[i].name);
    }
    model_close(model);
}

TEST(engine, geometry_is_chosen)
{
    struct model_file *model = harness_model();
    struct engine_options options = options_make();
    options.page_tokens = 0;
    options.layer_run = 0;
    options.kv_pages = 0;
    options.kv_bytes = 4 << 20;
    struct engine *engine = harness_engine(model, options);
    const struct engine_info *info = engine_info(engine);
    CHECK_INT(info->page_tokens, 128); /* tiny heads: the largest page */
    CHECK_INT(info->layer_run, 1);
    CHECK_INT(info->run_count, 5);
    CHECK_INT(info->page_bytes, 5 * 2 * 2 * 2 * 32 * 128);
    CHECK_INT(info->page_count, (4 << 20) / info->page_bytes);
    CHECK_STR(info->arithmetic, "int8/kv-f16/layout-3/draw-3");
    uint64_t f16_bytes = info->page_bytes;
    engine_destroy(engine);
    options.kv_type = KERN_KV_INT8;
    engine = harness_engine(model, options);
    info = engine_info(engine);
    CHECK_INT(info->page_tokens, 128);
    CHECK_INT(info->page_bytes, 5 * 2 * 2 * (32 + 2) * 128);
    CHECK_INT(info->piece_bytes, 2 * 2 * (32 + 2) * 128);
    CHECK_INT(info->kv_bytes_per_token * 128, info->page_bytes);
    CHECK(info->page_bytes * 100 <= f16_bytes * 56); /* in the pool, and on the wire */
    CHECK_STR(info->arithmetic, "int8/kv-int8/layout-3/draw-3");
    engine_destroy(engine);
    model_close(model);
}
