/* Looking at the simulated network: what could arrive next, what is under way, and all of it as a fingerprint sees it. See net.h. */
#include "proto/seal.h"
#include "tests/sim/net_impl.h"
#include "tests/sim/print.h"

uint32_t net_heads(const struct net *net, struct net_head *heads, uint32_t max)
{
    uint32_t count = 0;
    list_for_each(it, &net->streams)
    {
        struct stream *stream = container_of(it, struct stream, link);
        for (int reader = 1; reader >= 0 && count < max; reader--) {
            const struct packet *packet = pipe_first(&stream->pipes[1 - reader]);
            enum net_direction direction = reader == SERVER ? NET_UP : NET_DOWN;
            const struct rpc_call *call = stream->calls[reader];
            bool readable = call ? !call->home->dead : packet && packet->kind == PACKET_OPEN;
            if (!packet || !readable || !stream->connected ||
                net->places[stream->place].blocked[direction])
                continue;
            heads[count++] = (struct net_head){.stream = stream,
                                               .direction = direction,
                                               .place = stream->place,
                                               .data = packet->data,
                                               .bytes = packet->bytes,
                                               .kind = "omhe"[packet->kind]};
        }
    }
    return count;
}

void net_release(const struct net_head *head)
{
    enum side sender = head->direction == NET_UP ? CLIENT : SERVER;
    container_of(head->stream->pipes[sender].packets.next, struct packet, link)->at_ns =
        clock_now_ns();
}

/* How many messages went before says nothing of what may come. */
static size_t unsealed(const struct packet *packet)
{
    size_t bytes = packet->bytes;
    bool sealed = bytes >= SEAL_BYTES && packet->data[bytes - SEAL_BYTES] == (14 << 3 | 5);
    return sealed ? bytes - SEAL_BYTES : bytes;
}

void net_print(const struct net *net, struct print *print)
{
    list_for_each(it, &net->streams)
    {
        const struct stream *stream = container_of(it, struct stream, link);
        print_head(print, "stream", (uint64_t)stream->place);
        PRINT(print, stream->connected);
        PRINT(print, stream->lost);
        PRINT(print, stream->calls[SERVER] && stream->calls[SERVER]->home->waits_for == stream);
        for (int side = 0; side < 2; side++) {
            const struct rpc_call *call = stream->calls[side];
            PRINT(print, call != NULL);
            if (call) {
                PRINT(print, call->sending);
                PRINT(print, call->out_closed);
                PRINT(print, call->ending);
                PRINT(print, call->writable_ns);
                PRINT(print, call->closed_ns);
            }
            list_for_each(packet_it, &stream->pipes[side].packets)
            {
                const struct packet *packet = container_of(packet_it, struct packet, link);
                print_head(print, "packet", packet->kind);
                print_bytes(print, "data", packet->data, unsealed(packet));
            }
        }
    }
    for (int i = 0; i < PLACES_MAX; i++)
        if (net->places[i].blocked[0] || net->places[i].blocked[1])
            print_value(print, "blocked",
                        (uint64_t)i << 2 | net->places[i].blocked[0] << 1 |
                            net->places[i].blocked[1]);
}

bool net_waits(const struct rpc *rpc)
{
    list_for_each(it, &rpc->net->streams)
    {
        const struct stream *stream = container_of(it, struct stream, link);
        const struct rpc_call *call = stream->calls[SERVER];
        if (stream == rpc->waits_for)
            return call && call->sending && call->writable_ns == DEADLINE_NONE && !call->ending;
    }
    return false;
}

unsigned net_pending(const struct net *net)
{
    unsigned count = 0;
    list_for_each(it, &net->streams)
    {
        const struct stream *stream = container_of(it, struct stream, link);
        for (int side = 0; side < 2; side++)
            list_for_each(packet, &stream->pipes[side].packets) count++;
    }
    return count;
}
