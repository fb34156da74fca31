/* See measure.h: two processes and bare UCX, the calls that ucx.c makes (active messages with rendezvous), the same pieces and
 * window, nothing else: no frames, no tables, no checksums. Both sides spin, or wait for the worker's event descriptor when
 * nothing moves. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "base/clock.h"
#include "kvtransfer/measure.h"

enum { AM_PIECE = 1, AM_GO = 2, ADDRESS_MAX = 4096 };
static const uint64_t patience_ns = 60 * NS_PER_S;

struct bare {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    int event_fd;
    bool waits;
    uint8_t *memory;
    size_t piece_bytes, piece_count;
    size_t received, outstanding, gone;
    ucs_status_t failed;
    uint64_t *headers;
};

static enum status bare_fail(struct err *err, const char *what, ucs_status_t status)
{
    return err_set(err, STATUS_CLOSED, "bare UCX: %s: %s", what, ucs_status_string(status));
}

static void turn(struct bare *bare)
{
    if (ucp_worker_progress(bare->worker) || !bare->waits || ucp_worker_arm(bare->worker) != UCS_OK)
        return;
    struct pollfd wait = {bare->event_fd, POLLIN, 0};
    poll(&wait, 1, 1000);
}

/* Turns until there are so many; false when something failed or took too long. */
static bool turn_until(struct bare *bare, const size_t *count, size_t wanted)
{
    uint64_t until_ns = clock_now_ns() + patience_ns;
    while (*count < wanted && bare->failed == UCS_OK) {
        turn(bare);
        if (clock_now_ns() > until_ns)
            bare->failed = UCS_ERR_TIMED_OUT;
    }
    return bare->failed == UCS_OK;
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    struct bare *bare = user_data;
    if (status != UCS_OK)
        bare->failed = status;
    bare->outstanding--;
    ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data)
{
    struct bare *bare = user_data;
    if (status != UCS_OK)
        bare->failed = status;
    bare->received++;
    ucp_request_free(request);
}

static ucs_status_t on_piece(void *context, const void *header, size_t header_bytes, void *data,
                             size_t bytes, const ucp_am_recv_param_t *param)
{
    struct bare *bare = context;
    uint64_t index;
    if (header_bytes != sizeof index || !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
        return UCS_OK;
    memcpy(&index, header, sizeof index);
    if (index >= bare->piece_count || bytes != bare->piece_bytes)
        return UCS_OK;
    ucp_request_param_t receive = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
        .user_data = bare,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(
        bare->worker, data, bare->memory + index * bare->piece_bytes, bytes, &receive);
    if (!UCS_PTR_IS_PTR(request)) {
        if (UCS_PTR_STATUS(request) != UCS_OK)
            bare->failed = UCS_PTR_STATUS(request);
        bare->received++;
    }
    return UCS_OK;
}

static ucs_status_t on_go(void *context, const void *header, size_t header_bytes, void *data,
                          size_t bytes, const ucp_am_recv_param_t *param)
{
    ((struct bare *)context)->gone++;
    return UCS_OK;
}

static void on_endpoint_error(void *context, ucp_ep_h endpoint, ucs_status_t status)
{
    ((struct bare *)context)->failed = status;
}

static void go_send(struct bare *bare)
{
    static const char word[8] = "go";
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER};
    ucs_status_ptr_t request =
        ucp_am_send_nbx(bare->endpoint, AM_GO, NULL, 0, word, sizeof word, &param);
    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS &&
           bare->failed == UCS_OK)
        turn(bare);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
}

static enum status context_create(struct bare *bare, enum xfer_transport transport,
                                  const char *device, const char *port_range, struct err *err)
{
    bool shm = transport == XFER_TRANSPORT_SHM, rdma = transport == XFER_TRANSPORT_RDMA;
    /* as ucx.c has them */
    const struct {
        const char *name, *value;
    } settings[] = {
        {"TLS", shm ? "posix" : rdma ? "rc,ud" : "tcp"}, {"NET_DEVICES", shm ? NULL : device},
        {"MM_ERROR_HANDLING", shm ? "y" : NULL},         {"PUT_ENABLE", shm || rdma ? NULL : "n"},
        {"PORT_RANGE", shm || rdma ? NULL : port_range}, {"CONN_NB", shm || rdma ? NULL : "y"},
        {"RNDV_SCHEME", rdma ? "get_zcopy" : NULL},      {"PROTO_ENABLE", "n"},
    };
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return bare_fail(err, "configuration", status);
    for (size_t i = 0; status == UCS_OK && i < sizeof settings / sizeof settings[0]; i++)
        if (settings[i].value)
            status = ucp_config_modify(config, settings[i].name, settings[i].value);
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    if (status == UCS_OK)
        status = ucp_init(&params, config, &bare->context);
    ucp_config_release(config);
    return status == UCS_OK ? STATUS_OK : bare_fail(err, "start", status);
}

static enum status worker_create(struct bare *bare, struct err *err)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t status = ucp_worker_create(bare->context, &params, &bare->worker);
    if (status == UCS_OK)
        status = ucp_worker_get_efd(bare->worker, &bare->event_fd);
    for (unsigned id = AM_PIECE; status == UCS_OK && id <= AM_GO; id++) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
            .id = id,
            .cb = id == AM_PIECE ? on_piece : on_go,
            .arg = bare,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
        };
        status = ucp_worker_set_am_recv_handler(bare->worker, &handler);
    }
    return status == UCS_OK ? STATUS_OK : bare_fail(err, "worker", status);
}

/* Starts, exchanges addresses, and has met the other side when it returns. */
static enum status bare_start(struct bare *bare, const struct kv_measure *measure,
                              const char *device, int fd, uint8_t *memory, struct err *err)
{
    *bare = (struct bare){.waits = !measure->spin,
                          .memory = memory,
                          .piece_bytes = measure->piece_bytes,
                          .piece_count = measure->total_bytes / measure->piece_bytes};
    bare->headers = calloc(bare->piece_count, sizeof *bare->headers);
    if (!bare->headers)
        return err_set(err, STATUS_MEMORY, "bare UCX: no memory");
    enum status status = context_create(bare, measure->transport, device, measure->port_range, err);
    if (!status)
        status = worker_create(bare, err);
    if (status)
        return status;
    ucp_address_t *own;
    size_t own_bytes, bytes;
    uint8_t theirs[ADDRESS_MAX];
    ucs_status_t address = ucp_worker_get_address(bare->worker, &own, &own_bytes);
    if (address != UCS_OK)
        return bare_fail(err, "address", address);
    status = kv_measure_exchange(fd, own, own_bytes, theirs, sizeof theirs, &bytes, err);
    ucp_worker_release_address(bare->worker, own);
    if (status)
        return status;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)theirs,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {.cb = on_endpoint_error, .arg = bare}};
    ucs_status_t endpoint = ucp_ep_create(bare->worker, &params, &bare->endpoint);
    if (endpoint != UCS_OK)
        return bare_fail(err, "endpoint", endpoint);
    go_send(bare);
    return turn_until(bare, &bare->gone, 1) ? STATUS_OK : bare_fail(err, "meeting", bare->failed);
}

enum status ucx_bare_give(const struct kv_measure *measure, const char *device, int fd,
                          uint8_t *memory, struct err *err)
{
    struct bare bare;
    enum status status = bare_start(&bare, measure, device, fd, memory, err);
    if (status)
        return status;
    if (!turn_until(&bare, &bare.gone, 2))
        return bare_fail(err, "start of the pass", bare.failed);
    for (size_t i = 0; i < bare.piece_count && bare.failed == UCS_OK; i++) {
        while (bare.outstanding >= KV_MEASURE_WINDOW && bare.failed == UCS_OK)
            turn(&bare);
        bare.headers[i] = i;
        ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                     UCP_OP_ATTR_FIELD_USER_DATA |
                                                     UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = UCP_AM_SEND_FLAG_RNDV,
                                     .cb.send = on_sent,
                                     .user_data = &bare};
        ucs_status_ptr_t request =
            ucp_am_send_nbx(bare.endpoint, AM_PIECE, &bare.headers[i], sizeof bare.headers[i],
                            memory + i * bare.piece_bytes, bare.piece_bytes, &param);
        if (UCS_PTR_IS_PTR(request))
            bare.outstanding++;
        else if (UCS_PTR_STATUS(request) != UCS_OK)
            bare.failed = UCS_PTR_STATUS(request);
    }
    /* the taker's last word; then its process may end before ours */
    if (!turn_until(&bare, &bare.gone, 3))
        return bare_fail(err, "pass", bare.failed);
    return STATUS_OK; /* no teardown: the process ends */
}

enum status ucx_bare_take(const struct kv_measure *measure, const char *device, int fd,
                          uint8_t *memory, double *seconds_out, struct err *err)
{
    struct bare bare;
    enum status status = bare_start(&bare, measure, device, fd, memory, err);
    if (status)
        return status;
    uint64_t begin_ns = clock_now_ns();
    go_send(&bare);
    if (!turn_until(&bare, &bare.received, bare.piece_count))
        return bare_fail(err, "pass", bare.failed);
    *seconds_out = 1e-9 * (double)(clock_now_ns() - begin_ns);
    go_send(&bare);
    /* the last acknowledgements are still to leave: the giver says when it has them */
    uint64_t until_ns = clock_now_ns() + NS_PER_S;
    struct pollfd other = {fd, POLLIN, 0};
    while (clock_now_ns() < until_ns && poll(&other, 1, 0) == 0)
        ucp_worker_progress(bare.worker);
    return STATUS_OK;
}
