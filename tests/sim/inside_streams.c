/* See inside.h. */
#include "router/node_streams.c"

#include "tests/sim/inside.h"

void inside_stream(const struct node_stream *stream, struct print *print)
{
    const struct connection *c = container_of(stream, struct connection, stream);
    PRINT(print, c->ending);
    list_for_each(it, &c->queue)
    {
        const struct packed *packed = container_of(it, struct packed, link);
        print_bytes(print, "queued", packed->data, packed->bytes);
    }
}
