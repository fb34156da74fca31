/* See inside.h. */
#include "kvtransfer/source.c"

#include "tests/sim/inside.h"

static void print_key(struct print *print, const struct kv_key *key)
{
    PRINT(print, key->request);
    PRINT(print, key->transfer.low);
    PRINT(print, key->assignment);
}

void inside_source(const struct kv_source *source, struct print *print)
{
    print_head(print, "source", source->live);
    PRINT(print, source->mark);
    PRINT(print, source->mark_router);
    PRINT(print, source->next_name);
    for (unsigned i = 0; i < source->options.transfers_max; i++) {
        const struct source_transfer *t = &source->transfers[i];
        if (t->state == FREE)
            continue;
        print_head(print, "source transfer", i);
        print_key(print, &t->key);
        PRINT(print, t->state);
        PRINT(print, t->first_known);
        PRINT(print, t->first_due);
        PRINT(print, t->tell_ended);
        PRINT(print, t->tell_ended ? t->status : 0);
        PRINT(print, t->link ? t->link->incarnation : 0);
        PRINT(print, t->in_flight);
        PRINT(print, t->sealed);
        PRINT(print, t->cursor);
        PRINT(print, t->lease_from_ns);
        PRINT(print, t->progress_due_ns);
        PRINT(print, t->layout.piece_count);
        if (t->first_known)
            print_bytes(print, "first", &t->first, offsetof(struct kv_first, top));
        PRINT(print, list_empty(&t->ring));
        for (unsigned k = 0; k < set_words(t); k++) {
            PRINT(print, t->ready[k]);
            PRINT(print, t->wanted[k]);
            PRINT(print, t->flying[k]);
        }
    }
    list_for_each(it, &source->ended)
        PRINT(print, container_of(it, struct source_transfer, ended)->name);
    list_for_each(it, &source->park.waiting)
    {
        const struct kv_parked *parked = container_of(it, struct kv_parked, link);
        print_head(print, "parked", parked->key.assignment);
        print_key(print, &parked->key);
        PRINT(print, parked->from->incarnation);
        PRINT(print, parked->deadline_ns);
        print_bytes(print, "blocks", parked->pull.blocks,
                    parked->pull.block_count * sizeof *parked->pull.blocks);
        PRINT(print, parked->pull.run_begin);
        PRINT(print, parked->pull.run_count);
    }
}

bool inside_source_any(const struct kv_source *source, struct kv_key *key_out, uint64_t *mark_out)
{
    *mark_out = source->mark;
    for (unsigned i = 0; i < source->options.transfers_max; i++)
        if (is_live(&source->transfers[i])) {
            *key_out = source->transfers[i].key;
            return true;
        }
    return false;
}
