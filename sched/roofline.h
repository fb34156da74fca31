/* How near a node runs to what its machine allows, and what holds it back.
 *
 * A step asks for arithmetic and for bytes; divided by the machine's measured peaks these are the least times that it could take
 * (Williams et al., "Roofline", 2009). Added up over a window, for steps that read prompts (prefill) and for steps that only
 * decode apart:
 *
 *     MFU   least time of the arithmetic / time of the steps
 *     MBU   least time of the bytes      / time of the steps
 *
 *     wall   | steps: prefill | steps: decode | host: work was there | link: waited for pages | idle: no work |
 *
 * The verdict on a phase is what took most of the time that it had: host, link or idle where one of these is longer than the
 * steps; else, of the steps, what has the longest least time: arithmetic, reading weights, reading KV.
 *
 * Pure: no clock, no memory. Owner: any thread; the node's loop in practice. */
#ifndef BATON_SCHED_ROOFLINE_H
#define BATON_SCHED_ROOFLINE_H

#include <stdbool.h>
#include <stdint.h>

/* The machine, by measurement: all compute threads together. */
struct roofline_peaks {
    double layer_ops, head_ops,
        attention_ops; /* operations/s of the instruction that each uses; a product and its sum are 2 */
    double bytes;      /* read, bytes/s */
};

/* What the model asks for. */
struct roofline_model {
    double layer_ops;     /* operations of a row in the linear layers */
    double head_ops;      /* of a row that gets logits */
    double attention_ops; /* of a row and each position that it sees */
    double layer_bytes;   /* of weights, that every step reads */
    double head_bytes;    /* that every step with logits reads too */
    double kv_bytes;      /* of one position */
};

/* One step, by what was in it. */
struct roofline_step {
    uint32_t prompt_rows, decode_rows, samples;
    uint64_t pairs;     /* rows x positions that each sees */
    uint64_t positions; /* of KV read: each sequence's once */
};

/* Positions that `rows` rows from `position` on see, all together: each sees its own and those before it. */
static inline uint64_t roofline_pairs(uint32_t position, uint32_t rows)
{
    return (uint64_t)rows * position + (uint64_t)rows * (rows + 1) / 2;
}

/* Seconds at the machine's peaks. */
struct roofline_cost {
    double arithmetic, weights, kv;
};
struct roofline_cost roofline_cost(const struct roofline_model *model,
                                   const struct roofline_peaks *peaks,
                                   const struct roofline_step *step);
/* What alone would take as long as the whole. */
enum roofline_bound { ROOFLINE_BOUND_ARITHMETIC, ROOFLINE_BOUND_WEIGHTS, ROOFLINE_BOUND_KV };
enum roofline_bound roofline_bound(struct roofline_cost cost);
/* The least time of a step: reading and arithmetic may overlap. Seconds. */
double roofline_least(struct roofline_cost cost);

enum roofline_phase { ROOFLINE_PREFILL, ROOFLINE_DECODE, ROOFLINE_PHASES };
/* What a node did between two steps. */
enum roofline_pause {
    ROOFLINE_PAUSE_IDLE,
    ROOFLINE_PAUSE_LINK,
    ROOFLINE_PAUSE_HOST,
    ROOFLINE_PAUSES
};
enum roofline_verdict {
    ROOFLINE_IDLE, /* nothing to do */
    ROOFLINE_LINK, /* pages on their way */
    ROOFLINE_HOST, /* scheduling, sampling, messages */
    ROOFLINE_ARITHMETIC,
    ROOFLINE_WEIGHTS, /* reading them */
    ROOFLINE_KV,      /* reading it */
    ROOFLINE_VERDICTS
};

struct roofline_window {
    struct {
        double seconds, steps, least;
        struct roofline_cost cost;
    } phases[ROOFLINE_PHASES];
    double pauses[ROOFLINE_PAUSES]; /* seconds */
};
void roofline_add(struct roofline_window *window, enum roofline_phase phase, double seconds,
                  struct roofline_cost cost);
void roofline_pause(struct roofline_window *window, enum roofline_pause pause, double seconds);
/* Halves all: the window forgets what is long past. */
void roofline_fade(struct roofline_window *window);

struct roofline_report {
    double mfu, mbu; /* 0 to about 1; 0 without steps */
    double
        efficiency; /* least time / time of the steps: the larger of the two as it binds step by step */
    enum roofline_verdict verdict;
};
struct roofline_report roofline_report(const struct roofline_window *window,
                                       enum roofline_phase phase);
const char *roofline_verdict_name(enum roofline_verdict verdict);
/* What helps next, one line. */
const char *roofline_lever(enum roofline_phase phase, enum roofline_verdict verdict);

/* --- a node beside itself ---
 *
 * What a node reaches in steps of a kind (phase, rows, positions to a row, by powers of two and four) soon after its first of them is
 * what later ones are held against: a machine that became slower (a neighbour, heat, memory that went elsewhere) shows, whatever
 * the mix of steps. The first four of a kind meet cold memory and are left out, the next sixteen make its rate. */
enum { ROOFLINE_RATE_ROWS = 17, ROOFLINE_RATE_CONTEXTS = 12 };
struct roofline_kind {
    double least, seconds; /* of the steps that make its rate */
    uint32_t steps;        /* no further than those */
};
struct roofline_rate {
    struct roofline_kind kinds[ROOFLINE_PHASES][ROOFLINE_RATE_ROWS][ROOFLINE_RATE_CONTEXTS];
    double expected,
        seconds; /* of later steps: at their kinds' rates, and as they were; halved at each look */
    uint32_t looks; /* that found it otherwise than `slow` says */
    bool slow;
};
void roofline_rate_add(struct roofline_rate *rate, enum roofline_phase phase,
                       const struct roofline_step *step, double seconds, struct roofline_cost cost);
/* Expected / taken, lately; 0: too little to say. */
double roofline_rate_share(const struct roofline_rate *rate);
enum roofline_change { ROOFLINE_SAME, ROOFLINE_FELL, ROOFLINE_ROSE };
/* Every few seconds. FELL: it was below 0.8 at two looks in a row; ROSE: it was at 0.9 or above, at two in a row, after that. */
enum roofline_change roofline_rate_look(struct roofline_rate *rate);

#endif
