/* The two lines of `baton generate --stats`: where the time went, as the router measured it, and what moved over what.
 *
 *     TTFT 182.4 ms = queue 0.1 + placement 0.1 + prefill 180.2 + send 2.0; second token after 12.1 ms = …
 *     160 tokens, 45.2 tokens/s; 4.1 MB of KV from prefill-0 to decode-0 over tcp; …
 *
 * Owner: the main thread. */
#include "client/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static double ms(uint64_t us)
{
    return (double)us / 1000;
}

/* The transport that the node reports; "" when it cannot be asked. */
static void transport_of(struct client *client, const char *node, char *out, size_t out_bytes)
{
    Baton__V1__GetStatusRequest request = BATON__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *message;
    out[0] = 0;
    if (client_call(client, "/baton.v1.Cluster/GetStatus", &request.base,
                    &baton__v1__cluster_status__descriptor, 5 * NS_PER_S,
                    &message) != EXIT_CODE_DONE)
        return;
    const Baton__V1__ClusterStatus *status = (const Baton__V1__ClusterStatus *)message;
    for (size_t i = 0; i < status->n_nodes; i++)
        if (!strcmp(status->nodes[i]->name, node))
            snprintf(out, out_bytes, "%s", status->nodes[i]->transport);
    protobuf_c_message_free_unpacked(message, NULL);
}

void stats_print(struct client *client, const struct answer *answer)
{
    if (!answer->has_timings || !answer->has_usage) {
        client_complain(client->command, "the server sent no timings");
        return;
    }
    fprintf(stderr, "TTFT %.1f ms = queue %.1f + placement %.1f + prefill %.1f + send %.1f",
            ms(answer->ttft_us), ms(answer->queue_us), ms(answer->placement_us),
            ms(answer->prefill_us), ms(answer->send_us));
    if (answer->completion_tokens > 1)
        fprintf(stderr, "; second token after %.1f ms = hand-off %.1f + decode step %.1f",
                ms(answer->handoff_us + answer->first_decode_us), ms(answer->handoff_us),
                ms(answer->first_decode_us));
    fprintf(stderr, "\n%u tokens", answer->completion_tokens);
    /* the rate between the first token and the last, on the router's clock */
    if (answer->completion_tokens > 1 && answer->total_us > answer->ttft_us)
        fprintf(stderr, ", %.1f tokens/s",
                (double)(answer->completion_tokens - 1) * 1e6 /
                    (double)(answer->total_us - answer->ttft_us));
    fprintf(stderr, " after a prompt of %u (%u cached); ", answer->prompt_tokens,
            answer->cached_tokens);
    if (answer->kv_bytes_moved) {
        char transport[64];
        transport_of(client, answer->decode_node, transport, sizeof transport);
        fprintf(stderr, "%.2f MB of KV from %s to %s%s%s", (double)answer->kv_bytes_moved / 1e6,
                answer->prefill_node, answer->decode_node, transport[0] ? " over " : "", transport);
    } else {
        fprintf(stderr, "no KV moved (%s%s%s)", answer->prefill_node,
                strcmp(answer->prefill_node, answer->decode_node) ? ", " : "",
                strcmp(answer->prefill_node, answer->decode_node) ? answer->decode_node : "");
    }
    if (answer->replays)
        fprintf(stderr, "; placed again %u times", answer->replays);
    if (answer->resumes)
        fprintf(stderr, "; resumed %u times", answer->resumes);
    fprintf(stderr, "\n");
}
