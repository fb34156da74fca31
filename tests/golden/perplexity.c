/* Perplexity of a text in each type of KV cache; perplexity.py gives the reference's.
 *
 *     perplexity MODEL TEXT [f32|int8]…            both modes of arithmetic by default
 *
 * Owner: the main thread. */
#include <stdio.h>
#include <string.h>

#include "tests/golden/perplexity.h"

static void die(const char *what)
{
    fprintf(stderr, "perplexity: %s\n", what);
    exit(1);
}

static void measure(struct model_file *model, const struct token_list *ids, const char *compute)
{
    bool int8 = strcmp(compute, "int8") == 0;
    if (!int8 && strcmp(compute, "f32") != 0)
        die("the arithmetic is none of f32, int8");
    for (int type = 0; type < KERN_KV_TYPE_COUNT; type++) {
        struct engine_options options = perplexity_options(
            int8 ? KERN_COMPUTE_INT8 : KERN_COMPUTE_F32, (enum kern_kv_type)type);
        struct engine *engine;
        struct err err = ERR_INIT;
        if (engine_create(&options, model, &engine, &err) != STATUS_OK)
            die(err.message);
        size_t scored;
        double mean = perplexity_sum(engine, ids->ids, ids->count, &scored) / (double)scored;
        printf("compute %s, KV %s: %zu of %zu tokens scored, -ln p %.6f, perplexity %.4f\n",
               compute, kern_kv_type_name(options.kv_type), scored, ids->count, mean,
               mathf_exp_f64(mean));
        fflush(stdout);
        engine_destroy(engine);
    }
}

int main(int argc, char **argv)
{
    struct err err = ERR_INIT;
    struct model_file *model;
    struct token_list ids = TOKEN_LIST_INIT;
    if (argc < 3)
        die("MODEL TEXT [f32|int8]…");
    if (model_open(argv[1], &model, &err) != STATUS_OK)
        die(err.message);
    if (!perplexity_ids(model, argv[2], &ids))
        die("the text cannot be read");
    for (int i = 3; i < argc; i++)
        measure(model, &ids, argv[i]);
    if (argc == 3) {
        measure(model, &ids, "f32");
        measure(model, &ids, "int8");
    }
    token_list_finish(&ids);
    model_close(model);
    return 0;
}
