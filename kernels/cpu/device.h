/* The inside of the CPU backend: what a device, buffer, stream and step are made of. Only kernels/cpu/ includes this.
 *
 *     loop thread ── cpu_stream_push ─▶ ring of commands ─▶ stream thread ─▶ cpu_pool_run ─▶ workers
 *
 * The opaque variant is the same code with two differences: every region (buffers, activations, KV; weights have no host
 * view in any backend) is unreadable (PROT_NONE) unless a stream is running commands, and a stream runs only as far as an
 * armed or awaited event.
 *
 * Owner: fields say who writes them; the rest is fixed after creation. */
#ifndef BATON_KERNELS_CPU_DEVICE_H
#define BATON_KERNELS_CPU_DEVICE_H

#include <pthread.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpus.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/prefault.h"
#include "kernels/cpu/quant.h"

/* Whole pages of memory, zero at first, 4096-byte aligned. */
struct cpu_region {
    void *data;
    size_t bytes;
};

struct cpu_device {
    struct kern_device base;
    bool opaque;
    enum cpu_isa_level isa;
    enum kern_compute compute;
    unsigned threads;
    struct cpu_list cpus;       /* of the compute threads; none, or at least `threads` */
    struct cpu_nodes nodes;     /* near these; none unless it was asked for */
    struct cpu_store store;     /* of weights; whoever loads them */
    pthread_mutex_t mutex;      /* guards the rest */
    struct cpu_region *regions; /* [region_capacity] */
    uint32_t region_count, region_capacity;
    uint32_t readers; /* streams that run commands now (opaque) */
    bool compute_stream;
};

static inline struct cpu_device *cpu_device_of(struct kern_device *device)
{
    return (struct cpu_device *)device;
}

enum status cpu_region_create(struct cpu_device *device, size_t bytes,
                              struct cpu_region *region_out);
void cpu_region_destroy(struct cpu_device *device, struct cpu_region *region);
/* Makes the regions readable while a stream runs; nests over streams. No-ops but for the opaque variant. */
void cpu_device_enter(struct cpu_device *device);
void cpu_device_leave(struct cpu_device *device);

struct kern_buffer {
    struct cpu_device *device;
    struct cpu_region region;
};

struct kern_weights {
    struct cpu_weights *weights;
    uint64_t bytes;
};

struct kern_acts {
    struct cpu_device *device;
    struct cpu_region region;
    struct cpu_acts acts;
    uint32_t rows_max;
};

/* Rows of logits lie an odd number of lines of the cache apart: a vocabulary is often a multiple of so many words that all rows of a
 * step would share a few places of each cache. */
struct kern_logits {
    struct cpu_device *device;
    struct cpu_region region; /* [rows_max][ld], then the maxima */
    uint32_t rows_max, vocab;
    size_t ld, ld_maxima;
    float *maxima;    /* [rows_max][ld_maxima], see head.h */
    bool with_maxima; /* the loop thread's: of what was enqueued last */
};

static inline float *cpu_logits_row(const struct kern_logits *logits, size_t row)
{
    return (float *)logits->region.data + row * logits->ld;
}

static inline float *cpu_logits_maxima(const struct kern_logits *logits, size_t row)
{
    return logits->maxima + row * logits->ld_maxima;
}

/* [positions][rope_dims / 2] each */
struct kern_rope {
    uint32_t rope_dims, positions;
    float *cos, *sin;
};

/* One layer of one page; everything begins at a multiple of 16 bytes:
 *
 *     f32, f16   K [kv_head][page_tokens / 8][head_dim][8]  V [kv_head][head_dim / 16][page_tokens][16], see kv_layout.h
 *     int8       K [kv_head][head_dim / 2][page_tokens][2]  V [kv_head][page_tokens / 2][head_dim][2]
 *                then the scales of K, and of V, [kv_head][page_tokens] bfloat16 each */
struct kern_kv {
    struct cpu_device *device;
    struct kern_kv_desc desc;
    struct cpu_region region;
    struct cpu_prefault prefault; /* of the region */
    uint64_t values_bytes;        /* K, or V, of one layer of one page */
    uint64_t scales_bytes;        /* their scales; 0 where the type has none */
    uint64_t layer_bytes;         /* 2 (values + scales) */
    uint64_t page_bytes;
};

static inline uint8_t *cpu_kv_layer(const struct kern_kv *kv, uint32_t page, uint32_t layer)
{
    return (uint8_t *)kv->region.data + page * kv->page_bytes + layer * kv->layer_bytes;
}

/* Working memory of one compute thread. */
struct cpu_scratch {
    float *attention; /* see attention.h */
    float *maxima;    /* [CPU_HEAD_MAXIMA], see head.h */
    struct cpu_sampler *sampler;
};

/* Where the parts of long rows put what is to be merged: see attention.c. The stream thread's, between attention operations. */
struct cpu_attention_split {
    float *partials; /* [floats_max]; NULL: nothing is split */
    size_t floats_max;
    _Atomic uint32_t
        *left; /* [counters_max] parts that have not finished, of each split row (and KV head) */
    uint32_t counters_max;
};

/* --- streams --- */

enum { CPU_COMMAND_BYTES = 144 };

struct cpu_command {
    void (*run)(struct kern_stream *stream, const void *arguments);
    bool (*ask)(struct kern_stream *stream, const void *arguments); /* or NULL */
    _Alignas(16) uint8_t arguments[CPU_COMMAND_BYTES];
};

struct kern_stream {
    struct cpu_device *device;
    struct cpu_pool *pool;       /* NULL: the stream's own thread alone */
    struct cpu_scratch *scratch; /* [threads]; compute streams only */
    struct cpu_attention_split split;
    uint32_t head_dim, vocab;
    struct cpu_command *ring; /* [capacity], a power of two */
    uint64_t capacity;
    uint64_t head;          /* the loop thread's: commands pushed */
    _Atomic uint64_t tail;  /* commands run */
    _Atomic uint64_t limit; /* commands that may run: head, or (lazy) up to an awaited event */
    _Atomic uint32_t bell;  /* changes when limit does: what the stream thread sleeps on */
    _Atomic uint32_t asleep;
    _Atomic bool stop;
    uint64_t layer_begin_ns;
    bool entered; /* the stream thread's: cpu_device_enter is held */
    pthread_t thread;
};

/* Room for what `threads` threads split; nothing for one. `finish` takes what `init` has half made. */
enum status cpu_attention_split_init(struct cpu_attention_split *split, unsigned threads);
void cpu_attention_split_finish(struct cpu_attention_split *split);

/* Copies `bytes` of arguments into the ring. Never blocks; asserts room. `ask`: called, if at all, before `run`, by a command before
 * it; fetches what `run` reads first, and returns true when that is enough to keep the memory busy until then. */
void cpu_stream_push_asked(struct kern_stream *stream,
                           void (*run)(struct kern_stream *stream, const void *arguments),
                           bool (*ask)(struct kern_stream *stream, const void *arguments),
                           const void *arguments, size_t bytes);

static inline void cpu_stream_push(struct kern_stream *stream,
                                   void (*run)(struct kern_stream *stream, const void *arguments),
                                   const void *arguments, size_t bytes)
{
    cpu_stream_push_asked(stream, run, NULL, arguments, bytes);
}

/* The stream's thread, at the end of a command that is bound by memory: lets those ask that are queued next, up to the next of
 * that kind, because what lies in between leaves the memory idle. */
void cpu_stream_ask(struct kern_stream *stream);

enum status cpu_stream_create(struct kern_device *device, const struct kern_stream_options *options,
                              struct kern_stream **stream_out);
void cpu_stream_destroy(struct kern_stream *stream);
void cpu_stream_sync(struct kern_stream *stream);
enum status cpu_event_create(struct kern_device *device, struct kern_event **event_out);
void cpu_event_destroy(struct kern_event *event);
void cpu_event_record(struct kern_stream *stream, struct kern_event *event);
bool cpu_event_query(const struct kern_event *event);
void cpu_event_wait(struct kern_event *event);
void cpu_event_arm(struct kern_event *event, void (*fired)(void *context), void *context);

/* --- steps --- */

/* Consecutive rows of one sequence that attention takes together. */
struct cpu_tile {
    uint32_t seq, row_begin, row_count;
    /* attention's, of the layer that runs: parts, the first item's number among all, and for more than one part where
     * their results (in floats) and their counters begin */
    uint32_t parts, item_begin, counter_begin;
    size_t partial_begin;
};

struct cpu_step {
    struct kern_step base;  /* first: a struct kern_step * is one of these */
    uint32_t *row_tokens;   /* [rows_max] resolved by embed */
    uint8_t *row_bad;       /* [rows_max] a value of the row was not finite */
    uint8_t *seq_dead;      /* [seqs_max] cancelled */
    struct cpu_tile *tiles; /* [rows_max] made by step_begin */
    uint32_t tile_count;
};

static inline struct cpu_step *cpu_step_of(struct kern_step *step)
{
    return (struct cpu_step *)step;
}

enum status cpu_step_create(struct kern_device *device, const struct kern_step_caps *caps,
                            uint32_t runs, struct kern_step **step_out);
void cpu_step_destroy(struct kern_step *step);

/* --- operations: signatures as in struct kern_ops --- */

void cpu_op_step_begin(struct kern_stream *stream, struct kern_step *step);
void cpu_op_embed(struct kern_stream *stream, struct kern_step *step,
                  const struct kern_weights *weights, struct kern_buffer *x);
void cpu_op_layer_begin(struct kern_stream *stream, struct kern_step *step, uint32_t layer);
void cpu_op_layer_end(struct kern_stream *stream, struct kern_step *step, uint32_t layer);
void cpu_op_norm(struct kern_stream *stream, struct kern_step *step, enum kern_rows rows,
                 const struct kern_buffer *x, const struct kern_buffer *weight, float eps,
                 struct kern_acts *acts);
void cpu_op_linear(struct kern_stream *stream, struct kern_step *step, const struct kern_acts *acts,
                   bool accumulate, const struct kern_linear_part *parts, uint32_t part_count);
void cpu_op_rope_kv(struct kern_stream *stream, struct kern_step *step,
                    const struct kern_attention_desc *desc, const struct kern_rope *rope,
                    struct kern_buffer *q, struct kern_buffer *k, struct kern_buffer *v,
                    struct kern_kv *kv);
void cpu_op_attention(struct kern_stream *stream, struct kern_step *step,
                      const struct kern_attention_desc *desc, const struct kern_buffer *q,
                      const struct kern_kv *kv, struct kern_buffer *out);
void cpu_op_acts_from(struct kern_stream *stream, struct kern_step *step,
                      const struct kern_buffer *in, struct kern_acts *acts);
void cpu_op_silu_mul(struct kern_stream *stream, struct kern_step *step,
                     const struct kern_buffer *gate, const struct kern_buffer *up,
                     struct kern_acts *acts);
void cpu_op_head(struct kern_stream *stream, struct kern_step *step,
                 const struct kern_weights *weights, const struct kern_acts *acts,
                 struct kern_logits *logits);
void cpu_op_sample(struct kern_stream *stream, struct kern_step *step, struct kern_logits *logits);
void cpu_op_step_end(struct kern_stream *stream, struct kern_step *step);
void cpu_op_kv_sums(struct kern_stream *stream, struct kern_step *step, const struct kern_kv *kv,
                    uint32_t run, uint32_t layer_begin, uint32_t layer_end);
void cpu_op_kv_copy(struct kern_stream *stream, enum kern_copy_kind kind, struct kern_kv *kv,
                    struct kern_piece piece, void *host, uint64_t *sum_out);
void cpu_op_kv_fill(struct kern_stream *stream, struct kern_kv *kv, const uint32_t *pages,
                    uint32_t count, bool poison);

enum status cpu_rope_create(struct kern_device *device, const struct kern_rope_desc *desc,
                            struct kern_rope **rope_out);
void cpu_rope_destroy(struct kern_rope *rope);
enum status cpu_kv_create(struct kern_device *device, const struct kern_kv_desc *desc,
                          struct kern_kv **kv_out);
uint64_t cpu_kv_layer_bytes(const struct kern_kv *kv);
void *cpu_kv_piece_host(struct kern_kv *kv, struct kern_piece piece);
void cpu_kv_destroy(struct kern_kv *kv);

/* machine.c */
void cpu_device_machine(const struct kern_device *device, char *text_out, size_t text_bytes);
enum status cpu_device_peaks(const struct kern_device *device, struct kern_peaks *peaks_out);

#endif
