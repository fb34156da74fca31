/* Channels: one peer, its connection state, and the calls made to it.
 *
 * The state is watched with one connectivity watch kept posted; core tells when it differs from the last one seen. A channel
 * that shall stay connected is nudged whenever it is seen idle, because core reconnects only when somebody asks.
 *
 * Owner: the loop thread. */
#include "proto/rpc/internal.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>

enum {
    BACKOFF_INITIAL_MS = 100,
    BACKOFF_MAX_MS = 500,
    CONNECT_TIMEOUT_MS = 2000,
    MESSAGE_BYTES_DEFAULT = 64 << 20,
    RESOLVE_INTERVAL_MS = 500,
};

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static grpc_channel *channel_make(const char *target, const struct rpc_channel_options *options)
{
    grpc_arg args[16];
    size_t count = 0, bytes = options->message_bytes_max;
    bytes = bytes ? bytes : MESSAGE_BYTES_DEFAULT;
#define OR_DEFAULT(value, fallback) ((value) ? (value) : (fallback))
    args[count++] = int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                            OR_DEFAULT(options->backoff_initial_ms, BACKOFF_INITIAL_MS));
    args[count++] = int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                            OR_DEFAULT(options->backoff_max_ms, BACKOFF_MAX_MS));
    /* despite its name: how long one try may take (20 s if unset); too short, and a busy machine cannot connect */
    args[count++] = int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                            OR_DEFAULT(options->connect_timeout_ms, CONNECT_TIMEOUT_MS));
#undef OR_DEFAULT
    args[count++] =
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, bytes > INT_MAX ? INT_MAX : (int)bytes);
    /* else channels to one address share a connection, and with it a backoff that another one earned */
    args[count++] = int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args[count++] = int_arg(GRPC_ARG_ENABLE_RETRIES, 0); /* who retries is the caller's decision */
    args[count++] = int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args[count++] = int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    args[count++] = int_arg(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, RESOLVE_INTERVAL_MS);
    args[count++] = int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1); /* identity */
    args[count++] = int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
    args[count++] = int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    if (options->keepalive_ms) {
        args[count++] = int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, options->keepalive_ms);
        args[count++] = int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options->keepalive_ms);
        args[count++] = int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    }
    assert(count <= sizeof args / sizeof args[0]);
    grpc_channel_args list = {.num_args = count, .args = args};
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(target, plain, &list);
    grpc_channel_credentials_release(plain);
    return channel;
}

static enum rpc_channel_state state_convert(grpc_connectivity_state state)
{
    switch (state) {
    case GRPC_CHANNEL_CONNECTING:
        return RPC_CHANNEL_CONNECTING;
    case GRPC_CHANNEL_READY:
        return RPC_CHANNEL_READY;
    case GRPC_CHANNEL_TRANSIENT_FAILURE:
        return RPC_CHANNEL_FAILING;
    default:
        return RPC_CHANNEL_IDLE;
    }
}

/* Tells a new state and watches for the next. */
static void state_look(struct rpc_channel *channel)
{
    if (!channel->channel)
        return;
    int state = grpc_channel_check_connectivity_state(channel->channel, channel->stay_connected);
    channel->watching = true;
    rpc_tag_out(channel->rpc, &channel->watch_tag);
    grpc_channel_watch_connectivity_state(channel->channel, (grpc_connectivity_state)state,
                                          gpr_inf_future(GPR_CLOCK_MONOTONIC), channel->rpc->queue,
                                          &channel->watch_tag);
    if (state == channel->state)
        return;
    channel->state = state;
    if (channel->on_state)
        channel->on_state(channel->context, state_convert((grpc_connectivity_state)state));
}

static void watch_done(void *context, bool ok)
{
    (void)ok;
    struct rpc_channel *channel = context;
    channel->watching = false;
    state_look(channel);
    rpc_channel_settle(channel);
}

/* The first look comes by way of the queue too, so that on_state is never called inside rpc_channel_create: a watch that
 * has expired already is back at once. */
static void first_look(struct rpc_channel *channel)
{
    channel->watching = true;
    rpc_tag_out(channel->rpc, &channel->watch_tag);
    int state = grpc_channel_check_connectivity_state(channel->channel, channel->stay_connected);
    grpc_channel_watch_connectivity_state(channel->channel, (grpc_connectivity_state)state,
                                          gpr_now(GPR_CLOCK_MONOTONIC), channel->rpc->queue,
                                          &channel->watch_tag);
}

enum status rpc_channel_create(struct rpc *rpc, const char *target,
                               const struct rpc_channel_options *options,
                               struct rpc_channel **channel_out, struct err *err)
{
    static const struct rpc_channel_options defaults;
    options = options ? options : &defaults;
    struct rpc_channel *channel = calloc(1, sizeof *channel);
    if (!channel)
        return err_set(err, STATUS_MEMORY, "rpc channel: no memory");
    channel->rpc = rpc;
    channel->stay_connected = options->stay_connected;
    channel->on_state = options->on_state;
    channel->context = options->context;
    channel->state = -1;
    channel->watch_tag = (struct rpc_tag){.done = watch_done, .context = channel};
    list_init(&channel->calls);
    channel->channel = channel_make(target, options);
    if (!channel->channel) {
        free(channel);
        return err_set(err, STATUS_CONFIG, "rpc target \"%s\": cannot be used", target);
    }
    list_push_back(&rpc->channels, &channel->link);
    if (channel->on_state || channel->stay_connected)
        first_look(channel);
    *channel_out = channel;
    return STATUS_OK;
}

enum rpc_channel_state rpc_channel_state(const struct rpc_channel *channel)
{
    if (!channel->channel)
        return RPC_CHANNEL_IDLE;
    return state_convert(grpc_channel_check_connectivity_state(channel->channel, 0));
}

void rpc_channel_connect(struct rpc_channel *channel)
{
    if (!channel->channel)
        return;
    grpc_channel_reset_connect_backoff(channel->channel);
    grpc_channel_check_connectivity_state(channel->channel, 1);
}

void rpc_channel_settle(struct rpc_channel *channel)
{
    if (channel->channel || channel->watching || !list_empty(&channel->calls))
        return;
    list_remove(&channel->link);
    free(channel);
}

void rpc_channel_destroy(struct rpc_channel *channel)
{
    if (!channel)
        return;
    assert(channel->channel);
    channel->on_state = NULL;
    list_for_each(it, &channel->calls) rpc_call_cancel(container_of(it, struct rpc_call, link));
    grpc_channel_destroy(channel->channel);
    channel->channel = NULL;
    rpc_channel_settle(channel); /* else when the watch and the calls are back */
}
