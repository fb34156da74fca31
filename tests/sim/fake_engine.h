/* An engine that takes virtual time and computes nothing but evidence: in place of engine/ in the simulation.
 *
 * KV of a position in a layer is a hash of the KV before it, *as the sequence's pages hold it*, and of the token:
 *
 *     kv(p, layer) = mix(kv(p - 1, layer), token[p], layer)          [page][layer][position], 8 bytes each
 *
 * and a token is a hash of everything that the pages hold up to its row, of what lies behind that in the last page when it is
 * not zero, and of seed, index and position in the answer. So a wrong page, a stale byte, a missing zero, a page given to
 * somebody else too early: each gives another token than engine_answer, which is a pure function of prompt and seed.
 *
 * A layer writes at the end of its time, for the sequences that were not cancelled when it began. What may be read is kept by
 * position and page: reading what was neither computed here nor verified ends the test.
 *
 * Two streams, as the real one has: steps in order, layer by layer; copies beside them. Nothing happens by itself: the owner
 * asks when the next thing is due and lets time pass. */
#ifndef BATON_TESTS_SIM_FAKE_ENGINE_H
#define BATON_TESTS_SIM_FAKE_ENGINE_H

#include "engine/engine.h"

enum { FAKE_VOCAB = 64 };

struct fake_options {
    uint32_t layers, layer_run, page_tokens, page_count, context_tokens;
    uint32_t rows_max, seqs_max, slots_max, copies_max;
    bool mirrored; /* pages cannot be read by the host: engine_piece_host is NULL */
    uint64_t layer_ns, row_ns, copy_ns;
};

struct engine *fake_engine_create(const struct fake_options *options);
/* When something ends next; DEADLINE_NONE: nothing runs. */
uint64_t fake_engine_next_ns(const struct engine *engine);
/* Everything that ends until now. */
void fake_engine_pass(struct engine *engine, uint64_t now_ns);
/* The same for the two streams apart. */
uint64_t fake_engine_next_step_ns(const struct engine *engine);
uint64_t fake_engine_next_copy_ns(const struct engine *engine);
/* The next thing that would end, now. False: nothing runs. `copies`: of copies, else of steps. */
bool fake_engine_one(struct engine *engine, bool copies);
/* From the next layer on, each takes so long before its rows are counted. */
void fake_engine_speed(struct engine *engine, uint64_t layer_ns);
/* The process stood still for so long. */
void fake_engine_shift(struct engine *engine, uint64_t by_ns);
/* Flips one bit of a page that holds checksummed bytes. False: the piece has no checksum. */
bool fake_engine_flip(struct engine *engine, uint32_t page, uint32_t run, uint32_t bit);
/* No step, no copy, no slot. */
bool fake_engine_idle(const struct engine *engine);
/* Everything that decides what it does next. Of a page's bytes count those that are known; of one that is computed into, all but what
 * is to be zeroed. */
enum fake_page_use { FAKE_PAGE_FREE, FAKE_PAGE_RECEIVES, FAKE_PAGE_COMPUTES };
struct print;
void fake_engine_print(const struct engine *engine,
                       enum fake_page_use (*use)(const void *context, uint32_t page),
                       const void *context, struct print *print);

/* The answer that is right: tokens[0, count). */
void fake_answer(uint32_t layers, const uint32_t *prompt, uint32_t prompt_count, uint64_t seed,
                 uint32_t n_index, uint32_t count, uint32_t *tokens_out);

/* What a failed check of the simulation calls, anywhere in it. */
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
