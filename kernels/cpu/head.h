/* The output head's product: logits, and on the way the greatest of each CPU_SAMPLER_RUN of them, while a tile's outputs are in
 * registers: the sampler would have to read every row once more for it.
 *
 *     panels ─▶ cpu_linear ─▶ logits, and of each run a row of maxima ─▶ of each row its runs' ─▶ the sampler
 *
 * Owner: any compute thread, at once on disjoint runs. */
#ifndef BATON_KERNELS_CPU_HEAD_H
#define BATON_KERNELS_CPU_HEAD_H

#include "kernels/cpu/linear.h"
#include "kernels/cpu/sampler.h"

enum { CPU_HEAD_MAXIMA = 8192 }; /* that are worked with at a time: 32 KB */
_Static_assert(CPU_SAMPLER_RUN == CPU_MAXIMUM_PANELS * CPU_PANEL, "a run has one maximum");

struct cpu_head_call {
    const struct cpu_weights *weights;
    struct cpu_acts acts;
    struct cpu_rows rows; /* of acts and logits: at most CPU_HEAD_MAXIMA */
    size_t panel_begin;   /* a run's first */
    size_t panel_end;     /* a run's last, or all panels' */
    float *logits;        /* [rows][ld] */
    size_t ld;
    /* [rows][ld_maxima] of each run: a NaN where one of its logits is not finite. NULL: none; so it must be with float rows. */
    float *maxima;
    size_t ld_maxima;
    float *scratch; /* [CPU_HEAD_MAXIMA] */
};

void cpu_head(enum cpu_isa_level isa, const struct cpu_head_call *call);

#endif
