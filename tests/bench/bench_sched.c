/* What a step costs beside computing, with 1,024 sequences that decode: everything that the loop thread does from the end of one step
 * to the beginning of the next.
 *
 *     bench_sched [--json FILE] TINY [MODEL]
 *
 * sched1024       policy alone, as a node calls it: page accounting for each sequence (one in page_tokens of them takes a page,
 *                 cached ones being evicted), publication of the pages that became full, the batch's plan, and churn: in each step
 *                 two answers of 512 tokens end, and two prompts of 512 tokens are looked up, admitted and published, of which
 *                 every fourth begins like an earlier one
 * sched1024_node  a node's own step loop with a real engine behind it (a tiny model), from taking a step's tokens to handing the next
 *                 one over; its parts, each in a line of its own, are
 *     _done       the step that has ended: rows and tokens of each sequence, its end, full pages published (an evicted page's
 *                 entry goes, a hash is made); no router is there, so no message is built
 *     _batch      what computes next: who could, in order; page accounting (who needs a page takes it, cached ones are evicted); block
 *                 tables, rows and sampling parameters where the engine reads them; the plan for prompts. Beside the bound
 * Not part of it, and shown apart: sched1024_submit, the engine's own handing over to its threads; sched1024_send, a message to the
 * router with one token of each sequence, built and packed as outbox_flush does, without gRPC.
 *
 * Times are the median step's, by the thread's processor time in short runs of steps, so that a figure does not depend on who else
 * wants the core. Owner: the main thread. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/huge.h"
#include "decode_node/decode.h"
#include "kvtransfer/memory.h"
#include "node/node.h"
#include "prefill_node/prefill.h"
#include "sched/prefix.h"
#include "tests/bench/bench.h"
#include "tests/bench/between.h"
#include "tests/bench/sending.h"

enum {
    SEQUENCES = 1024,
    FEW = 32,
    PAGE_TOKENS = 16,
    PROMPT = 512,
    PROMPT_PAGES = PROMPT / PAGE_TOKENS,
    ANSWER = 512,
    WHOLE_PAGES = (PROMPT + ANSWER + PAGE_TOKENS - 1) / PAGE_TOKENS,
    CHURN = SEQUENCES / ANSWER, /* answers that end in a step */
    POOL = SEQUENCES * WHOLE_PAGES + 2000,
    STEPS = 300,
    NODE_STEPS = 200, /* of 400 at most, as only those count that end and begin one by one */
    WARM_STEPS = 40,
    TOLD = 1024,
};
static const double limit_us = 50;

static void die(const char *what)
{
    fprintf(stderr, "bench_sched: %s\n", what);
    exit(1);
}

static double thread_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static uint64_t state = 42;
static uint32_t random_u32(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* --- policy alone --- */

struct sequence { /* what a node has in two lines of the processor's cache (node/work.h) */
    _Alignas(64) uint64_t age;
    uint32_t total, rows; /* known; computed */
    uint32_t page_count;
    uint32_t *pages, *ids; /* [WHOLE_PAGES], [PROMPT + ANSWER] */
    struct prefix_cursor cursor;
};

struct policy {
    struct pool pool;
    struct prefix prefix;
    struct batch_state batch;
    struct batch_pace pace;
    struct sequence sequences[SEQUENCES];
    uint32_t pages[SEQUENCES][WHOLE_PAGES], ids[SEQUENCES][PROMPT + ANSWER];
    uint32_t order[SEQUENCES]; /* by age */
    struct batch_share shares[SEQUENCES];
    uint64_t age;
};

static const uint8_t salt[PREFIX_SALT_BYTES];
static uint64_t told_gone[TOLD], told_added[TOLD];

static void take(struct policy *p, struct sequence *s, uint32_t index, uint32_t count)
{
    uint32_t have = pool_count(&p->pool, POOL_FREE);
    if (have < count)
        prefix_evict(&p->prefix, count - have);
    if (pool_take(&p->pool, count, POOL_USED, index, s->pages + s->page_count))
        die("the pool is too small");
    s->page_count += count;
}

/* A new prompt; every fourth begins as one that was there before. Its rows count as computed. */
static void admit(struct policy *p, uint32_t index)
{
    struct sequence *s = &p->sequences[index];
    uint32_t shared = random_u32() % 4 ? 0 : 1 + random_u32() % (PROMPT - 1);
    for (uint32_t i = shared; i < PROMPT; i++)
        s->ids[i] = random_u32() % 50000;
    s->age = ++p->age;
    s->total = s->rows = PROMPT;
    s->page_count = prefix_lookup(&p->prefix, salt, s->ids, (PROMPT - 1) / PAGE_TOKENS, s->pages);
    for (uint32_t i = 0; i < s->page_count; i++)
        pool_pin(&p->pool, s->pages[i]);
    s->cursor = (struct prefix_cursor){0};
    take(p, s, index, preempt_pages_first(PROMPT, PAGE_TOKENS, WHOLE_PAGES, false) - s->page_count);
}

static void publish(struct policy *p, struct sequence *s, uint32_t index)
{
    if (s->rows / PAGE_TOKENS > s->cursor.blocks)
        prefix_publish(&p->prefix, &s->cursor, index, salt, s->ids, s->pages,
                       s->rows / PAGE_TOKENS);
}

static void policy_step(struct policy *p)
{
    static const struct batch_limits limits = {.rows_max = 2048,
                                               .chunk_tokens = 512,
                                               .sequences_max = SEQUENCES,
                                               .page_tokens = PAGE_TOKENS};
    uint32_t kept = 0, gone[SEQUENCES], gone_count = 0, full[SEQUENCES], full_count = 0;
    for (uint32_t i = 0; i < SEQUENCES; i++) { /* the step before has ended */
        uint32_t index = p->order[i];
        struct sequence *s = &p->sequences[index];
        s->rows = s->total++;
        if (s->rows / PAGE_TOKENS > s->cursor.blocks)
            full[full_count++] = index;
        if (s->total < PROMPT + ANSWER)
            p->order[kept++] = index;
        else
            gone[gone_count++] = index;
    }
    for (uint32_t i = 0; i < full_count; i++) {
        struct sequence *s = &p->sequences[full[i]];
        prefix_publish_touch(&p->prefix, &s->cursor, s->ids, s->pages);
    }
    for (uint32_t i = 0; i < full_count; i++) {
        struct sequence *s = &p->sequences[full[i]];
        prefix_publish_seek(&p->prefix, &s->cursor, salt, s->ids);
    }
    for (uint32_t i = 0; i < full_count; i++)
        publish(p, &p->sequences[full[i]], full[i]);
    for (uint32_t i = 0; i < gone_count; i++) {
        struct sequence *s = &p->sequences[gone[i]];
        pool_free(&p->pool, gone[i], s->pages, s->page_count);
        admit(p, gone[i]);
        p->order[kept++] = gone[i];
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        struct sequence *s = &p->sequences[p->order[i]];
        if (s->total > s->page_count * PAGE_TOKENS)
            take(p, s, p->order[i], 1);
        p->shares[i] = (struct batch_share){.index = p->order[i], .rows = 1};
    }
    uint32_t gone_hashes, added_hashes;
    bool reset;
    if (prefix_changes_count(&p->prefix) >= TOLD) /* as a node tells its router */
        prefix_changes_take(&p->prefix, TOLD, told_gone, &gone_hashes, told_added, &added_hashes,
                            &reset);
    if (batch_plan(&p->batch, &limits, NULL, 0, SEQUENCES, p->shares) != SEQUENCES)
        die("the plan left somebody out");
}

static void policy_run(struct bench *bench)
{
    struct policy *p = huge_alloc(1, sizeof *p); /* as a node keeps its tables */
    static double us[STEPS];
    uint8_t key[PREFIX_KEY_BYTES] = {1};
    if (!p || pool_init(&p->pool, POOL) || prefix_init(&p->prefix, &p->pool, PAGE_TOKENS, key))
        die("no memory");
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        p->order[i] = i;
        p->sequences[i].pages = p->pages[i];
        p->sequences[i].ids = p->ids[i];
        for (uint32_t k = PROMPT; k < PROMPT + ANSWER; k++)
            p->ids[i][k] = random_u32() % 50000;
        admit(p, i);
        /* answers in every stage, so that in each step some cross a page and some end */
        struct sequence *s = &p->sequences[i];
        s->total += i * ANSWER / SEQUENCES;
        s->rows = s->total - 1;
        while (s->total > s->page_count * PAGE_TOKENS)
            take(p, s, i, 1);
        publish(p, s, i);
    }
    for (int step = -WARM_STEPS; step < STEPS; step++) {
        double begin = thread_us();
        policy_step(p);
        if (step >= 0)
            us[step] = thread_us() - begin;
    }
    if (!prefix_consistent(&p->prefix))
        die("the index is not consistent");
    bench_add(bench, &(struct bench_record){.id = "sched1024",
                                            .value = median(us, STEPS),
                                            .unit = "us/step",
                                            BENCH_LIMIT("a step's bound, us", limit_us),
                                            .lower_is_better = true});
    prefix_finish(&p->prefix);
    pool_finish(&p->pool);
    huge_free(p);
}

/* --- a node --- */

static enum status memory_make(void *context, const struct xfer_handler *handler,
                               struct xfer **xfer_out, struct err *err)
{
    struct xfer_options options = {.peers_max = 4};
    return xfer_memory_create(context, &options, handler, xfer_out, err);
}

static void nothing(void *context)
{
    (void)context;
}

static void refused(void *context, const struct err *err)
{
    (void)context;
    die(err->message);
}

/* What a round spent on each part: cut at the calls from one to the next, of which the linker's --wrap tells. */
enum part { PART_DONE, PART_BATCH, PART_SUBMIT, PART_COUNT };
static const char *const part_names[PART_COUNT] = {"node_done", "node_batch", "submit"};
static double part_us[PART_COUNT], part_begin;
static uint32_t submitted, completed;

static void part_end(enum part part)
{
    double now = thread_us();
    part_us[part] += now - part_begin;
    part_begin = now;
}

void __real_step_complete(struct node *node);
void __real_step_submit(struct node *node);
enum status __real_engine_submit(struct engine_step *step);
void __wrap_step_complete(struct node *node);
void __wrap_step_submit(struct node *node);
enum status __wrap_engine_submit(struct engine_step *step);

void __wrap_step_complete(struct node *node)
{
    uint32_t in_flight = node->steps.in_flight;
    memset(part_us, 0, sizeof part_us);
    submitted = 0;
    part_begin = thread_us();
    __real_step_complete(node);
    part_end(PART_DONE);
    completed = in_flight - node->steps.in_flight;
}

void __wrap_step_submit(struct node *node)
{
    part_begin = thread_us();
    __real_step_submit(node);
    part_end(PART_BATCH);
}

enum status __wrap_engine_submit(struct engine_step *step)
{
    part_end(PART_BATCH);
    enum status status = __real_engine_submit(step);
    part_end(PART_SUBMIT);
    submitted++;
    return status;
}

/* One token of each sequence, as outbox.c keeps them, packed as it packs them. */
static void send_run(struct bench *bench)
{
    static double us[STEPS];
    static uint8_t packed[SEQUENCES * 128];
    static Baton__Node__V1__TokenRun runs[SEQUENCES], *run_pointers[SEQUENCES];
    static Baton__Node__V1__AttemptId ids[SEQUENCES];
    static Baton__Node__V1__Token tokens[SEQUENCES], *token_pointers[SEQUENCES];
    Baton__Node__V1__Tokens all = BATON__NODE__V1__TOKENS__INIT;
    Baton__Node__V1__NodeMessage message = BATON__NODE__V1__NODE_MESSAGE__INIT;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        baton__node__v1__token_run__init(&runs[i]);
        baton__node__v1__attempt_id__init(&ids[i]);
        baton__node__v1__token__init(&tokens[i]);
        ids[i].high = (uint64_t)random_u32() << 32 | random_u32();
        ids[i].low = (uint64_t)random_u32() << 32 | random_u32();
        tokens[i].id = random_u32() % 50000;
        token_pointers[i] = &tokens[i];
        runs[i].attempt = &ids[i];
        runs[i].tokens = &token_pointers[i];
        runs[i].n_tokens = 1;
        runs[i].position = i;
        run_pointers[i] = &runs[i];
    }
    all.runs = run_pointers;
    all.n_runs = SEQUENCES;
    message.kind_case = BATON__NODE__V1__NODE_MESSAGE__KIND_TOKENS;
    message.tokens = &all;
    for (int step = 0; step < STEPS; step++) {
        double begin = thread_us();
        if (baton__node__v1__node_message__get_packed_size(&message) > sizeof packed)
            die("the message is too long");
        baton__node__v1__node_message__pack(&message, packed);
        us[step] = thread_us() - begin;
    }
    bench_add(bench, &(struct bench_record){.id = "sched1024_send",
                                            .value = median(us, STEPS),
                                            .unit = "us/step",
                                            .lower_is_better = true});
}

/* The median step's; a bound where it is `bounded`. */
static void node_add(struct bench *bench, uint32_t sequences, const char *name, double *us,
                     uint32_t count, bool bounded)
{
    char id[64];
    snprintf(id, sizeof id, "sched%u_%s", sequences, name);
    bench_add(bench, &(struct bench_record){.id = id,
                                            .value = median(us, count),
                                            .unit = "us/step",
                                            .limit_name = bounded ? "a step's bound, us" : NULL,
                                            .limit = limit_us,
                                            .lower_is_better = true});
}

/* Returns what a node does for a step, handing it over included: us. */
static double node_run(struct bench *bench, const char *path, uint32_t sequences, uint32_t steps)
{
    static uint32_t ids[64];
    static double us[STEPS], parts_us[PART_COUNT][STEPS];
    struct err err = ERR_INIT;
    struct loop *loop;
    struct rpc *rpc;
    struct xfer_hub *hub;
    struct metrics *metrics;
    struct model_file *model;
    struct engine *engine;
    struct loop_waker waker;
    struct node *node;
    struct engine_options engine_options = {.threads = 1,
                                            .compute = KERN_COMPUTE_INT8,
                                            .kv_type = KERN_KV_F16,
                                            .page_tokens = PAGE_TOKENS,
                                            .kv_pages = sequences * 32,
                                            .rows_max = 2048,
                                            .seqs_max = sequences,
                                            .slots_max = sequences + 64};
    struct node_options options = {.router = {.host = "127.0.0.1", .port = 1},
                                   .role = NODE_ROLE_MIXED,
                                   .reserve = NODE_RESERVE_NEED,
                                   .prefix_cache = true,
                                   .chunk_tokens = 512,
                                   .steps_in_flight = 2,
                                   .kv_host = "127.0.0.1"};
    if (loop_create(&loop, &err) || rpc_create(loop, &rpc, &err) ||
        xfer_hub_create(1, 2, &hub, &err) || metrics_create(&metrics, &err) ||
        model_open(path, &model, &err) || engine_create(&engine_options, model, &engine, &err) ||
        loop_waker_init(loop, &waker, nothing, NULL, &err))
        die(err.message);
    struct node_parts parts = {.loop = loop,
                               .rpc = rpc,
                               .options = &options,
                               .model = model,
                               .engine = engine,
                               .engine_waker = &waker,
                               .metrics = metrics,
                               .prefill = &prefill_leg,
                               .decode = &decode_leg,
                               .transport = {memory_make, hub},
                               .name = "bench",
                               .grpc_address = "",
                               .http_address = "",
                               .refused = refused,
                               .left = nothing};
    if (node_create(&parts, &node, &err))
        die(err.message);
    for (uint32_t i = 0; i < sequences; i++) {
        Baton__Node__V1__AttemptId id = BATON__NODE__V1__ATTEMPT_ID__INIT;
        Baton__Node__V1__Sampling sampling = BATON__NODE__V1__SAMPLING__INIT;
        Baton__Node__V1__Assign assign = BATON__NODE__V1__ASSIGN__INIT;
        for (uint32_t k = 0; k < 64; k++)
            ids[k] = random_u32() % 200;
        id.low = i + 1;
        assign.number = i + 1;
        assign.attempt = &id;
        assign.request = i + 1;
        assign.age = i + 1;
        assign.leg = BATON__NODE__V1__LEG__LEG_LOCAL;
        assign.prompt = ids;
        assign.n_prompt = 16 + i % 48; /* so that pages are crossed in every step */
        assign.tokens_max = 400;
        assign.sampling = &sampling;
        node_assign(node, &assign);
    }
    uint32_t count = 0;
    for (uint32_t rounds = 0; count < steps; rounds++) {
        loop_round(loop, NS_PER_MS);
        uint32_t decoding = work_count(&node->table, SM_TO(WORK_DECODING));
        if (rounds > 100000 || (!decoding && count))
            die("the sequences do not decode");
        if (submitted != 1 || completed != 1 || decoding != sequences || rounds <= WARM_STEPS)
            continue;
        us[count] = 0;
        for (int i = 0; i < PART_COUNT; i++) {
            parts_us[i][count] = part_us[i];
            us[count] += i == PART_SUBMIT ? 0 : part_us[i];
        }
        count++;
    }
    node_add(bench, sequences, "node", us, count, sequences == SEQUENCES);
    for (int i = 0; i < PART_COUNT; i++)
        node_add(bench, sequences, part_names[i], parts_us[i], count,
                 sequences == SEQUENCES && i == PART_BATCH);
    double all_us = median(us, count) + median(parts_us[PART_SUBMIT], count);
    node_destroy(node);
    rpc_destroy(rpc);
    xfer_hub_destroy(hub);
    engine_destroy(engine);
    loop_waker_finish(&waker);
    metrics_destroy(metrics);
    model_close(model);
    loop_destroy(loop);
    return all_us;
}

int main(int argc, char **argv)
{
    struct bench bench;
    int given = bench_begin(&bench, &argc, argv);
    if (given != 1 && given != 2) {
        fprintf(stderr, "usage: bench_sched [--json FILE] TINY [MODEL]\n");
        return 2;
    }
    if (given == 2)
        sending_fork();
    policy_run(&bench);
    node_run(&bench, argv[1], SEQUENCES, NODE_STEPS);
    send_run(&bench);
    double scheduling_us = node_run(&bench, argv[given], FEW, given == 2 ? 60 : NODE_STEPS);
    if (given == 2) {
        sending_open(FEW);
        bench_between(&bench, argv[2], scheduling_us, 10);
        sending_close();
    }
    return bench_end(&bench);
}
