/* See inside.h. */
#include "kvtransfer/sink.c"

#include "tests/sim/inside.h"

void inside_sink(const struct kv_sink *sink, struct print *print)
{
    print_head(print, "sink", sink->live);
    PRINT(print, sink->next_name);
    for (unsigned i = 0; i < sink->options.transfers_max; i++) {
        const struct sink_transfer *t = &sink->transfers[i];
        if (t->state == FREE)
            continue;
        print_head(print, "sink transfer", i);
        PRINT(print, t->key.request);
        PRINT(print, t->key.transfer.low);
        PRINT(print, t->key.assignment);
        PRINT(print, t->state);
        PRINT(print, t->first_known);
        if (t->first_known)
            print_bytes(print, "first", &t->first, offsetof(struct kv_first, top));
        PRINT(print, t->pull_due);
        PRINT(print, t->tell_ended);
        PRINT(print, t->tell_ended ? t->status : 0);
        PRINT(print, t->sent_all);
        PRINT(print, t->at);
        PRINT(print, t->link ? t->link->incarnation : 0);
        PRINT(print, t->mismatches);
        PRINT(print, t->piece_bytes);
        PRINT(print, t->deadline_ns);
        PRINT(print, t->heard_ns);
        PRINT(print, t->piece_ns);
        PRINT(print, t->pulled_ns);
        print_bytes(print, "pieces", t->pieces, t->layout.piece_count);
    }
    list_for_each(it, &sink->due) PRINT(print, container_of(it, struct sink_transfer, due)->name);
}
