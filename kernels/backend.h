/* A backend: devices, buffers, streams, events, and the operations of a model step.
 *
 *     device ──┬── buffers, weights, activations, a KV pool        memory whose layout is the backend's own business
 *              ├── steps      metadata of one ragged batch, in fixed capacity, written by the host
 *              └── streams    operations run in order, later; events say how far a stream has come
 *
 * Every operation is enqueued and returns at once. A step is enqueued as a whole:
 *
 *     step_begin ─▶ embed ─▶ for each layer { layer_begin ─▶ norm ─▶ linear … rope_kv ─▶ attention … ─▶ layer_end }
 *                ─▶ after each run of layers { kv_sums ─▶ event } ─▶ norm (sampled rows) ─▶ head ─▶ sample ─▶ step_end ─▶ event
 *
 * and its results (struct kern_sample_out, the checksums) may be read once the event after it is done. The caller changes
 * nothing of a step between step_begin and that event.
 *
 * Three backends: "cpu"; "opaque", the same arithmetic behind memory that cannot be read outside operations and streams
 * that run only when an event is waited for or armed, so that a forgotten wait or a host pointer shows in tests; "cuda",
 * compiled in or absent (cuda_absent.c). All arithmetic is defined in docs/NUMERICS.md.
 *
 * Cancel. The host sets a flag in a struct kern_cancels; layer_begin looks at the flags: rows of a cancelled sequence
 * write no KV, read no KV and are not sampled from there on, in this step and in every later one, and the flag is
 * acknowledged. step_end acknowledges what was set after the last layer began. So an acknowledged sequence's pages are
 * touched by nothing, one layer after the flag at the latest.
 *
 * Owner: the loop thread enqueues; arm callbacks come from the backend's threads; atomics are named where they are. */
#ifndef BATON_KERNELS_BACKEND_H
#define BATON_KERNELS_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/types.h"

/* How the cache stores keys and values: docs/NUMERICS.md, "KV cache". INT8 has a scale for each head and position. */
enum kern_kv_type { KERN_KV_F32, KERN_KV_F16, KERN_KV_INT8, KERN_KV_TYPE_COUNT };
const char *kern_kv_type_name(enum kern_kv_type type); /* "f32", "f16", "int8" */
bool kern_kv_type_parse(const char *name, enum kern_kv_type *type_out);
/* Bytes of one head's K, or V, at one position, with its scale. */
uint32_t kern_kv_head_bytes(enum kern_kv_type type, uint32_t head_dim);

struct kern_ops;
struct kern_device {
    const struct kern_ops *ops; /* the backend's own fields follow */
};
struct kern_buffer;
struct kern_weights; /* a matrix, in the layout that the backend's linear wants */
struct kern_acts;    /* rows of activations, in the form that linear takes: float, or quantised */
struct kern_rope;    /* cosines and sines by position */
struct kern_kv;      /* the KV pool */
struct kern_logits;  /* rows of logits, and what `head` finds out of them for `sample` */
struct kern_stream;
struct kern_event;

/* --- opening --- */

struct kern_device_options {
    unsigned
        threads; /* compute threads, the stream's own included; 0: as many as the process may run on */
    const char *
        cpus; /* "0-3,8": a processor for each compute thread; NULL or "": wherever. The CPU's own */
    bool numa; /* memory near the compute threads' processors; false: wherever. The CPU's own */
    const char *isa; /* NULL or "auto": the best that this CPU has; "plain", "avx2", … */
    enum kern_compute compute;
};

struct kern_backend {
    const char *name;
    enum status (*open)(const struct kern_device_options *options, struct kern_device **device_out,
                        struct err *err);
};
extern const struct kern_backend kern_backend_cpu, kern_backend_opaque, kern_backend_cuda;
/* By name; STATUS_CONFIG lists the names there are. */
enum status kern_backend_find(const char *name, const struct kern_backend **backend_out,
                              struct err *err);

/* --- the metadata of a step --- */

enum {
    KERN_TOP_MAX = 20,
    KERN_HEAD_DIM_MAX = 256,
    KERN_GROUP_MAX = 64, /* query heads to a KV head */
};
/* A row's token: an id, or KERN_TOKEN_PREV | s for what sample s of the step `prev` gave. */
#define KERN_TOKEN_PREV UINT32_C(0x80000000)

struct kern_step_caps {
    uint32_t rows_max, seqs_max, samples_max, sums_max;
};

struct kern_seq {
    uint32_t row_begin, row_count; /* at consecutive positions */
    uint32_t slot;                 /* its cancel flag */
    /* Page numbers, as far as its positions reach: host memory that stays unchanged until the step's event, what is behind may change. */
    const uint32_t *blocks;
};

struct kern_bias {
    uint32_t token_id;
    float bias;
};

/* How all tokens of an answer are sampled: see docs/NUMERICS.md. Host memory, as what it points to: it stays unchanged until the event
 * of the last step that names it (of `generated`, what lies behind a step's generated_count may change). */
struct kern_sampling {
    float temperature, top_p, min_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k;
    int32_t logprobs; /* < 0: none; 0: of the chosen token; k: and of the k best */
    uint64_t seed;
    uint32_t n_index;
    uint32_t prompt_count, bias_count;
    const uint32_t *prompt;       /* [prompt_count] */
    const uint32_t *generated;    /* [a sample's generated_count] */
    const struct kern_bias *bias; /* [bias_count] */
};

/* One row that gets logits. */
struct kern_sample {
    uint32_t row, seq;
    const struct kern_sampling *sampling; /* NULL: logits only */
    uint32_t generated_count;
    bool unknown_token; /* the row's input token counts as generated too, after `generated` */
    float *logits_out;  /* NULL, or [vocab]: the raw logits are copied here */
};

/* In the answer, from 0: keys the generator. */
static inline uint32_t kern_sample_position(const struct kern_sample *sample)
{
    return sample->generated_count + sample->unknown_token;
}

struct kern_sample_out {
    uint32_t token;
    bool
        finite; /* false: a value in this sequence was NaN or infinite, now or before; the token means nothing */
    bool finished; /* false: the sequence was cancelled, the row was not computed to the end */
    float logprob; /* of `token`, in the raw logits; when asked for */
    uint32_t top_count;
    uint32_t top_ids[KERN_TOP_MAX]; /* best first, ties by lowest id */
    float top_logprobs[KERN_TOP_MAX];
    uint32_t unused
        [4]; /* whole lines of the processor's cache: what is always read is in the first of them */
};
_Static_assert(sizeof(struct kern_sample_out) % 64 == 0, "see above");

/* The host fills the arrays; `caps` and the pointers are the backend's. */
struct kern_step {
    struct kern_step_caps caps;
    uint32_t row_count, seq_count, sample_count, sum_count;
    uint32_t *tokens;            /* [rows_max] */
    uint32_t *positions;         /* [rows_max] */
    uint32_t *row_seqs;          /* [rows_max] index into seqs */
    struct kern_seq *seqs;       /* [seqs_max] */
    struct kern_sample *samples; /* [samples_max], ascending rows */
    uint32_t *sum_pages;         /* [sums_max] pages that kv_sums hashes … */
    uint32_t *sum_seqs; /* [sums_max] … unless this sequence (an index into seqs) is cancelled */
    const struct kern_step *prev; /* for KERN_TOKEN_PREV; NULL when not used */
    struct kern_cancels *cancels;
    struct kern_sample_out *outs; /* [samples_max] results */
    uint64_t *sums; /* [runs][sums_max] results of kv_sums; runs as given to step_create */
    uint32_t sum_runs;
    uint64_t begin_ns, end_ns; /* results: CLOCK_MONOTONIC at step_begin and step_end */
};

#define KERN_CANCEL_ACKED UINT64_C(1)

/* Cancel flags and progress, shared by all steps of a device. All fields atomic; any thread. */
struct kern_cancels {
    uint32_t slot_count;
    /* [slot_count] 0: none; else (1 + layers_begun when the flag was set) << 1 | KERN_CANCEL_ACKED. One word, because a backend
     * looks at every slot, also at one that is just given to a new sequence: an acknowledgement apart from its flag could be that of
     * the old sequence, and the new one's pages would be free while a layer still writes to them. */
    _Atomic uint64_t *flags;
    _Atomic uint8_t
        *failed; /* [slot_count] 1: a row of the sequence was not finite; set at step_end */
    _Atomic uint64_t layers_begun, layers_finished;
    _Atomic uint64_t last_layer_ns, longest_layer_ns;
    _Atomic uint32_t lag_max; /* the most layers begun between a flag and its acknowledgement */
    void (*acked)(
        void *context); /* called after an acknowledgement, from a backend thread; may be NULL */
    void *acked_context;
};

enum status kern_cancels_create(uint32_t slot_count, struct kern_cancels **cancels_out);
void kern_cancels_destroy(struct kern_cancels *cancels);
/* Any thread. Setting twice keeps the first. */
void kern_cancels_set(struct kern_cancels *cancels, uint32_t slot);
/* For a slot that no step in flight holds: a new sequence takes it. */
void kern_cancels_reset(struct kern_cancels *cancels, uint32_t slot);
/* For backends: acknowledges `slot` if its flag is set and notes the lag. True when the flag is set. */
bool kern_cancels_look(struct kern_cancels *cancels, uint32_t slot);
/* Acknowledges without a backend: no step in flight holds the slot. Nothing when its flag is not set. */
void kern_cancels_ack(struct kern_cancels *cancels, uint32_t slot);
/* The flag is set, and acknowledged. */
bool kern_cancels_acked(const struct kern_cancels *cancels, uint32_t slot);

/* --- descriptions --- */

struct kern_weights_desc {
    const char *name; /* for errors */
    enum kern_weight_type type;
    const void *data;       /* as in the file */
    uint32_t rows, columns; /* outputs, inputs */
    bool embedding;         /* also read row by row by `embed` */
};

struct kern_rope_desc {
    uint32_t head_dim,
        rope_dims; /* pairs (2i, 2i+1) of the first rope_dims turn by position * base^(-2i / rope_dims) */
    float base;
    uint32_t positions; /* 0 … positions-1 */
};

struct kern_kv_desc {
    uint32_t layers, kv_heads, head_dim; /* head_dim is even */
    uint32_t page_tokens;                /* 16, 32, 64, 128 */
    uint32_t page_count;
    enum kern_kv_type type;
    bool poison; /* tests: the pool starts as NaN instead of zero */
};

/* What of a step an operation covers. */
enum kern_rows { KERN_ROWS_ALL, KERN_ROWS_SAMPLED };

/* Layers [layer_begin, layer_end) of a page. */
struct kern_piece {
    uint32_t page, layer_begin, layer_end;
};

enum kern_copy_kind { KERN_COPY_SUM, KERN_COPY_EXPORT, KERN_COPY_IMPORT };

struct kern_attention_desc {
    uint32_t
        heads; /* query heads; heads % kv_heads == 0, query head h reads KV head h / (heads / kv_heads) */
    uint32_t layer;
    float scale; /* 1 / sqrt(head_dim) */
};

enum { KERN_LINEAR_PARTS = 3 }; /* queries, keys and values */
struct kern_linear_part {
    const struct kern_weights *weights;
    struct kern_buffer *out;
};

struct kern_stream_options {
    uint32_t commands_max; /* operations enqueued and not yet run; more is our own bug (asserted) */
    bool
        compute; /* its operations use the device's threads (one such stream a device); else one thread */
    uint32_t vocab;    /* compute: room for `sample` */
    uint32_t head_dim; /* compute: room for `attention` */
};

/* What a device reaches at best, all its threads together, by measurement. An operation is a product or its addition. */
struct kern_peaks {
    double weight_ops[KERN_WEIGHT_TYPES]; /* of linear, by what the file holds: operations/s */
    double kv_ops[KERN_KV_TYPE_COUNT];    /* of attention, by how the cache stores: operations/s */
    double read_bytes;                    /* of memory, past all caches: bytes/s */
};

/* --- the operations --- */

/* Rows of float activations are contiguous: [rows][columns]. Everything after `stream` first is enqueued. No slot may be
 * NULL. */
struct kern_ops {
    const char *name;

    /* Plumbing. create functions fail with STATUS_MEMORY or STATUS_DEVICE, destroy functions take NULL; nothing may be
     * destroyed while an operation that uses it is enqueued. */
    void (*device_close)(struct kern_device *device);
    void (*device_describe)(const struct kern_device *device, char *text_out, size_t text_bytes);
    unsigned (*device_threads)(const struct kern_device *device);
    /* What its peaks depend on, one line without tabs: the same text, the same peaks. */
    void (*device_machine)(const struct kern_device *device, char *text_out, size_t text_bytes);
    /* Measures them; takes all of its threads for about a twentieth of a second: before it computes. MEMORY: no memory, no thread. */
    enum status (*device_peaks)(const struct kern_device *device, struct kern_peaks *peaks_out);
    enum status (*buffer_create)(struct kern_device *device, uint64_t bytes,
                                 struct kern_buffer **buffer_out);
    void (*buffer_destroy)(struct kern_buffer *buffer);
    enum status (*weights_create)(struct kern_device *device, const struct kern_weights_desc *desc,
                                  struct kern_weights **weights_out, struct err *err);
    uint64_t (*weights_bytes)(const struct kern_weights *weights);
    /* What weights_bytes will say of such a matrix; some rows may take more. `data` is not read. */
    uint64_t (*weights_bytes_ahead)(const struct kern_device *device,
                                    const struct kern_weights_desc *desc);
    void (*weights_destroy)(struct kern_weights *weights);
    /* Rows of activations for matrices with `columns` inputs. */
    enum status (*acts_create)(struct kern_device *device, uint32_t rows_max, uint32_t columns,
                               struct kern_acts **acts_out);
    void (*acts_destroy)(struct kern_acts *acts);
    /* Rows of `vocab` logits. */
    enum status (*logits_create)(struct kern_device *device, uint32_t rows_max, uint32_t vocab,
                                 struct kern_logits **logits_out);
    void (*logits_destroy)(struct kern_logits *logits);
    enum status (*rope_create)(struct kern_device *device, const struct kern_rope_desc *desc,
                               struct kern_rope **rope_out);
    void (*rope_destroy)(struct kern_rope *rope);
    enum status (*kv_create)(struct kern_device *device, const struct kern_kv_desc *desc,
                             struct kern_kv **kv_out);
    uint64_t (*kv_layer_bytes)(const struct kern_kv *kv); /* K and V of one layer of one page */
    void *(*kv_piece_host)(struct kern_kv *kv,
                           struct kern_piece piece); /* NULL: not the host's memory */
    void (*kv_destroy)(struct kern_kv *kv);
    /* Room for `runs` rows of checksums. */
    enum status (*step_create)(struct kern_device *device, const struct kern_step_caps *caps,
                               uint32_t runs, struct kern_step **step_out);
    void (*step_destroy)(struct kern_step *step);

    enum status (*stream_create)(struct kern_device *device,
                                 const struct kern_stream_options *options,
                                 struct kern_stream **stream_out);
    void (*stream_destroy)(struct kern_stream *stream); /* runs what is enqueued */
    void (*stream_sync)(struct kern_stream *stream);    /* blocks: cold paths only */
    enum status (*event_create)(struct kern_device *device, struct kern_event **event_out);
    void (*event_destroy)(struct kern_event *event);
    void (*event_record)(struct kern_stream *stream, struct kern_event *event);
    bool (*event_query)(const struct kern_event *event); /* done; also when never recorded */
    void (*event_wait)(struct kern_event *event);        /* blocks: cold paths only */
    /* Calls `fired` once, when the recorded event is done, from a backend thread, or at once from this one. */
    void (*event_arm)(struct kern_event *event, void (*fired)(void *context), void *context);

    /* A model step. */
    void (*step_begin)(struct kern_stream *stream, struct kern_step *step);
    /* x[row] = the token's row of `weights`, as float. Also resolves KERN_TOKEN_PREV. */
    void (*embed)(struct kern_stream *stream, struct kern_step *step,
                  const struct kern_weights *weights, struct kern_buffer *x);
    void (*layer_begin)(struct kern_stream *stream, struct kern_step *step, uint32_t layer);
    void (*layer_end)(struct kern_stream *stream, struct kern_step *step, uint32_t layer);
    /* acts[i] = RMSNorm(x[row i]) * weight; x, weight float. SAMPLED gathers the sampled rows. */
    void (*norm)(struct kern_stream *stream, struct kern_step *step, enum kern_rows rows,
                 const struct kern_buffer *x, const struct kern_buffer *weight, float eps,
                 struct kern_acts *acts);
    /* Of each part, out[row] = or += W acts[row]; out [rows][weights->rows]. 1 to KERN_LINEAR_PARTS matrices that read the same
     * activations are one operation: the rows are passed over once, and the threads wait for each other once. */
    void (*linear)(struct kern_stream *stream, struct kern_step *step, const struct kern_acts *acts,
                   bool accumulate, const struct kern_linear_part *parts, uint32_t part_count);
    /* Turns q [rows][heads][head_dim] in place, turns k and stores k, v [rows][kv_heads][head_dim] in their pages. */
    void (*rope_kv)(struct kern_stream *stream, struct kern_step *step,
                    const struct kern_attention_desc *desc, const struct kern_rope *rope,
                    struct kern_buffer *q, struct kern_buffer *k, struct kern_buffer *v,
                    struct kern_kv *kv);
    /* out [rows][heads][head_dim] = softmax(scale q K) V over the positions up to the row's own */
    void (*attention)(struct kern_stream *stream, struct kern_step *step,
                      const struct kern_attention_desc *desc, const struct kern_buffer *q,
                      const struct kern_kv *kv, struct kern_buffer *out);
    void (*acts_from)(struct kern_stream *stream, struct kern_step *step,
                      const struct kern_buffer *in, struct kern_acts *acts);
    /* acts = silu(gate) * up */
    void (*silu_mul)(struct kern_stream *stream, struct kern_step *step,
                     const struct kern_buffer *gate, const struct kern_buffer *up,
                     struct kern_acts *acts);
    /* logits[i] = W acts[i] of each sample */
    void (*head)(struct kern_stream *stream, struct kern_step *step,
                 const struct kern_weights *weights, const struct kern_acts *acts,
                 struct kern_logits *logits);
    /* logits of each sample -> step->outs. Changes the logits. */
    void (*sample)(struct kern_stream *stream, struct kern_step *step, struct kern_logits *logits);
    void (*step_end)(struct kern_stream *stream, struct kern_step *step);

    /* KV pages. XXH3-64 of step->sum_pages x layers into step->sums[run]. */
    void (*kv_sums)(struct kern_stream *stream, struct kern_step *step, const struct kern_kv *kv,
                    uint32_t run, uint32_t layer_begin, uint32_t layer_end);
    /* Hashes a piece; EXPORT also copies it to `host`, IMPORT from `host`. `sum_out` is host memory. */
    void (*kv_copy)(struct kern_stream *stream, enum kern_copy_kind kind, struct kern_kv *kv,
                    struct kern_piece piece, void *host, uint64_t *sum_out);
    /* Fills pages with zero, or (poison) with NaN. `pages` is host memory that stays unchanged until done. */
    void (*kv_fill)(struct kern_stream *stream, struct kern_kv *kv, const uint32_t *pages,
                    uint32_t count, bool poison);

    /* Bytes between the host and a buffer; `host` stays valid until done. */
    void (*upload)(struct kern_stream *stream, struct kern_buffer *buffer, uint64_t offset,
                   const void *host, uint64_t bytes);
    void (*download)(struct kern_stream *stream, const struct kern_buffer *buffer, uint64_t offset,
                     void *host, uint64_t bytes);
};

#endif
