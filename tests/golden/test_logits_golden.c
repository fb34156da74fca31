/* The forward pass against the reference (README.md): logits and greedy tokens in float mode, divergence in int8 mode. Needs the
 * demo model. */
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "kernels/cpu/mathf.h"
#include "model/model.h"
#include "tests/golden/demo_model.h"
#include "tests/golden/golden_file.h"

enum { ROWS_MAX = 512, SAMPLES_MAX = 64 };

struct golden_engine {
    struct model_file *model;
    struct engine *engine;
    uint32_t vocab, slot, pages[32];
    float *logits; /* [SAMPLES_MAX][vocab] */
};

static struct golden_engine engine_open(enum kern_compute compute, enum kern_kv_type kv_type)
{
    struct golden_engine golden = {0};
    struct err err = ERR_INIT;
    const char *path = demo_model_path();
    CHECK_MSG(model_open(path, &golden.model, &err) == STATUS_OK, "%s", err.message);
    struct engine_options options = {.compute = compute,
                                     .kv_type = kv_type,
                                     .kv_pages = 32,
                                     .page_tokens = 32,
                                     .context_tokens = 1024,
                                     .rows_max = ROWS_MAX,
                                     .seqs_max = 1,
                                     .samples_max = SAMPLES_MAX};
    CHECK_MSG(engine_create(&options, golden.model, &golden.engine, &err) == STATUS_OK, "%s",
              err.message);
    golden.vocab = golden.model->config.vocab;
    for (uint32_t i = 0; i < 32; i++)
        golden.pages[i] = 31 - i;
    CHECK_INT(engine_slot_take(golden.engine, &golden.slot), STATUS_OK);
    golden.logits = malloc((size_t)SAMPLES_MAX * golden.vocab * sizeof(float));
    CHECK(golden.logits);
    return golden;
}

static void engine_close(struct golden_engine *golden)
{
    engine_destroy(golden->engine);
    model_close(golden->model);
    free(golden->logits);
}

static void rows_run(struct golden_engine *golden, const uint32_t *ids, uint32_t begin,
                     uint32_t end, float *logits)
{
    struct engine_step *step = engine_step_begin(golden->engine);
    struct engine_seq_input input = {.slot = golden->slot,
                                     .tokens = ids + begin,
                                     .row_count = end - begin,
                                     .prev_sample = ENGINE_NONE,
                                     .position_begin = begin,
                                     .pages = golden->pages,
                                     .page_count = 32,
                                     .logits_out = logits};
    CHECK_INT(engine_step_add(step, &input, NULL), STATUS_OK);
    CHECK_INT(engine_submit(step), STATUS_OK);
    struct engine_event event;
    for (;;) {
        if (!engine_poll(golden->engine, &event))
            CHECK(engine_wait(golden->engine, 120 * NS_PER_S));
        else if (event.kind == ENGINE_STEP_DONE)
            return;
    }
}

/* The logits after each of ids[count - last] … ids[count - 1]. */
static const float *logits_after(struct golden_engine *golden, const uint32_t *ids, uint32_t count,
                                 uint32_t last)
{
    CHECK(last <= SAMPLES_MAX && last <= count && count <= 1024);
    for (uint32_t begin = 0; begin < count - last; begin += ROWS_MAX)
        rows_run(golden, ids, begin,
                 begin + ROWS_MAX < count - last ? begin + ROWS_MAX : count - last, NULL);
    rows_run(golden, ids, count - last, count, golden->logits);
    return golden->logits;
}

static double log_sum_exp(const float *logits, uint32_t vocab)
{
    double max = -1e300, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (uint32_t i = 0; i < vocab; i++)
        if ((double)logits[i] - max > -600)
            sum += mathf_exp_f64((double)logits[i] - max);
    return max + mathf_log_f64(sum);
}

static double absolute(double x)
{
    return x < 0 ? -x : x;
}

static uint32_t best_of(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

TEST(golden, logits_in_float_mode)
{
    struct golden_engine engine = engine_open(KERN_COMPUTE_F32, KERN_KV_F32);
    struct golden file = golden_open("logits.bin", "BLOG0001");
    uint32_t entries = golden_u32(&file);
    double worst = 0, worst_sum = 0;
    for (uint32_t e = 0; e < entries; e++) {
        uint32_t count = golden_u32(&file);
        uint32_t *ids = golden_ids(&file, count);
        double expected_sum = (double)golden_f32(&file);
        uint32_t n = golden_u32(&file);
        uint32_t *tokens = golden_ids(&file, n);
        const float *logits = logits_after(&engine, ids, count, 1);
        for (uint32_t i = 0; i < n; i++) {
            double error = absolute((double)golden_f32(&file) - (double)logits[tokens[i]]);
            worst = error > worst ? error : worst;
        }
        double error = absolute(log_sum_exp(logits, engine.vocab) - expected_sum);
        worst_sum = error > worst_sum ? error : worst_sum;
        free(ids);
        free(tokens);
    }
    golden_finish(&file);
    fprintf(stderr, "# %u positions: greatest logit error %.2e, of log-sum-exp %.2e\n", entries,
            worst, worst_sum);
    CHECK(entries >= 20);
    CHECK_MSG(worst <= 2e-3, "greatest logit error %g is above 2e-3", worst);
    CHECK_MSG(worst_sum <= 2e-3, "greatest log-sum-exp error %g is above 2e-3", worst_sum);
    engine_close(&engine);
}

TEST(golden, greedy_tokens_in_float_mode)
{
    struct golden_engine engine = engine_open(KERN_COMPUTE_F32, KERN_KV_F32);
    struct golden file = golden_open("greedy.bin", "BGRD0001");
    uint32_t prompts = golden_u32(&file), n = golden_u32(&file), close_calls = 0, wrong = 0;
    for (uint32_t p = 0; p < prompts; p++) {
        uint32_t count = golden_u32(&file);
        uint32_t *prompt = golden_ids(&file, count), *greedy = golden_ids(&file, n);
        uint32_t *ids = malloc((count + n) * sizeof *ids);
        CHECK(ids && n <= SAMPLES_MAX);
        memcpy(ids, prompt, count * sizeof *ids);
        memcpy(ids + count, greedy, n * sizeof *ids);
        const float *logits = logits_after(&engine, ids, count + n - 1, n);
        for (uint32_t i = 0; i < n; i++) {
            float margin = golden_f32(&file);
            if (best_of(logits + (size_t)i * engine.vocab, engine.vocab) == greedy[i])
                continue;
            if (margin < 4e-3f)
                close_calls++;
            else
                wrong++;
        }
        free(ids);
        free(prompt);
        free(greedy);
    }
    golden_finish(&file);
    fprintf(stderr,
            "# %u prompts x %u tokens: %u differ where the margin is below 4e-3, %u elsewhere\n",
            prompts, n, close_calls, wrong);
    CHECK_INT(prompts * n, 3200);
    CHECK_INT(wrong, 0);
    engine_close(&engine);
}

/* A number of divergence.json, over all scripts. */
static double divergence_number(const char *key)
{
    char path[4096], text[65536], quoted[64];
    snprintf(path, sizeof path, "%s/divergence.json", GOLDEN_FOLDER);
    FILE *file = fopen(path, "r");
    CHECK_MSG(file, "%s cannot be opened", path);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *all = strstr(text, "\"all\""), *at = all ? strstr(all, quoted) : NULL;
    CHECK_MSG(at && strchr(at, ':'), "divergence.json has no %s", key);
    return strtod(strchr(at, ':') + 1, NULL);
}

TEST(golden, divergence_in_int8_mode)
{
    struct golden_engine engine = engine_open(KERN_COMPUTE_INT8, KERN_KV_F16);
    struct golden file = golden_open("top64.bin", "BTOP0001");
    uint32_t sequences = golden_u32(&file), k = golden_u32(&file), positions = 0, same = 0;
    double kl_sum = 0;
    for (uint32_t s = 0; s < sequences; s++) {
        (void)golden_bytes(&file, golden_u32(&file)); /* the script's name */
        uint32_t count = golden_u32(&file);
        uint32_t *ids = golden_ids(&file, count);
        uint32_t first = golden_u32(&file), n = golden_u32(&file);
        CHECK(first + n <= count && n <= SAMPLES_MAX);
        const float *logits = logits_after(&engine, ids, first + n, n);
        for (uint32_t i = 0; i < n; i++, positions++) {
            const float *row = logits + (size_t)i * engine.vocab;
            double norm = log_sum_exp(row, engine.vocab), kl = 0, q_rest = 1;
            uint32_t *tokens = golden_ids(&file, k);
            for (uint32_t j = 0; j < k; j++) {
                double p = (double)golden_f32(&file), q = (double)row[tokens[j]] - norm;
                kl += mathf_exp_f64(p) * (p - q);
                q_rest -= mathf_exp_f64(q);
            }
            double p_rest = (double)golden_f32(&file);
            p_rest = p_rest > 1e-12 ? p_rest : 1e-12;
            q_rest = q_rest > 1e-12 ? q_rest : 1e-12;
            kl += p_rest * (mathf_log_f64(p_rest) - mathf_log_f64(q_rest));
            kl_sum += kl;
            same += best_of(row, engine.vocab) == tokens[0];
            free(tokens);
        }
        free(ids);
    }
    golden_finish(&file);
    double kl = kl_sum / positions, top1 = (double)same / positions;
    double peer_kl = divergence_number("scored_kl64"), peer_top1 = divergence_number("scored_top1");
    fprintf(stderr, "# %u positions: KL %.6f (llama.cpp %.6f), top-1 %.4f (llama.cpp %.4f)\n",
            positions, kl, peer_kl, top1, peer_top1);
    CHECK(positions >= 1000);
    CHECK_MSG(kl <= 1.10 * peer_kl, "KL %g is above 1.10 x llama.cpp's %g", kl, peer_kl);
    CHECK_MSG(top1 >= peer_top1 - 0.005, "top-1 %g is below llama.cpp's %g by over 0.5 points",
              top1, peer_top1);
    engine_close(&engine);
}
