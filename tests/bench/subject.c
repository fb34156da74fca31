/* See subject.h. The linker sends the calls of a step's first and last operation here (--wrap), so that the thread that computes
 * looks at its own processor time before and after all of them. */
#include "tests/bench/subject.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/cpu/device.h"
#include "tests/bench/bench.h"

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

struct engine_options subject_options(unsigned threads)
{
    return (struct engine_options){.threads = threads,
                                   .compute = KERN_COMPUTE_INT8,
                                   .kv_type = KERN_KV_F16,
                                   .page_tokens = SUBJECT_PAGE_TOKENS,
                                   .kv_pages = SUBJECT_SEQS_MAX * SUBJECT_SEQ_PAGES,
                                   .rows_max = SUBJECT_PROMPT,
                                   .seqs_max = SUBJECT_SEQS_MAX};
}

void subject_open(struct subject *subject, struct model_file *model, struct engine_options options)
{
    struct err err = ERR_INIT;
    if (engine_create(&options, model, &subject->engine, &err) != STATUS_OK)
        die(err.message);
    const struct engine_info *info = engine_info(subject->engine);
    subject->model = model;
    subject->bytes = (double)info->weight_bytes;
    for (uint32_t i = 0; i < info->seqs_max && i < SUBJECT_SEQS_MAX; i++)
        if (engine_slot_take(subject->engine, &subject->slots[i]) != STATUS_OK)
            die("no slot");
    for (uint32_t i = 0; i < SUBJECT_PROMPT; i++)
        subject->ids[i] = (i * 2654435761u >> 8) % info->vocab_size;
}

void subject_type_name(const struct subject *subject, char type[16])
{
    snprintf(type, 16, "%s",
             engine_info(subject->engine)->compute == KERN_COMPUTE_F32
                 ? "f32"
                 : tensor_type_name(subject->model->layers[0].ffn_up->type));
    for (char *c = type; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}

/* One layer of a page, over and over: values of about a unit's size, of int8 with scales of 1/127. Zeros would be kinder than what a
 * cache holds: int8's weights of zeros skip a step. */
static void noise_fill(const struct engine_info *info, uint8_t *data, size_t bytes)
{
    bool int8 = info->kv_type == KERN_KV_INT8;
    size_t half = (size_t)info->page_tokens * info->kv_heads *
                  (size_t)kern_kv_head_bytes(info->kv_type, info->head_dim),
           values = 2 * (half - (int8 ? info->page_tokens * info->kv_heads * sizeof(uint16_t) : 0));
    uint32_t noise = 1;
    for (size_t i = 0; i < bytes; i += 4) {
        noise = noise * 1664525u + 1013904223u;
        uint32_t sign = noise & 0x80008000u,
                 bits = sign | (0x3000u + (noise >> 20 & 0x7ff)) * 0x10001u;
        if (info->kv_type == KERN_KV_F32)
            bits = sign << 16 | 0x3e000000u | noise >> 8;
        else if (int8)
            bits = i % (2 * half) < values ? noise & 0x7f7f7f7fu : 0x3c003c00u;
        memcpy(data + i, &bits, sizeof bits);
    }
}

void subject_pages_fill(struct subject *subject)
{
    const struct engine_info *info = engine_info(subject->engine);
    for (uint32_t run = 0; run < info->run_count; run++) {
        size_t bytes = (size_t)engine_piece_bytes(subject->engine, run);
        uint8_t *data = malloc(bytes);
        if (!data)
            die("no memory");
        noise_fill(info, data, bytes);
        for (uint32_t page = 0; page < info->page_count; page++) {
            struct engine_copy copy = {
                .kind = ENGINE_COPY_IMPORT, .page = page, .run = run, .host = data};
            struct engine_event event;
            if (engine_copy_submit(subject->engine, &copy) != STATUS_OK)
                die("a copy was refused");
            do
                engine_wait(subject->engine, NS_PER_S);
            while (!engine_poll(subject->engine, &event) || event.kind != ENGINE_COPY_DONE);
        }
        free(data);
    }
}

/* --- the time of a step --- */

/* Of the last step: written by the thread that computes, read when the step is done. */
static struct {
    double begin, seconds;
} computed;

static void computed_begin(struct kern_stream *stream, const void *arguments)
{
    (void)stream, (void)arguments;
    computed.begin = bench_cpu_now();
}

static void computed_end(struct kern_stream *stream, const void *arguments)
{
    (void)stream, (void)arguments;
    computed.seconds = bench_cpu_now() - computed.begin;
}

void __real_cpu_op_step_begin(struct kern_stream *stream, struct kern_step *step);
void __wrap_cpu_op_step_begin(struct kern_stream *stream, struct kern_step *step);
void __wrap_cpu_op_step_begin(struct kern_stream *stream, struct kern_step *step)
{
    cpu_stream_push(stream, computed_begin, step, 0);
    __real_cpu_op_step_begin(stream, step);
}

void __real_cpu_op_step_end(struct kern_stream *stream, struct kern_step *step);
void __wrap_cpu_op_step_end(struct kern_stream *stream, struct kern_step *step);
void __wrap_cpu_op_step_end(struct kern_stream *stream, struct kern_step *step)
{
    __real_cpu_op_step_end(stream, step);
    cpu_stream_push(stream, computed_end, step, 0);
}

double subject_step(struct subject *subject, uint32_t seqs, uint32_t rows, uint32_t position)
{
    static struct sampling_params params;
    params = sampling_params_default();
    params.temperature = 0;
    static struct kern_sampling sampling;
    engine_sampling_set(&params, &sampling);
    struct engine_step *step = engine_step_begin(subject->engine);
    uint32_t page_count = engine_info(subject->engine)->page_count;
    uint32_t each = page_count / seqs;
    each = each < SUBJECT_LONG / SUBJECT_PAGE_TOKENS + 2 ? each
                                                         : SUBJECT_LONG / SUBJECT_PAGE_TOKENS + 2;
    for (uint32_t s = 0; s < seqs; s++) {
        for (uint32_t i = 0; i < each; i++)
            subject->pages[s][i] = s * each + i;
        struct engine_seq_input input = {.slot = subject->slots[s],
                                         .tokens = subject->ids,
                                         .row_count = rows,
                                         .prev_sample = ENGINE_NONE,
                                         .position_begin = position,
                                         .pages = subject->pages[s],
                                         .page_count = each,
                                         .sampling = &sampling};
        if (engine_step_add(step, &input, NULL) != STATUS_OK)
            die("a step does not fit");
    }
    if (engine_submit(step) != STATUS_OK)
        die("a step was refused");
    struct engine_event event;
    do
        engine_wait(subject->engine, NS_PER_S);
    while (!engine_poll(subject->engine, &event) || event.kind != ENGINE_STEP_DONE);
    if (engine_info(subject->engine)->threads == 1)
        return computed.seconds;
    uint64_t begin_ns, end_ns;
    engine_step_times(step, &begin_ns, &end_ns);
    return (double)(end_ns - begin_ns) * 1e-9;
}

double subject_step_typical(struct subject *subject, size_t steps, double seconds, uint32_t seqs,
                            uint32_t rows, uint32_t position)
{
    enum { STEPS_MAX = 4096 };
    static double each[STEPS_MAX];
    size_t count = 0;
    double start = bench_now();
    while (count < steps || (count < STEPS_MAX && bench_now() - start < seconds))
        each[count++] = subject_step(subject, seqs, rows, position);
    double median = bench_median(each, count);
    return engine_info(subject->engine)->threads == 1 ? median : each[0]; /* sorted */
}
