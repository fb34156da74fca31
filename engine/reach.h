/* What a model is expected to reach on this machine, from steps that were really run: the measured side of limits.h, whose figures no
 * kernel quite reaches.
 *
 *     model ── as many of its layers as leave the caches, and its head ─▶ engine ── a few steps ─▶ struct engine_reach ─▶ seconds of any step
 *
 * Steps of a few heights, with logits and without, at the start of a context and far into it, tell apart what a row costs in the layers,
 * in the head, and for each position that it sees. A model that has more layers takes as many times longer. What a node does between two
 * steps is not in it: the next step is handed over before this one ends.
 *
 * Takes the time to repack what is measured (at most ENGINE_REACH_BYTES of layers or one layer, and the head), and a second or so.
 * Owner: any thread, one at a time. */
#ifndef BATON_ENGINE_REACH_H
#define BATON_ENGINE_REACH_H

#include "engine/limits.h"

#define ENGINE_REACH_BYTES (UINT64_C(96) << 20) /* of weights: more than a last cache keeps */
enum { ENGINE_REACH_POINTS = 5 };

struct engine_reach {
    /* Seconds of all layers, and of the head, for a step of so many rows (ascending), without what depends on the context. */
    uint32_t rows[ENGINE_REACH_POINTS];
    double layers[ENGINE_REACH_POINTS], head[ENGINE_REACH_POINTS];
    /* Seconds for each position that a row sees: of rows of sequences of their own, and of rows of one prompt. */
    double decode_pair, prompt_pair;
};

/* Measures it, with these options' device, arithmetic and KV type. `limits`: of the same model and options. The engine's errors:
 * CONFIG, MEMORY, UNIMPLEMENTED, DEVICE. */
enum status engine_reach_measure(const struct engine_options *options,
                                 const struct model_file *model, const struct engine_limits *limits,
                                 struct engine_reach *reach_out, struct err *err);

/* Seconds that the step is expected to take: by decode_rows where it has any, else as rows of one prompt. */
double engine_reach_seconds(const struct engine_reach *reach, const struct roofline_step *step);

#endif
