/* See head.h. */
#include "kernels/cpu/head.h"

#include <math.h>

/* maxima: [runs][rows], to rows of their own at runs_out, [rows][ld]. A line of each row at a time, so that what it is made of stays in
 * the first cache. */
static void turn(const float *maxima, size_t runs, size_t rows, float *runs_out, size_t ld)
{
    enum { LINE = 16 };
    for (size_t begin = 0; begin < runs; begin += LINE) {
        size_t end = begin + LINE < runs ? begin + LINE : runs;
        for (size_t r = 0; r < rows; r++)
            for (size_t run = begin; run < end; run++)
                runs_out[r * ld + run] = maxima[run * rows + r];
    }
}

/* The maxima of a chunk lie row beside row, near enough, where a tile's go by one store: each row's own line of them would be one more
 * that a tile's stores wait for. */
void cpu_head(enum cpu_isa_level isa, const struct cpu_head_call *head)
{
    size_t rows = head->rows.end - head->rows.begin,
           each = CPU_HEAD_MAXIMA / rows * CPU_MAXIMUM_PANELS;
    struct cpu_linear_call call = {
        .weights = head->weights,
        .acts = head->acts,
        .rows = head->rows,
        .panel_begin = head->panel_begin,
        .panel_end = head->panel_end,
        .out = head->logits,
        .ld_out = head->ld,
        .maxima = head->maxima ? head->scratch : NULL,
        .ld_maxima = rows,
    };
    if (!head->maxima) {
        cpu_linear(isa, &call);
        return;
    }
    call.finite = cpu_linear_finite(head->weights, &head->acts, head->rows);
    for (size_t p = head->panel_begin; p < head->panel_end; p += each) {
        call.panel_begin = p;
        call.panel_end = p + each < head->panel_end ? p + each : head->panel_end;
        size_t runs = (call.panel_end - p + CPU_MAXIMUM_PANELS - 1) / CPU_MAXIMUM_PANELS;
        for (size_t i = 0; i < runs * rows; i++)
            head->scratch[i] = -INFINITY;
        cpu_linear(isa, &call);
        turn(head->scratch, runs, rows,
             head->maxima + head->rows.begin * head->ld_maxima + p / CPU_MAXIMUM_PANELS,
             head->ld_maxima);
    }
}
