/* The hash that says "the same model": see struct model_identity.
 * Owner: any thread; pure. */
#ifndef BATON_MODEL_IDENTITY_H
#define BATON_MODEL_IDENTITY_H

#include "model/model.h"

/* Reads every byte of every tensor that has data once. MEMORY. */
enum status model_identity_compute(const struct gguf *gguf, const struct model_config *config,
                                   struct model_identity *identity_out, struct err *err);

#endif
