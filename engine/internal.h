/* The inside of the engine. Only engine/ includes this.
 *
 *     engine.c   creation, options, weights          step.c    slots, building and submitting steps, events
 *     forward.c  one step as backend operations      pages.c   checksums, zeroing, copies
 *     sampling.c how an answer is sampled             limits.c  what the machine allows (limits.h)
 *
 * Owner: the loop thread, but for what is atomic or under `mutex`. */
#ifndef BATON_ENGINE_INTERNAL_H
#define BATON_ENGINE_INTERNAL_H

#include <pthread.h>

#include "engine/engine.h"
#include "model/model.h"

enum { ENGINE_STEPS = 2, ENGINE_RUNS_MAX = 64 };

struct engine_layer {
    struct kern_buffer *attn_norm, *ffn_norm; /* [hidden] float */
    struct kern_weights *q, *k, *v, *output, *gate, *up, *down;
};

enum step_state { STEP_IDLE, STEP_OPEN, STEP_IN_FLIGHT };

struct engine_step {
    struct engine *engine;
    enum step_state state;
    struct kern_step *kern;
    void *cookie;
    struct kern_event *run_done[ENGINE_RUNS_MAX]; /* [run_count] */
    struct kern_event *done;
    uint32_t next_run; /* of the events still to be polled */
    uint64_t submitted_ns;
    uint32_t *fill_pages; /* [page_count] zeroed before this step */
    uint32_t fill_count;
    bool logits_only; /* it has a sample without sampling */
};

struct engine_slot {
    uint32_t in_flight;      /* steps that hold it */
    uint32_t blocks_checked; /* first entries of its block table that were seen to be pages */
    uint32_t block_open; /* 1 + the block that its last row added went to; 0: none, or released */
    bool taken, released;
};

/* What is known of a page, in one line of the processor's cache: each is looked at when nothing near it was lately. */
struct engine_page {
    uint64_t sealed_runs; /* bit r: sums[page][r] is valid */
    uint64_t fill_step;   /* the number of the step that fills it, from 1 */
    uint8_t fill_pending; /* FILL_*: to be done before the next step */
    uint8_t unused[15];   /* two pages to a line */
};

struct copy_entry {
    struct engine_copy *copy;
    struct kern_event *done;
};

struct engine {
    struct engine_info info;
    struct model_config config;
    struct kern_device *device;
    const struct kern_ops *ops;
    struct kern_stream *stream, *copy_stream;
    struct kern_cancels *cancels;

    struct engine_layer *layers;           /* [info.layers] */
    struct kern_weights *embedding, *head; /* the same when tied */
    struct kern_buffer *output_norm;
    struct kern_rope *rope;
    struct kern_kv *kv;
    uint64_t layer_bytes; /* K and V of one layer of one page */

    /* Working memory of the running step; steps run one after the other, so one set is enough. */
    struct kern_buffer *x;                     /* [rows][hidden] the residual stream */
    struct kern_buffer *q, *k, *v, *attention; /* [rows][heads or kv_heads][head_dim] */
    struct kern_buffer *gate, *up;             /* [rows][ffn] */
    struct kern_logits *logits;                /* [samples][vocab] */
    struct kern_acts *acts_hidden, *acts_attention, *acts_ffn, *acts_head;

    struct engine_step steps[ENGINE_STEPS]; /* used in turn */
    uint64_t steps_begun, steps_submitted, steps_done;
    struct engine_step *last_submitted;

    struct engine_slot *slots; /* [slots_max] */
    uint32_t *free_slots, free_slot_count;

    uint64_t *sums;                       /* [page_count][run_count] */
    struct engine_page *pages;            /* [page_count] */
    uint32_t page_shift;                  /* page_tokens is 1 << page_shift */
    uint32_t *fill_list, fill_list_count; /* [page_count] pages that may be pending */
    uint64_t fills_done;                  /* up to this step */
    bool poison_pages;

    struct copy_entry *copies; /* [copies_max] a ring */
    uint64_t copies_submitted, copies_done;

    void (*wake)(void *context);
    void *wake_context;
    pthread_mutex_t mutex; /* guards bell, for engine_wait */
    pthread_cond_t rung;
    uint64_t bell;
    _Atomic uint64_t busy_since_ns;
};

/* DROPPED: in the list, but its bytes have come from elsewhere meanwhile. */
enum { FILL_NONE, FILL_ZERO, FILL_POISON, FILL_DROPPED };

/* How the backend knows the tensor's type. UNIMPLEMENTED names the tensor. */
enum status engine_weight_type(const struct gguf_tensor *tensor, enum kern_weight_type *type_out,
                               struct err *err);
/* Called from any thread: something may be there to poll. */
void engine_ring(void *engine);
/* Enqueues the whole step, its events included. */
void engine_forward(struct engine *engine, struct engine_step *step);
/* Moves the pages that wait for zeroing to the step and enqueues it. */
void engine_fills_enqueue(struct engine *engine, struct engine_step *step);
/* A copy that is done, or NULL. */
struct engine_copy *engine_copy_poll(struct engine *engine);
/* A run of the step is computed: stores its checksums. */
void engine_sums_store(struct engine *engine, const struct engine_step *step, uint32_t run);

#endif
