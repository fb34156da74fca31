/* The engine: a loaded model, its KV pool, and forward passes over ragged batches.
 *
 *     loop thread                                                     compute threads
 *     engine_step_begin ─▶ engine_step_add … ─▶ engine_submit ──────▶ layers 0..a   ─▶ RUN_DONE 0   (page checksums)
 *          (two steps may be in flight; the second may take as           layers a..b   ─▶ RUN_DONE 1
 *           input what the first one samples)                            head, sample  ─▶ STEP_DONE
 *     waker ◀──────────────────────────────────────────────────────────── after each of them
 *     engine_poll ─▶ RUN_DONE, …, STEP_DONE, COPY_DONE
 *
 * A step is a ragged batch: for each sequence some rows (a chunk of a prompt, or the one row of a decoding sequence) at
 * consecutive positions, with the sequence's block table. The last row of a sequence may be sampled. Every output is the
 * same bits whatever else is in the batch, however the prompt is cut into chunks, and with any number of threads.
 *
 * KV memory is `kv_pages` pages of `page_tokens` positions, [page][layer][K, V]. A *piece* is one page x one run of
 * `layer_run` layers: contiguous bytes, checksummed (XXH3-64) right after its layers, when the page became full in that
 * step or was named to be sealed. Who owns which page is the caller's business (sched/); the engine keeps the checksums.
 *
 * Cancel: engine_cancel sets a flag that the running pass looks at between layers. From the acknowledgement on, the
 * sequence's pages are touched by no step in flight, and may be freed.
 *
 * Owner: the loop thread calls everything here but for what says "any thread". Nothing allocates after engine_create. */
#ifndef BATON_ENGINE_ENGINE_H
#define BATON_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/backend.h"
#include "sched/sampling.h"

struct engine;
struct engine_step;
struct model_file; /* model/model.h */

/* --- creation --- */

struct engine_options {
    const char *
        backend; /* "cpu", "opaque" (the CPU behind unreadable buffers, for tests), "cuda"; NULL: cpu */
    const char *isa;           /* NULL or "auto"; "plain", "avx2", …: see kernels/backend.h */
    enum kern_compute compute; /* KERN_COMPUTE_F32 or KERN_COMPUTE_INT8 */
    enum kern_kv_type kv_type; /* KERN_KV_F32, KERN_KV_F16 or KERN_KV_INT8 */
    unsigned threads;          /* 0: as many as this process may run on, or as `cpus` names */
    const char *cpus; /* "0-3,8": compute threads keep to these processors; NULL or "": anywhere */
    bool numa;        /* memory lies near them */
    uint32_t
        page_tokens;   /* 16, 32, 64 or 128; 0: the smallest with pieces >= 128 KB in >= 4 runs */
    uint32_t kv_pages; /* pages in the pool, >= 1; or 0 and kv_bytes */
    uint64_t kv_bytes; /* used when kv_pages is 0 */
    uint32_t
        layer_run; /* layers in a piece; 0: pieces of about 256 KB, at least 4 runs where possible */
    uint32_t context_tokens; /* 0: the model's */
    uint32_t rows_max;       /* rows in a step, all sequences together; 0: 512 */
    uint32_t seqs_max;       /* sequences in a step; 0: 64 */
    uint32_t samples_max;    /* rows of a step that get logits; 0: seqs_max */
    uint32_t slots_max;      /* sequences known at the same time; 0: 4 x seqs_max */
    uint32_t copies_max;     /* engine_copy operations in flight; 0: 64 */
    bool poison_pages; /* tests: fill the pool with NaN at start and with engine_pages_poison */
    /* Progress of loading, called on the calling thread, may be NULL. `done` and `total` are bytes of weights. */
    void (*load_progress)(void *context, uint64_t done, uint64_t total);
    void *load_context;
};

/* Loads and repacks the weights of `model`, which stays open until engine_destroy (embedding rows are read from the file),
 * and starts the compute threads. Errors name the tensor or the option: STATUS_CONFIG for a bad option,
 * STATUS_FORMAT for a model that this engine cannot run, STATUS_MEMORY, STATUS_UNIMPLEMENTED, STATUS_DEVICE. */
enum status engine_create(const struct engine_options *options, const struct model_file *model,
                          struct engine **engine_out, struct err *err);
/* Waits for the steps in flight. NULL is fine. */
void engine_destroy(struct engine *engine);

struct engine_info {
    const char *backend; /* "cpu", … */
    char device[96];     /* "cpu avx2, 2 threads" */
    char arithmetic
        [64]; /* the arithmetic identity, "int8/kv-f16/layout-3": equal among the nodes of a cluster */
    enum kern_compute compute;
    enum kern_kv_type kv_type;
    uint32_t kv_layout_version;
    unsigned threads;
    uint32_t vocab_size, layers, hidden, heads, kv_heads, head_dim;
    uint32_t context_tokens;
    uint32_t page_tokens, page_count;
    uint32_t layer_run, run_count; /* the last run may have fewer layers */
    uint64_t page_bytes;           /* all layers of one page */
    uint64_t piece_bytes;          /* of a whole run; the last run's: engine_piece_bytes */
    uint64_t kv_bytes_per_token;
    uint64_t weight_bytes; /* as held in memory */
    uint32_t rows_max, seqs_max, samples_max, slots_max, copies_max;
};
const struct engine_info *engine_info(const struct engine *engine); /* any thread */
uint64_t engine_piece_bytes(const struct engine *engine, uint32_t run);
uint32_t engine_run_layers(const struct engine *engine, uint32_t run);

/* --- slots: one for each sequence that takes part in steps --- */

/* STATUS_FULL when all are taken. A new slot is not cancelled. */
enum status engine_slot_take(struct engine *engine, uint32_t *slot_out);
/* Gives the slot back. It may still be in a step in flight; it is taken again only after that step. */
void engine_slot_release(struct engine *engine, uint32_t slot);
/* Any step in flight leaves the sequence out from the next layer on; so does every later step. */
void engine_cancel(struct engine *engine, uint32_t slot);
/* True once no step in flight can touch the sequence's pages: the running layer has ended, or no step holds the slot.
 * The waker is called when it becomes true. */
bool engine_cancel_acked(const struct engine *engine, uint32_t slot);
/* True once a row of the slot's sequence met a value that is not finite: its samples have finite = false from then on, and
 * its pages are not to be shared. Looked at from STEP_DONE on. */
bool engine_slot_failed(const struct engine *engine, uint32_t slot);
/* The most layers that began between an engine_cancel and its acknowledgement; never above 1. Any thread. */
uint32_t engine_cancel_layers_max(const struct engine *engine);

/* --- steps --- */

/* How an answer is sampled, in the form that steps refer to, from `params` (checked by sampling_params_check; its bias is referred to).
 * What params do not say is left to the caller: the effective seed, which of n, and the history for penalties. */
void engine_sampling_set(const struct sampling_params *params, struct kern_sampling *sampling_out);

enum { ENGINE_NONE = UINT32_MAX };

struct engine_seq_input {
    uint32_t slot;
    const uint32_t *tokens; /* [row_count], copied; NULL when prev_sample is set */
    uint32_t row_count;
    uint32_t
        prev_sample; /* ENGINE_NONE; or: the one row's token is what this sample of the step submitted last gives */
    uint32_t position_begin;
    /* The sequence's block table [page_count]: covers position_begin + row_count, and so far stays unchanged until STEP_DONE. An entry is
     * checked when its slot is seen with it for the first time, and when a row is written there. */
    const uint32_t *pages;
    uint32_t page_count;
    bool seal_partial; /* checksum also the last page when this step leaves it partly filled */
    /* NULL: no logits for this sequence. Else the last row is sampled; it stays unchanged (of `generated`, as far as the count given here
     * reaches) until STEP_DONE. The token sampled here has position generated_count in the answer, or generated_count + 1 when the
     * row's input is a token of the previous step that is still unknown (prev_sample). */
    const struct kern_sampling *sampling;
    uint32_t generated_count;
    float *
        logits_out; /* NULL; or [row_count][vocab_size], the raw logits of every row; each row counts as a sample */
};

/* An empty step, or NULL while two are in flight. Results of the step that used the same memory are gone. */
struct engine_step *engine_step_begin(struct engine *engine);
/* Adds a sequence. `sample_out` (may be NULL) gets the index of its sample, ENGINE_NONE when there is none.
 * STATUS_FULL: no room for it, its rows or its samples: submit, and add it to the next step.
 * STATUS_INVALID: a token, position, page or slot out of range (our own caller's fault; nothing was added). */
enum status engine_step_add(struct engine_step *step, const struct engine_seq_input *input,
                            uint32_t *sample_out);
/* The one row of a sequence that decodes; its token is sampled. */
struct engine_row {
    const uint32_t *pages;                /* as in engine_seq_input */
    const struct kern_sampling *sampling; /* as there, not NULL */
    uint32_t slot;
    uint32_t token; /* an id, or ENGINE_TOKEN_PREV of a sample of the step submitted last */
    uint32_t position;
    uint32_t page_count;
    uint32_t generated_count; /* as there */
    /* The first row that this slot has in the page, or the first since anybody else (a copy) may have given the page a checksum. What
     * only goes on in the page of the row before is not looked up again: block tables lie far apart. */
    bool opens;
};
#define ENGINE_TOKEN_PREV(sample) (KERN_TOKEN_PREV | (sample))
/* Adds up to `count` of them in order, as engine_step_add would one after the other. `added_out` is how many were: all, or those before
 * the first one for which it says STATUS_FULL or STATUS_INVALID. Their samples follow one another from *sample_out on. */
enum status engine_step_add_rows(struct engine_step *step, const struct engine_row *rows,
                                 uint32_t count, uint32_t *added_out, uint32_t *sample_out);
uint32_t engine_step_rows(const struct engine_step *step);
/* Hands the step to the compute threads and returns at once. A step without rows is refused: STATUS_INVALID. */
enum status engine_submit(struct engine_step *step);
/* Gives back a step that was begun and will not be submitted. The pages that it was to write have lost their checksums. */
void engine_step_abandon(struct engine_step *step);
void engine_step_cookie_set(struct engine_step *step, void *cookie);
void *engine_step_cookie(const struct engine_step *step);
/* From STEP_DONE until the step's memory is used again (two engine_step_begin later). */
const struct kern_sample_out *engine_step_result(const struct engine_step *step, uint32_t sample);
/* CLOCK_MONOTONIC of the first and the last operation on the compute thread; valid at STEP_DONE. */
void engine_step_times(const struct engine_step *step, uint64_t *begin_ns_out,
                       uint64_t *end_ns_out);
/* The pages that this step seals, in the order in which sequences were added; each RUN_DONE makes one more piece of each
 * of them final. Pages of cancelled sequences are listed but get no checksum. */
const uint32_t *engine_step_sealed(const struct engine_step *step, uint32_t *count_out);

/* --- completion --- */

/* `wake` is called from compute threads whenever engine_poll may have something; it must only wake the loop. Set before
 * the first submit. */
void engine_set_waker(struct engine *engine, void (*wake)(void *context), void *context);

enum engine_event_kind { ENGINE_RUN_DONE, ENGINE_STEP_DONE, ENGINE_COPY_DONE };

struct engine_copy;
struct engine_event {
    enum engine_event_kind kind;
    struct engine_step *step; /* RUN_DONE, STEP_DONE */
    uint32_t run; /* RUN_DONE: this run of layers is computed and its pieces are checksummed */
    struct engine_copy *copy; /* COPY_DONE: the struct is the caller's again */
};
/* The next event, or false. A step's events come in order: RUN_DONE 0, 1, …, STEP_DONE. */
bool engine_poll(struct engine *engine, struct engine_event *event_out);
/* For tests and tools without a loop: sleeps until engine_poll has something or `timeout_ns` passed. */
bool engine_wait(struct engine *engine, uint64_t timeout_ns);

/* --- progress, for health --- */
struct engine_progress {
    uint64_t layers_finished;  /* since creation */
    uint64_t longest_layer_ns; /* seen so far */
    uint64_t busy_since_ns; /* when the oldest unfinished step was submitted; 0: none in flight */
    uint64_t last_layer_ns; /* when a layer last finished; 0: never */
};
void engine_progress(const struct engine *engine,
                     struct engine_progress *progress_out); /* any thread */

/* --- KV pages --- */

/* Zeroes pages (and forgets their checksums) before steps that are submitted later. For pages that will be computed into;
 * not for pages that receive pieces: those are overwritten whole, and the zeroing would come in between. */
void engine_pages_zero(struct engine *engine, const uint32_t *pages, uint32_t count);
/* The pages are to be given back: takes back what zeroing no step has been submitted with. True when none is under way either.
 * False: it would still come over bytes that somebody else receives into them; ask again after the next RUN_DONE. */
bool engine_pages_release(struct engine *engine, const uint32_t *pages, uint32_t count);
/* Forgets the checksums of pages, as zeroing does, without touching their bytes, also where zeroing was still to come. */
void engine_pages_unseal(struct engine *engine, const uint32_t *pages, uint32_t count);
/* Soon one of these calls will name the page: what is known of it is fetched from far memory meanwhile. */
void engine_page_ahead(const struct engine *engine, uint32_t page);
/* Tests: fills with NaN, in stream order. Only with poison_pages. */
void engine_pages_poison(struct engine *engine, const uint32_t *pages, uint32_t count);
/* The checksum of a piece: false when it has none (yet). */
bool engine_piece_sum(const struct engine *engine, uint32_t page, uint32_t run, uint64_t *sum_out);
/* All pieces of the page have their checksums. */
bool engine_page_sealed(const struct engine *engine, uint32_t page);
/* The piece's bytes in host memory [engine_piece_bytes], or NULL when the backend's memory is not the host's: then use
 * export and import. A transfer may write there only into pages that it owns. */
void *engine_piece_host(struct engine *engine, uint32_t page, uint32_t run);

enum engine_copy_kind {
    ENGINE_COPY_VERIFY, /* hash the piece where it lies */
    ENGINE_COPY_EXPORT, /* piece -> host, and hash what was read */
    ENGINE_COPY_IMPORT, /* host -> piece, and hash what was written */
};

/* An operation on the copy stream, beside the steps. The struct, and `host`, belong to the engine from engine_copy_submit
 * until its COPY_DONE, which comes exactly once. */
struct engine_copy {
    enum engine_copy_kind kind;
    uint32_t page, run;
    void *host; /* EXPORT, IMPORT: [engine_piece_bytes] */
    bool
        expect; /* compare the hash with `expected`; when equal it is stored as the piece's checksum (VERIFY, IMPORT) */
    uint64_t expected;
    void *cookie;       /* the caller's */
    uint64_t sum;       /* result */
    enum status status; /* result: STATUS_OK, STATUS_CHECKSUM */
};
/* STATUS_FULL while copies_max are in flight. */
enum status engine_copy_submit(struct engine *engine, struct engine_copy *copy);

#endif
