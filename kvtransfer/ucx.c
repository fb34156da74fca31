/* The transport over UCX (openucx.org, `ucp` of 1.13): active messages, one worker, one endpoint per peer. The only file
 * that includes UCX.
 *
 *     frame   ucp_am_send_nbx(AM_FRAME), eager, the bytes as payload out of a slot of ours
 *     piece   ucp_am_send_nbx(AM_PIECE), rendezvous: the header announces, ucp_am_recv_data_nbx fetches
 *
 * Chosen so, each for a fault that was seen otherwise: no RMA feature and no TCP put (a frozen peer that wakes must have
 * nothing to write with); MM_ERROR_HANDLING (else shared memory gives way to TCP in silence); the newer protocols off; force
 * close only, and our own count of what is outstanding, because a closed endpoint can still owe completions; nothing is closed
 * inside a callback of UCX.
 *
 * Completions that UCX gives inside the posting call go through `completed`, so that `done` comes from xfer_progress alone.
 * Owner: the loop thread. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include "base/clock.h"
#include "kvtransfer/frame.h"
#include "kvtransfer/ucx_chosen.h"
#include "kvtransfer/ucx_device.h"
#include "kvtransfer/ucx_filter.h"
#include "kvtransfer/ucx_bind.h"
#include "kvtransfer/ucx_number.h"
#include "kvtransfer/ucx_send.h"
#include "kvtransfer/xfer_impl.h"

enum {
    AM_FRAME = 0,
    AM_PIECE = 1,
    PROGRESS_TURNS = 32,        /* of UCX in one xfer_progress */
    ADDRESS_MAGIC = 0x414b5442, /* "BTKA" */
    ADDRESS_PREFIX_BYTES = 16,  /* magic, UCX version, checksum of the rest */
};
static const uint64_t destroy_patience_ns = 500 * NS_PER_MS;

struct ucx_peer {
    struct xfer_peer base;
    ucp_ep_h endpoint;   /* NULL once its close has begun */
    void *close_request; /* in flight; NULL: none, or done */
    bool failed;
    enum status cause;
};

struct ucx_slot {
    struct list link; /* free ones */
    struct ucx_peer *peer;
    struct ucx_xfer *xfer;
    uint8_t bytes[XFER_FRAME_BYTES_MAX];
};

struct ucx_xfer {
    struct xfer base;
    ucp_context_h context;
    ucp_worker_h worker;
    int event_fd;
    bool gone; /* the worker no longer exists: only the books are closed */
    unsigned peers_max;
    struct ucx_peer *peers;
    struct ucx_slot *slots;
    struct list slots_free, completed;
    struct xfer_op *posting; /* inside UCX's posting call */
    bool sent;               /* a piece has gone out: its sender may have the next one */
    bool attention;          /* a peer failed, closes or is to be closed */
    struct ucx_filter filter;
    struct ucx_numbers numbers;
    char description[XFER_NAME_BYTES];
    char warning[ERR_MESSAGE_BYTES + 128];
    size_t address_bytes;
    uint8_t address[XFER_ADDRESS_BYTES_MAX];
};

struct ucx_incoming {
    struct xfer_incoming base;
    void *descriptor;
    size_t bytes;
    bool accepted;
};

static struct ucx_xfer *ucx_of(const struct xfer *xfer)
{
    return container_of(xfer, struct ucx_xfer, base);
}

static struct ucx_peer *peer_of(struct xfer_peer *peer)
{
    return container_of(peer, struct ucx_peer, base);
}

/* --- what UCX says --- */

/* UCX logs by a process-wide hook without a context. The last message explains a failed start; everything else that it
 * has to say also comes as a status, so it stays off our output, unless the user asks UCX itself (UCX_LOG_LEVEL). */
static _Thread_local char ucx_said[256];

static ucs_log_func_rc_t ucx_log(const char *file, unsigned line, const char *function,
                                 ucs_log_level_t level, const ucs_log_component_config_t *component,
                                 const char *message, va_list arguments)
{
    if (level == UCS_LOG_LEVEL_FATAL || getenv("UCX_LOG_LEVEL"))
        return UCS_LOG_FUNC_RC_CONTINUE;
    if (level <= UCS_LOG_LEVEL_WARN)
        vsnprintf(ucx_said, sizeof ucx_said, message, arguments);
    return UCS_LOG_FUNC_RC_STOP;
}

static void ucx_listen_to_log(void)
{
    static bool pushed;
    if (!pushed)
        ucs_log_push_handler(ucx_log);
    pushed = true;
}

static enum status status_of(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return STATUS_OK;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
        return STATUS_FULL;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
        return STATUS_TIMEOUT;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NO_DEVICE:
        return STATUS_DEVICE;
    default:
        return STATUS_CLOSED;
    }
}

const char *xfer_ucx_version(void)
{
    return ucp_get_version_string();
}

/* --- operations --- */

/* What ends inside the posting call is told from the next progress. */
static void op_complete_later(struct ucx_xfer *ucx, struct xfer_op *op, enum status status)
{
    op->note = status;
    list_remove(&op->link);
    list_push_back(&ucx->completed, &op->link);
}

/* UCX may call back before the posting call returns, when the endpoint fails in it. */
static void op_ended(void *request, ucs_status_t status, struct xfer_op *op)
{
    struct ucx_xfer *ucx = ucx_of(op->peer->xfer);
    ucp_request_free(request);
    if (ucx->posting == op)
        op_complete_later(ucx, op, status_of(status));
    else
        xfer_op_finish(op, status_of(status));
}

static void op_sent(void *request, ucs_status_t status, void *user_data)
{
    struct xfer_op *op = user_data;
    ucx_of(op->peer->xfer)->sent = true;
    op_ended(request, status, user_data);
}

static void op_received(void *request, ucs_status_t status, size_t bytes, void *user_data)
{
    op_ended(request, status, user_data);
}

/* After the posting call: what it returned becomes the op's fate, or this call's error. */
static enum status op_posted(struct ucx_xfer *ucx, struct xfer_op *op, ucs_status_ptr_t request)
{
    ucx->posting = NULL;
    if (UCS_PTR_IS_PTR(request))
        return STATUS_OK;
    enum status status = status_of(UCS_PTR_STATUS(request));
    if (status == STATUS_OK) {
        op_complete_later(ucx, op, STATUS_OK);
        return STATUS_OK;
    }
    list_remove(&op->link);
    op->peer->load.ops--;
    return status;
}

static unsigned completed_tell(struct ucx_xfer *ucx)
{
    unsigned count = 0;
    while (!list_empty(&ucx->completed)) {
        struct xfer_op *op = container_of(ucx->completed.next, struct xfer_op, link);
        xfer_op_finish(op, (enum status)op->note);
        count++;
    }
    return count;
}

/* --- frames --- */

static void slot_free(struct ucx_slot *slot)
{
    slot->peer->base.load.frames--;
    slot->peer = NULL;
    list_push_back(&slot->xfer->slots_free, &slot->link);
}

static void frame_sent(void *request, ucs_status_t status, void *user_data)
{
    struct ucx_slot *slot = user_data;
    ucp_request_free(request);
    if (status == UCS_OK)
        slot->peer->base.load.frames_done++;
    slot_free(slot);
}

static enum status ucx_send_frame(struct xfer_peer *base, const void *frame, size_t bytes)
{
    struct ucx_xfer *ucx = ucx_of(base->xfer);
    struct ucx_peer *peer = peer_of(base);
    if (peer->failed)
        return STATUS_CLOSED;
    struct list *link = list_pop_front(&ucx->slots_free);
    if (!link)
        return STATUS_FULL;
    struct ucx_slot *slot = container_of(link, struct ucx_slot, link);
    slot->peer = peer;
    memcpy(slot->bytes, frame, bytes);
    base->load.frames++;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = frame_sent,
        .user_data = slot,
    };
    ucs_status_ptr_t request =
        ucp_am_send_nbx(peer->endpoint, AM_FRAME, NULL, 0, slot->bytes, bytes, &param);
    if (UCS_PTR_IS_PTR(request))
        return STATUS_OK;
    ucs_status_t status = UCS_PTR_STATUS(request);
    if (status == UCS_OK)
        base->load.frames_done++;
    slot_free(slot);
    return status_of(status);
}

static ucs_status_t on_frame(void *context, const void *header, size_t header_bytes, void *data,
                             size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_xfer *ucx = context;
    bool announced = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    if (!announced && header_bytes == 0 && bytes <= XFER_FRAME_BYTES_MAX && !ucx->gone)
        ucx->base.handler.frame(ucx->base.handler.context, data, bytes);
    return UCS_OK;
}

/* --- pieces --- */

static enum status ucx_send_piece(struct xfer_peer *base, const void *header, size_t header_bytes,
                                  const void *payload, size_t payload_bytes, struct xfer_op *op)
{
    struct ucx_xfer *ucx = ucx_of(base->xfer);
    struct ucx_peer *peer = peer_of(base);
    if (peer->failed)
        return STATUS_CLOSED;
    memcpy(op->header, header, header_bytes); /* UCX reads it until completion */
    xfer_op_start(&peer->base, op);
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_RNDV,
        .cb.send = op_sent,
        .user_data = op,
    };
    ucx->posting = op;
    ucs_status_ptr_t request = ucp_am_send_nbx(peer->endpoint, AM_PIECE, op->header, header_bytes,
                                               payload, payload_bytes, &param);
    return op_posted(ucx, op, request);
}

static ucs_status_t on_piece(void *context, const void *header, size_t header_bytes, void *data,
                             size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_xfer *ucx = context;
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) || ucx->gone)
        return UCS_OK; /* our sender always announces */
    struct ucx_incoming incoming = {{&ucx->base}, data, bytes, false};
    ucx->base.handler.piece(ucx->base.handler.context, header, header_bytes, bytes, &incoming.base);
    return UCS_OK; /* what was not accepted is dropped: the sender completes */
}

static enum status ucx_accept(struct xfer_incoming *base, struct xfer_peer *peer_base, void *memory,
                              struct xfer_op *op)
{
    struct ucx_incoming *incoming = container_of(base, struct ucx_incoming, base);
    struct ucx_xfer *ucx = ucx_of(base->xfer);
    struct ucx_peer *peer = peer_of(peer_base);
    assert(!incoming->accepted);
    incoming->accepted = true;
    xfer_op_start(&peer->base, op);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = op_received,
        .user_data = op,
    };
    ucx->posting = op;
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(ucx->worker, incoming->descriptor, memory, incoming->bytes, &param);
    return op_posted(ucx, op, request);
}

/* --- endpoints --- */

/* Inside a callback of UCX: only noted. */
static void on_endpoint_error(void *context, ucp_ep_h endpoint, ucs_status_t status)
{
    struct ucx_peer *peer = context;
    if (peer->endpoint != endpoint)
        return;
    peer->failed = true;
    peer->cause = status_of(status) == STATUS_TIMEOUT ? STATUS_TIMEOUT : STATUS_CLOSED;
    ucx_of(peer->base.xfer)->attention = true;
}

static enum status address_check(const uint8_t *address, size_t bytes, uint64_t *checksum_out,
                                 struct err *err)
{
    uint32_t magic, version;
    uint64_t checksum;
    if (bytes <= ADDRESS_PREFIX_BYTES)
        return err_set(err, STATUS_INVALID, "kv_address: cut short (%zu bytes)", bytes);
    memcpy(&magic, address, sizeof magic);
    memcpy(&version, address + 4, sizeof version);
    memcpy(&checksum, address + 8, sizeof checksum);
    if (magic != ADDRESS_MAGIC)
        return err_set(err, STATUS_INVALID, "kv_address: not one of this transport");
    if (version >> 8 != UCP_API_VERSION >> 8)
        return err_set(err, STATUS_INVALID, "kv_address: of UCX %u.%u, this is %u.%u",
                       version >> 24, version >> 16 & 0xff, UCP_API_MAJOR, UCP_API_MINOR);
    if (checksum != kv_checksum(address + ADDRESS_PREFIX_BYTES, bytes - ADDRESS_PREFIX_BYTES))
        return err_set(err, STATUS_INVALID, "kv_address: damaged");
    *checksum_out = checksum;
    return STATUS_OK;
}

static enum status ucx_peer_open(struct xfer *xfer, const uint8_t *address, size_t bytes,
                                 uint32_t *number_inout, void *context, struct xfer_peer **peer_out,
                                 struct err *err)
{
    struct ucx_xfer *ucx = ucx_of(xfer);
    uint64_t whose = 0;
    enum status checked = address_check(address, bytes, &whose, err);
    if (checked)
        return checked;
    struct ucx_peer *peer = NULL;
    for (unsigned i = 0; i < ucx->peers_max && !peer; i++)
        if (ucx->peers[i].base.state == XFER_PEER_FREE)
            peer = &ucx->peers[i];
    if (!peer)
        return err_set(err, STATUS_FULL, "kv peers: %u are open already", ucx->peers_max);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(address + ADDRESS_PREFIX_BYTES),
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_endpoint_error, .arg = peer},
    };
    *peer = (struct ucx_peer){.base = {.xfer = xfer, .context = context}};
    list_init(&peer->base.ops);
    enum status numbered =
        ucx_number_take(&ucx->numbers, whose, ucx->worker, &params, number_inout, err);
    if (numbered)
        return numbered;
    ucx_said[0] = '\0';
    ucs_status_t status = ucp_ep_create(ucx->worker, &params, &peer->endpoint);
    if (status != UCS_OK)
        return err_set(err, STATUS_DEVICE, "kv peer: not reachable by %s: %s%s%s", ucx->description,
                       ucs_status_string(status), ucx_said[0] ? ": " : "", ucx_said);
    peer->base.state = XFER_PEER_OPEN;
    *peer_out = &peer->base;
    return STATUS_OK;
}

static void ucx_peer_close(struct xfer_peer *base)
{
    if (base->state != XFER_PEER_OPEN)
        return;
    base->state = XFER_PEER_CLOSING;
    ucx_of(base->xfer)->attention = true;
}

/* Begins the close, polls it; true when the endpoint is gone and nothing is outstanding. */
static bool peer_drain(struct ucx_peer *peer)
{
    if (peer->endpoint) {
        ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = UCP_EP_CLOSE_FLAG_FORCE};
        ucp_ep_h endpoint = peer->endpoint;
        peer->endpoint = NULL;
        ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
        if (UCS_PTR_IS_PTR(request))
            peer->close_request = request;
    }
    if (peer->close_request && ucp_request_check_status(peer->close_request) != UCS_INPROGRESS) {
        ucp_request_free(peer->close_request);
        peer->close_request = NULL;
    }
    return !peer->close_request && peer->base.load.ops == 0 && peer->base.load.frames == 0;
}

static unsigned peers_settle(struct ucx_xfer *ucx)
{
    const struct xfer_handler *handler = &ucx->base.handler;
    unsigned count = 0;
    bool more = false;
    for (unsigned i = 0; i < ucx->peers_max; i++) {
        struct ucx_peer *peer = &ucx->peers[i];
        if (peer->base.state == XFER_PEER_OPEN && peer->failed) {
            peer->base.state = XFER_PEER_CLOSING;
            handler->peer_failed(handler->context, peer->base.context, &peer->base, peer->cause);
            count++;
        }
        if (peer->base.state != XFER_PEER_CLOSING)
            continue;
        if (!peer_drain(peer)) {
            more = true;
            continue;
        }
        peer->base.state = XFER_PEER_FREE;
        handler->peer_closed(handler->context, peer->base.context, &peer->base);
        count++;
    }
    ucx->attention = more;
    return count;
}

/* --- rounds --- */

static unsigned ucx_progress(struct xfer *xfer)
{
    struct ucx_xfer *ucx = ucx_of(xfer);
    unsigned count = 0;
    ucx->sent = false;
    for (int turn = 0; turn < PROGRESS_TURNS && !ucx->sent; turn++) {
        ucx_send_forgive_begin();
        unsigned events = ucp_worker_progress(ucx->worker);
        ucx_send_forgive_end();
        if (!events)
            break;
        count += events;
    }
    count += completed_tell(ucx);
    if (ucx->attention)
        count += peers_settle(ucx);
    return count;
}

static int ucx_event_fd(const struct xfer *xfer)
{
    return ucx_of(xfer)->event_fd;
}

static bool ucx_arm(struct xfer *xfer)
{
    struct ucx_xfer *ucx = ucx_of(xfer);
    if (!list_empty(&ucx->completed))
        return false;
    if (ucx->attention && peers_settle(ucx))
        return false;
    return ucp_worker_arm(ucx->worker) != UCS_ERR_BUSY;
}

static uint64_t ucx_next_ns(const struct xfer *xfer)
{
    return DEADLINE_NONE;
}

static enum status ucx_expect(struct xfer *xfer, const struct sockaddr *address, uint64_t now_ns,
                              uint64_t window_ns)
{
    return ucx_filter_allow(&ucx_of(xfer)->filter, address, now_ns + window_ns);
}

static void ucx_expect_tick(struct xfer *xfer, uint64_t now_ns)
{
    ucx_filter_tick(&ucx_of(xfer)->filter, now_ns);
}

static const uint8_t *ucx_address(const struct xfer *xfer, size_t *bytes_out)
{
    const struct ucx_xfer *ucx = ucx_of(xfer);
    *bytes_out = ucx->address_bytes;
    return ucx->address;
}

static const char *ucx_describe(const struct xfer *xfer)
{
    return ucx_of(xfer)->description;
}

static const char *ucx_warning(const struct xfer *xfer)
{
    return ucx_of(xfer)->warning;
}

/* --- the end --- */

static void ucx_drain(struct ucx_xfer *ucx)
{
    for (unsigned i = 0; i < ucx->peers_max; i++)
        if (ucx->peers[i].base.state == XFER_PEER_OPEN)
            ucx_peer_close(&ucx->peers[i].base);
    uint64_t give_up_ns = clock_now_ns() + destroy_patience_ns;
    while (ucx->attention && clock_now_ns() < give_up_ns)
        ucx_progress(&ucx->base);
}

/* What did not drain ends now that nothing can touch its memory any more. */
static void ucx_close_books(struct ucx_xfer *ucx)
{
    ucx->gone = true;
    for (unsigned i = 0; ucx->peers && i < ucx->peers_max; i++) {
        struct ucx_peer *peer = &ucx->peers[i];
        if (peer->base.state == XFER_PEER_FREE)
            continue;
        while (!list_empty(&peer->base.ops))
            xfer_op_finish(container_of(peer->base.ops.next, struct xfer_op, link), STATUS_CLOSED);
        peer->base.state = XFER_PEER_FREE;
        ucx->base.handler.peer_closed(ucx->base.handler.context, peer->base.context, &peer->base);
    }
}

static void ucx_destroy(struct xfer *xfer)
{
    struct ucx_xfer *ucx = ucx_of(xfer);
    if (ucx->worker) {
        ucx_drain(ucx);
        ucp_worker_destroy(ucx->worker);
        ucx_close_books(ucx);
    }
    if (ucx->context)
        ucp_cleanup(ucx->context);
    ucx_numbers_free(&ucx->numbers);
    free(ucx->slots);
    free(ucx->peers);
    free(ucx);
}

static const struct xfer_ops ucx_ops = {
    .destroy = ucx_destroy,
    .address = ucx_address,
    .describe = ucx_describe,
    .warning = ucx_warning,
    .progress = ucx_progress,
    .event_fd = ucx_event_fd,
    .arm = ucx_arm,
    .next_ns = ucx_next_ns,
    .expect = ucx_expect,
    .expect_tick = ucx_expect_tick,
    .peer_open = ucx_peer_open,
    .peer_close = ucx_peer_close,
    .send_frame = ucx_send_frame,
    .send_piece = ucx_send_piece,
    .accept = ucx_accept,
};

/* --- the start --- */

struct setting {
    const char *name, *value;
};

static enum status context_create(struct ucx_xfer *ucx, const struct xfer_options *options,
                                  const struct ucx_choice *choice, struct err *err)
{
    static const char *const layers[] = {
        [XFER_TRANSPORT_TCP] = "tcp",
        [XFER_TRANSPORT_SHM] = "posix",
        [XFER_TRANSPORT_RDMA] = "rc,ud",
    };
    bool shm = choice->transport == XFER_TRANSPORT_SHM;
    bool rdma = choice->transport == XFER_TRANSPORT_RDMA;
    const struct setting settings[] = {
        {"TLS", layers[choice->transport]},
        {"NET_DEVICES", shm ? NULL : choice->device},
        {"MM_ERROR_HANDLING", shm ? "y" : NULL},
        {"PUT_ENABLE", shm || rdma ? NULL : "n"}, /* UCX_TCP_...: here without the layer's prefix */
        {"PORT_RANGE", shm || rdma ? NULL : options->port_range},
        /* else the loop would sit in connect(2) for as long as a peer's filter drops our SYN */
        {"CONN_NB", shm || rdma ? NULL : "y"},
        /* one event at a time: by its source, what the first of several does may end the endpoint of the next, which UCX does not expect (a process ended so once) */
        {"MAX_POLL", shm || rdma ? NULL : "1"},
        {"RNDV_SCHEME", rdma ? "get_zcopy" : NULL}, /* D reads; a frozen P has nothing to write */
        {"PROTO_ENABLE", "n"},
        {"KEEPALIVE_INTERVAL", "1s"},
    };
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return err_set(err, STATUS_INTERNAL, "UCX configuration: %s", ucs_status_string(status));
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (!settings[i].value)
            continue;
        status = ucp_config_modify(config, settings[i].name, settings[i].value);
        if (status != UCS_OK) {
            ucp_config_release(config);
            return err_set(err, STATUS_CONFIG, "UCX_%s=%s: %s", settings[i].name, settings[i].value,
                           ucs_status_string(status));
        }
    }
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED |
                      UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 0,
        .estimated_num_eps = ucx->peers_max,
    };
    ucx_said[0] = '\0';
    status = ucp_init(&params, config, &ucx->context);
    ucp_config_release(config);
    if (status != UCS_OK)
        return err_set(err, STATUS_CONFIG, "transport: %s on %s is not available: %s%s%s",
                       xfer_transport_text(choice->transport), choice->device,
                       ucs_status_string(status), ucx_said[0] ? ": " : "", ucx_said);
    return STATUS_OK;
}

static enum status worker_create(struct ucx_xfer *ucx, const struct ucx_choice *choice,
                                 struct err *err)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucx_said[0] = '\0';
    ucx_bind_reuse_begin();
    ucs_status_t status = ucp_worker_create(ucx->context, &params, &ucx->worker);
    ucx_bind_reuse_end();
    if (status != UCS_OK)
        return err_set(err, status == UCS_ERR_BUSY ? STATUS_IN_USE : STATUS_CONFIG,
                       "transport: %s on %s: %s%s%s", xfer_transport_text(choice->transport),
                       choice->device, ucs_status_string(status), ucx_said[0] ? ": " : "",
                       ucx_said);
    /* A setting that no layer took is only warned of; one of ours would be missing. */
    if (strstr(ucx_said, "invalid configuration"))
        return err_set(err, STATUS_CONFIG, "transport: %s: UCX %s does not take a setting: %s",
                       xfer_transport_text(choice->transport), xfer_ucx_version(), ucx_said);
    status = ucp_worker_get_efd(ucx->worker, &ucx->event_fd);
    if (status != UCS_OK)
        return err_set(err, STATUS_INTERNAL, "kv worker: no event descriptor: %s",
                       ucs_status_string(status));
    const struct {
        unsigned id;
        ucp_am_recv_callback_t callback;
    } handlers[] = {{AM_FRAME, on_frame}, {AM_PIECE, on_piece}};
    for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
            .id = handlers[i].id,
            .cb = handlers[i].callback,
            .arg = ucx,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
        };
        status = ucp_worker_set_am_recv_handler(ucx->worker, &handler);
        if (status != UCS_OK)
            return err_set(err, STATUS_INTERNAL, "kv worker: active messages: %s",
                           ucs_status_string(status));
    }
    return STATUS_OK;
}

static enum status address_fill(struct ucx_xfer *ucx, struct err *err)
{
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t status = ucp_worker_get_address(ucx->worker, &address, &bytes);
    if (status != UCS_OK)
        return err_set(err, STATUS_INTERNAL, "kv worker: address: %s", ucs_status_string(status));
    bool fits = bytes <= sizeof ucx->address - ADDRESS_PREFIX_BYTES;
    if (fits) {
        uint32_t magic = ADDRESS_MAGIC, version = UCP_API_VERSION;
        uint64_t checksum = kv_checksum(address, bytes);
        memcpy(ucx->address, &magic, sizeof magic);
        memcpy(ucx->address + 4, &version, sizeof version);
        memcpy(ucx->address + 8, &checksum, sizeof checksum);
        memcpy(ucx->address + ADDRESS_PREFIX_BYTES, address, bytes);
        ucx->address_bytes = ADDRESS_PREFIX_BYTES + bytes;
    }
    ucp_worker_release_address(ucx->worker, address);
    return fits ? STATUS_OK
                : err_set(err, STATUS_INTERNAL, "kv worker: an address of %zu bytes", bytes);
}

static enum status ucx_create(const struct xfer_options *options, const struct ucx_choice *choice,
                              const struct xfer_handler *handler, struct ucx_xfer **ucx_out,
                              struct err *err)
{
    struct ucx_xfer *ucx = calloc(1, sizeof *ucx);
    if (!ucx)
        return err_set(err, STATUS_MEMORY, "kv worker: no memory");
    ucx->base = (struct xfer){&ucx_ops, *handler};
    ucx->event_fd = -1;
    ucx->peers_max = options->peers_max ? options->peers_max : 64;
    unsigned slots = options->frames_max ? options->frames_max : 1024;
    list_init(&ucx->slots_free);
    list_init(&ucx->completed);
    ucx->peers = calloc(ucx->peers_max, sizeof *ucx->peers);
    ucx->slots = calloc(slots, sizeof *ucx->slots);
    if (!ucx->peers || !ucx->slots) {
        ucx_destroy(&ucx->base);
        return err_set(err, STATUS_MEMORY, "kv worker: no memory for %u frames", slots);
    }
    for (unsigned i = 0; i < slots; i++) {
        ucx->slots[i].xfer = ucx;
        list_push_back(&ucx->slots_free, &ucx->slots[i].link);
    }
    snprintf(ucx->description, sizeof ucx->description, "%s/%s",
             xfer_transport_text(choice->transport), choice->device);
    struct ucx_filter_fds before;
    ucx_filter_listening(&before);
    enum status status = context_create(ucx, options, choice, err);
    if (!status)
        status = ucx_chosen_check(ucx->context, choice->transport, choice->device, err);
    if (!status)
        status = worker_create(ucx, choice, err);
    if (!status && options->filter && choice->transport == XFER_TRANSPORT_TCP)
        status = ucx_filter_start(&ucx->filter, &before, err);
    if (!status)
        status = address_fill(ucx, err);
    if (status) {
        ucx_destroy(&ucx->base);
        return status;
    }
    *ucx_out = ucx;
    return STATUS_OK;
}

enum status xfer_ucx_create(const struct xfer_options *options, const struct xfer_handler *handler,
                            struct xfer **xfer_out, struct err *err)
{
    const char *interface = options->interface ? options->interface : "lo";
    struct ucx_choice choice;
    struct ucx_xfer *ucx;
    char why[ERR_MESSAGE_BYTES];
    ucx_listen_to_log();
    enum status status =
        ucx_device_choose(options->transport, interface, &choice, why, sizeof why, err);
    if (status)
        return status;
    bool automatic = options->transport == XFER_TRANSPORT_AUTO;
    struct err rdma_err = ERR_INIT;
    bool tries = automatic && choice.transport == XFER_TRANSPORT_RDMA;
    status = ucx_create(options, &choice, handler, &ucx, tries ? &rdma_err : err);
    if (status && tries) { /* a device that UCX cannot use is as good as none */
        snprintf(why, sizeof why, "%s", rdma_err.message);
        status = ucx_device_choose(XFER_TRANSPORT_TCP, interface, &choice, NULL, 0, err);
        if (!status)
            status = ucx_create(options, &choice, handler, &ucx, err);
    }
    if (status)
        return status;
    if (automatic && choice.transport != XFER_TRANSPORT_RDMA)
        snprintf(ucx->warning, sizeof ucx->warning, "transport: auto chose %s: %s",
                 ucx->description, why);
    *xfer_out = &ucx->base;
    return STATUS_OK;
}
