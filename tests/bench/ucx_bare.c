/* The limit that bench_kv is held against: two processes and bare UCX, the same calls (active messages with rendezvous), the
 * same pieces and window, nothing else: no frames, no tables, no checksums. Both sides spin, or wait for the worker's event
 * descriptor when nothing moves (which is faster where others want the cores).
 *
 *     ucx_bare TRANSPORT PIECE_BYTES TOTAL_BYTES WINDOW spin|wait    prints GB/s (10^9) of one pass over the working set
 *
 * Owner: the main thread of each process. */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { AM_PIECE = 1, AM_GO = 2, ADDRESS_MAX = 4096 };

static ucp_worker_h worker;
static ucp_ep_h endpoint;
static uint8_t *memory;
static size_t piece_bytes, piece_count, done, outstanding, gone;
static int event_fd, waits;

static void check(ucs_status_t status, const char *what)
{
    if (status == UCS_OK)
        return;
    fprintf(stderr, "ucx_bare: %s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void turn(void)
{
    if (ucp_worker_progress(worker) || !waits || ucp_worker_arm(worker) != UCS_OK)
        return;
    struct pollfd wait = {event_fd, POLLIN, 0};
    poll(&wait, 1, 1000);
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    check(status, "send");
    outstanding--;
    ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data)
{
    check(status, "receive");
    done++;
    ucp_request_free(request);
}

static ucs_status_t on_piece(void *argument, const void *header, size_t header_bytes, void *data,
                             size_t bytes, const ucp_am_recv_param_t *param)
{
    uint64_t index;
    memcpy(&index, header, sizeof index);
    ucp_request_param_t receive = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
    };
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(worker, data, memory + index * piece_bytes, bytes, &receive);
    if (!UCS_PTR_IS_PTR(request)) {
        check(UCS_PTR_STATUS(request), "ucp_am_recv_data_nbx");
        done++;
    }
    return UCS_OK;
}

static ucs_status_t on_go(void *argument, const void *header, size_t header_bytes, void *data,
                          size_t bytes, const ucp_am_recv_param_t *param)
{
    gone++;
    return UCS_OK;
}

static void go_send(void)
{
    static const char word[8] = "go";
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER};
    ucs_status_ptr_t request = ucp_am_send_nbx(endpoint, AM_GO, NULL, 0, word, sizeof word, &param);
    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS)
        turn();
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
}

static void start(const char *transport, int fd)
{
    ucp_config_t *config;
    ucp_context_h context;
    check(ucp_config_read(NULL, NULL, &config), "config");
    int shm = strcmp(transport, "shm") == 0;
    check(ucp_config_modify(config, "TLS", shm ? "posix" : "tcp"), "TLS");
    if (shm) {
        check(ucp_config_modify(config, "MM_ERROR_HANDLING", "y"), "MM_ERROR_HANDLING");
    } else {
        check(ucp_config_modify(config, "NET_DEVICES", "lo"), "NET_DEVICES");
        check(ucp_config_modify(config, "PUT_ENABLE", "n"), "PUT_ENABLE");
        check(ucp_config_modify(config, "CONN_NB", "y"), "CONN_NB");
    }
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    check(ucp_init(&params, config, &context), "ucp_init");
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SINGLE};
    check(ucp_worker_create(context, &worker_params, &worker), "worker");
    check(ucp_worker_get_efd(worker, &event_fd), "event descriptor");
    for (unsigned id = AM_PIECE; id <= AM_GO; id++) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
            .id = id,
            .cb = id == AM_PIECE ? on_piece : on_go,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
        };
        check(ucp_worker_set_am_recv_handler(worker, &handler), "handler");
    }
    ucp_address_t *own;
    size_t bytes;
    uint8_t theirs[ADDRESS_MAX];
    check(ucp_worker_get_address(worker, &own, &bytes), "address");
    if (write(fd, own, bytes) != (ssize_t)bytes || read(fd, theirs, sizeof theirs) <= 0)
        exit(1);
    ucp_ep_params_t ep = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                          .address = (const ucp_address_t *)theirs,
                          .err_mode = UCP_ERR_HANDLING_MODE_PEER};
    check(ucp_ep_create(worker, &ep, &endpoint), "endpoint");
    go_send(); /* meet */
    while (gone < 1)
        turn();
}

static void give(size_t window)
{
    static uint64_t headers[1 << 16];
    while (gone < 2)
        turn();
    for (size_t i = 0; i < piece_count; i++) {
        while (outstanding >= window)
            turn();
        headers[i] = i;
        ucp_request_param_t param = {
            .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
            .flags = UCP_AM_SEND_FLAG_RNDV,
            .cb.send = on_sent,
        };
        ucs_status_ptr_t request =
            ucp_am_send_nbx(endpoint, AM_PIECE, &headers[i], sizeof headers[i],
                            memory + i * piece_bytes, piece_bytes, &param);
        if (UCS_PTR_IS_PTR(request))
            outstanding++;
        else
            check(UCS_PTR_STATUS(request), "ucp_am_send_nbx");
    }
    while (outstanding || gone < 3)
        turn();
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    waits = strcmp(argv[5], "wait") == 0;
    piece_bytes = strtoull(argv[2], NULL, 0);
    piece_count = strtoull(argv[3], NULL, 0) / piece_bytes;
    size_t bytes = piece_bytes * piece_count;
    if (piece_count == 0 || piece_count > 1 << 16)
        return 2;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return 1;
    pid_t child = fork();
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    memset(memory, child ? 0 : 7, bytes);
    start(argv[1], pair[child ? 0 : 1]);
    if (child == 0) {
        give(strtoull(argv[4], NULL, 0));
        _exit(0);
    }
    double begin = now();
    go_send();
    while (done < piece_count)
        turn();
    double seconds = now() - begin;
    go_send();
    if (memory[0] != 7 || memory[bytes - 1] != 7)
        return 1;
    printf("%.4f\n", 1e-9 * (double)bytes / seconds);
    fflush(stdout);
    while (waitpid(child, NULL, WNOHANG) == 0)
        ucp_worker_progress(worker); /* the last acknowledgements are still to leave */
    _exit(0);                        /* no teardown: this measures */
}
