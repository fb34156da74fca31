/* See head.h. */
#include "kernels/cpu/head.h"

static inline float greater(float a, float b)
{
    return a > b ? a : b;
}

/* The same, but what is not a number stays so. */
static inline float greater_or_wrong(float a, float b)
{
    return a > b || a != a ? a : b;
}

/* from: [count][rows], of a run's panels; run: [rows], which may begin there. */
static void run_fold(const float *from, size_t count, size_t rows, bool finite, float *run)
{
    if (finite && count == CPU_HEAD_PANELS) {
        _Static_assert(CPU_HEAD_PANELS == 4, "as below");
        const float *a = from, *b = a + rows, *c = b + rows, *d = c + rows;
        for (size_t r = 0; r < rows; r++)
            run[r] = greater(greater(a[r], b[r]), greater(c[r], d[r]));
        return;
    }
    for (size_t r = 0; r < rows; r++) {
        float most = from[r];
        for (size_t i = 1; i < count; i++)
            most = greater_or_wrong(from[i * rows + r], most);
        run[r] = most;
    }
}

/* maxima: [count][rows], of panels, spoilt: those of runs in rows of their own at runs_out, [rows][ld]. A line of each row at a time, so
 * that what it is made of stays in the first cache. */
static void fold(float *maxima, size_t count, size_t rows, bool finite, float *runs_out, size_t ld)
{
    enum { LINE = 16, LINE_PANELS = LINE * CPU_HEAD_PANELS };
    for (size_t p = 0; p < count;
         p += LINE_PANELS, maxima += LINE_PANELS * rows, runs_out += LINE) {
        size_t panels = count - p < LINE_PANELS ? count - p : LINE_PANELS, runs = 0;
        for (size_t i = 0; i < panels; i += CPU_HEAD_PANELS)
            run_fold(maxima + i * rows, panels - i < CPU_HEAD_PANELS ? panels - i : CPU_HEAD_PANELS,
                     rows, finite, maxima + runs++ * rows);
        for (size_t r = 0; r < rows; r++)
            for (size_t run = 0; run < runs; run++)
                runs_out[r * ld + run] = maxima[run * rows + r];
    }
}

/* The panels' maxima of a chunk lie row beside row, in the second cache, where a tile's go by one store: each row's own line of them
 * would be one more that a tile's stores wait for. */
void cpu_head(enum cpu_isa_level isa, const struct cpu_head_call *head)
{
    size_t rows = head->rows.end - head->rows.begin,
           each = CPU_HEAD_MAXIMA / rows / CPU_HEAD_PANELS * CPU_HEAD_PANELS;
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
        cpu_linear(isa, &call);
        fold(head->scratch, call.panel_end - p, rows, call.finite,
             head->maxima + head->rows.begin * head->ld_maxima + p / CPU_HEAD_PANELS,
             head->ld_maxima);
    }
}
