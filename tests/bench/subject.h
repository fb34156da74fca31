/* An engine with a model, for benchmarks that time whole steps of it: rows of made-up tokens at any position of as many sequences.
 *
 *     struct subject subject;
 *     subject_open(&subject, model, options);
 *     seconds = subject_step_typical(&subject, 5, 2.0, 1, 512, 0);   a prompt of 512 tokens
 *     seconds = subject_step_typical(&subject, 5, 2.0, 16, 1, 8000);   one token of each of 16 sequences, 8,000 tokens deep
 *     engine_destroy(subject.engine);
 *
 * Anything that goes wrong ends the program. Owner: the program's main thread. */
#ifndef BATON_TESTS_BENCH_SUBJECT_H
#define BATON_TESTS_BENCH_SUBJECT_H

#include "engine/engine.h"
#include "model/model.h"

enum {
    SUBJECT_PROMPT = 512, /* rows of a step at most */
    SUBJECT_PAGE_TOKENS = 64,
    SUBJECT_SEQS_MAX = 32,
    SUBJECT_SEQ_PAGES = 10, /* a prompt's, and some */
    SUBJECT_LONG = 8000,    /* positions before a step at most */
};

struct subject {
    struct model_file *model;
    struct engine *engine;
    double bytes; /* of weights that one pass reads */
    uint32_t slots[SUBJECT_SEQS_MAX];
    uint32_t ids[SUBJECT_PROMPT];
    uint32_t pages[SUBJECT_SEQS_MAX][SUBJECT_LONG / SUBJECT_PAGE_TOKENS + 2]; /* block tables */
};

/* int8 on f16 KV: room for prompts of SUBJECT_PROMPT and SUBJECT_SEQS_MAX sequences. */
struct engine_options subject_options(unsigned threads);

void subject_open(struct subject *subject, struct model_file *model, struct engine_options options);

/* "q4_1": the type of the weights, or of the arithmetic where they are widened ("f32"); a part of ids. */
void subject_type_name(const struct subject *subject, char type[16]);

/* Writes noise to every page: memory that was never written is one page of zeros to the machine, and stays in its caches. */
void subject_pages_fill(struct subject *subject);

/* One step with `rows` rows at `position` of each of `seqs` sequences; its seconds, first to last operation: with one thread that
 * thread's processor time, so that they do not depend on who else wants the core (what the loop's thread does meanwhile is not the
 * step's, and what it does between two steps is in bench_sched); with more by the engine's clock. */
double subject_step(struct subject *subject, uint32_t seqs, uint32_t rows, uint32_t position);

/* Of the steps of `seconds` seconds, `steps` at least. One thread: the median, since a hypervisor's corrections make single ones too
 * short or too long. More: the best. */
double subject_step_typical(struct subject *subject, size_t steps, double seconds, uint32_t seqs,
                            uint32_t rows, uint32_t position);

#endif
