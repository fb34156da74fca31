/* What an int8 KV cache costs in perplexity, on the beginning of a committed text, against f16 in the same run. Needs the demo
 * model. README.md has the whole text's figures beside the reference's. */
#include "tests/golden/demo_model.h"
#include "tests/golden/perplexity.h"
#include "tests/test.h"

enum { TOKENS = 512, FIRST = 192 };

static double mean_of(const struct model_file *model, const struct token_list *ids,
                      enum kern_kv_type kv_type)
{
    struct engine_options options = perplexity_options(KERN_COMPUTE_F32, kv_type);
    struct engine *engine;
    struct err err = ERR_INIT;
    CHECK_MSG(engine_create(&options, model, &engine, &err) == STATUS_OK, "%s", err.message);
    double mean = perplexity_window(engine, ids->ids, TOKENS, FIRST) / (TOKENS - FIRST);
    engine_destroy(engine);
    return mean;
}

TEST(golden, perplexity_by_kv_type)
{
    struct model_file *model;
    struct err err = ERR_INIT;
    struct token_list ids = TOKEN_LIST_INIT;
    CHECK_MSG(model_open(demo_model_path(), &model, &err) == STATUS_OK, "%s", err.message);
    CHECK(perplexity_ids(model, GOLDEN_FOLDER "/blue_carbuncle.txt", &ids));
    CHECK_INT(ids.count, 10569); /* as the reference's tokenizer counts */
    double f16 = mean_of(model, &ids, KERN_KV_F16), int8 = mean_of(model, &ids, KERN_KV_INT8);
    fprintf(stderr, "# %d tokens: perplexity %.4f with f16 KV, %.4f with int8 (%+.3f %%)\n",
            TOKENS - FIRST, mathf_exp_f64(f16), mathf_exp_f64(int8),
            100 * (mathf_exp_f64(int8 - f16) - 1));
    CHECK(f16 > 1 && f16 < 5); /* it reads the text, and has not learnt it by heart */
    CHECK(int8 != f16);        /* the types are not one */
    CHECK_MSG(int8 - f16 < 0.005 && int8 - f16 > -0.005, "-ln p differs by %g a token", int8 - f16);
    token_list_finish(&ids);
    model_close(model);
}
