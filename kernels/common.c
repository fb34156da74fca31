/* What all backends share: their names, and the cancel flags. See backend.h. */
#include "kernels/backend.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status kern_backend_find(const char *name, const struct kern_backend **backend_out,
                              struct err *err)
{
    static const struct kern_backend *const backends[] = {&kern_backend_cpu, &kern_backend_opaque,
                                                          &kern_backend_cuda};
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(name, backends[i]->name) == 0) {
            *backend_out = backends[i];
            return STATUS_OK;
        }
    return err_set(err, STATUS_CONFIG, "backend: \"%s\" is none of cpu, opaque, cuda", name);
}

enum status kern_cancels_create(uint32_t slot_count, struct kern_cancels **cancels_out)
{
    struct kern_cancels *cancels = calloc(1, sizeof *cancels);
    if (!cancels)
        return STATUS_MEMORY;
    cancels->slot_count = slot_count;
    cancels->flags = calloc(slot_count, sizeof *cancels->flags);
    cancels->failed = calloc(slot_count, sizeof *cancels->failed);
    if (!cancels->flags || !cancels->failed) {
        kern_cancels_destroy(cancels);
        return STATUS_MEMORY;
    }
    *cancels_out = cancels;
    return STATUS_OK;
}

void kern_cancels_destroy(struct kern_cancels *cancels)
{
    if (!cancels)
        return;
    free(cancels->flags);
    free(cancels->failed);
    free(cancels);
}

void kern_cancels_set(struct kern_cancels *cancels, uint32_t slot)
{
    assert(slot < cancels->slot_count);
    uint64_t none = 0, flag = (1 + atomic_load(&cancels->layers_begun)) << 1;
    atomic_compare_exchange_strong(&cancels->flags[slot], &none, flag);
}

void kern_cancels_ack(struct kern_cancels *cancels, uint32_t slot)
{
    assert(slot < cancels->slot_count);
    uint64_t flag = atomic_load(&cancels->flags[slot]);
    while (flag && !(flag & KERN_CANCEL_ACKED) &&
           !atomic_compare_exchange_weak(&cancels->flags[slot], &flag, flag | KERN_CANCEL_ACKED)) {
    }
}

bool kern_cancels_acked(const struct kern_cancels *cancels, uint32_t slot)
{
    assert(slot < cancels->slot_count);
    return atomic_load(&cancels->flags[slot]) & KERN_CANCEL_ACKED;
}

void kern_cancels_reset(struct kern_cancels *cancels, uint32_t slot)
{
    assert(slot < cancels->slot_count);
    atomic_store(&cancels->flags[slot], 0);
    atomic_store(&cancels->failed[slot], 0);
}

bool kern_cancels_look(struct kern_cancels *cancels, uint32_t slot)
{
    uint64_t flag = atomic_load(&cancels->flags[slot]);
    if (!flag)
        return false;
    if (flag & KERN_CANCEL_ACKED)
        return true;
    uint32_t lag = (uint32_t)(atomic_load(&cancels->layers_begun) - ((flag >> 1) - 1));
    /* the slot may have been given anew since that look: then there is nothing to acknowledge */
    if (!atomic_compare_exchange_strong(&cancels->flags[slot], &flag, flag | KERN_CANCEL_ACKED))
        return flag != 0;
    uint32_t max = atomic_load(&cancels->lag_max);
    while (lag > max && !atomic_compare_exchange_weak(&cancels->lag_max, &max, lag)) {
    }
    if (cancels->acked)
        cancels->acked(cancels->acked_context);
    return true;
}
