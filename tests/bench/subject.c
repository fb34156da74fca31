/* See subject.h. */
#include "tests/bench/subject.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "tests/bench/bench.h"

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
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

void subject_pages_touch(struct subject *subject)
{
    uint32_t count = engine_info(subject->engine)->page_count,
             *pages = calloc(count, sizeof *pages);
    if (!pages)
        die("no memory");
    for (uint32_t i = 0; i < count; i++)
        pages[i] = i;
    engine_pages_zero(subject->engine, pages, count);
    free(pages);
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
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
    double cpu = cpu_seconds();
    if (engine_submit(step) != STATUS_OK)
        die("a step was refused");
    struct engine_event event;
    do
        engine_wait(subject->engine, NS_PER_S);
    while (!engine_poll(subject->engine, &event) || event.kind != ENGINE_STEP_DONE);
    if (engine_info(subject->engine)->threads == 1)
        return cpu_seconds() - cpu;
    uint64_t begin_ns, end_ns;
    engine_step_times(step, &begin_ns, &end_ns);
    return (double)(end_ns - begin_ns) * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double subject_step_typical(struct subject *subject, double seconds, uint32_t seqs, uint32_t rows,
                            uint32_t position)
{
    enum { STEPS_MAX = 4096 };
    static double each[STEPS_MAX];
    size_t count = 0;
    subject_step(subject, seqs, rows, position); /* warms up */
    double start = bench_now();
    while (count < 5 || (count < STEPS_MAX && bench_now() - start < seconds))
        each[count++] = subject_step(subject, seqs, rows, position);
    qsort(each, count, sizeof *each, compare);
    return each[engine_info(subject->engine)->threads == 1 ? count / 2 : 0];
}
