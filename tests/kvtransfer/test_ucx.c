/* The hand-off over real UCX between two processes: this one and kv_peer, which is served, killed and frozen. What the
 * in-process tests say about order and time is not repeated; here it is whether the transport keeps its part: completions
 * exactly once, no late write, no leak, no death of the survivor. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <ucs/async/async_fwd.h>
#include <uct/api/uct.h>
#include <unistd.h>

#include "base/clock.h"
#include "kvtransfer/ucx_send.h"
#include "tests/kvtransfer/rig.h"
#include "tests/kvtransfer/ucx_rig.h"
#include "tests/test.h"

enum { LINE_BYTES = 16384 };

struct remote {
    pid_t pid;
    FILE *in;
    int out;
    char text[LINE_BYTES];
    size_t bytes;
    uint64_t incarnation;
    struct kv_link *link;
};

enum { PATIENCE_S = 150 };

static struct rig_node here;

static void here_start(enum xfer_transport transport)
{
    struct xfer_options options = {.transport = transport};
    static const struct rig_options rig = {.links = {.reopen_ns = 200 * NS_PER_MS}};
    rig_node_start(&here, NULL, &options, &rig, 500);
    rig_node_round(&here, clock_now_ns());
}

static void turn(void)
{
    rig_node_round(&here, clock_now_ns());
    usleep(50);
}

/* Rounds until `condition`. Nothing is measured by the limit: it ends a test that would hang. */
#define WAIT_FOR(condition)                                                      \
    do {                                                                         \
        uint64_t until_ns_ = clock_now_ns() + PATIENCE_S * NS_PER_S;             \
        bool met_;                                                               \
        while (!(met_ = (condition)) && clock_now_ns() < until_ns_)              \
            turn();                                                              \
        CHECK_MSG(met_, "waited %d s in vain: %s", (int)PATIENCE_S, #condition); \
    } while (0)

/* The next line that begins with `word`, others are dropped; false when none is there yet. */
static bool remote_line(struct remote *remote, const char *word, char *out)
{
    ssize_t count =
        read(remote->out, remote->text + remote->bytes, sizeof remote->text - 1 - remote->bytes);
    if (count > 0)
        remote->bytes += (size_t)count;
    remote->text[remote->bytes] = '\0';
    char *end;
    while ((end = strchr(remote->text, '\n'))) {
        size_t length = (size_t)(end - remote->text);
        bool found = strncmp(remote->text, word, strlen(word)) == 0;
        if (found) {
            memcpy(out, remote->text, length);
            out[length] = '\0';
        }
        remote->bytes -= length + 1;
        memmove(remote->text, end + 1, remote->bytes + 1);
        if (found)
            return true;
    }
    return false;
}

static void remote_start(struct remote *remote, const char *transport, uint64_t incarnation)
{
    int in[2], out[2];
    char number[32], line[LINE_BYTES], hex[LINE_BYTES];
    const char *path = getenv("KV_PEER");
    CHECK_MSG(path != NULL, "KV_PEER names the helper program");
    memset(remote, 0, sizeof *remote);
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    snprintf(number, sizeof number, "%llu", (unsigned long long)incarnation);
    remote->pid = fork();
    if (remote->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody frozen behind */
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execl(path, path, transport, number, NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    remote->in = fdopen(in[1], "w");
    remote->out = out[0];
    fcntl(remote->out, F_SETFL, O_NONBLOCK);
    remote->incarnation = incarnation;
    WAIT_FOR(remote_line(remote, "address", line));
    CHECK(sscanf(line, "address %*u %s", hex) == 1);
    remote->link = ucx_rig_link(&here, incarnation, hex);
    CHECK(remote->link != NULL);
    ucx_rig_print_address(&here, remote->in, "peer");
    fflush(remote->in);
    WAIT_FOR(kv_link_info(remote->link).state == KV_LINK_UP);
}

#define remote_say(remote, ...)             \
    do {                                    \
        fprintf((remote)->in, __VA_ARGS__); \
        fflush((remote)->in);               \
    } while (0)

static void remote_reap(struct remote *remote)
{
    fclose(remote->in);
    int status;
    WAIT_FOR(waitpid(remote->pid, &status, WNOHANG) == remote->pid);
    close(remote->out);
}

static void remote_kill(struct remote *remote)
{
    kill(remote->pid, SIGKILL);
    CHECK(waitpid(remote->pid, NULL, 0) == remote->pid);
    fclose(remote->in);
    close(remote->out);
}

static void take_from(struct rig_take *take, struct remote *remote, uint64_t id, uint64_t number,
                      unsigned blocks, unsigned runs, unsigned bytes)
{
    remote_say(remote, "give %llu %llu %u %u %u\n", (unsigned long long)id,
               (unsigned long long)number, blocks, runs, bytes);
    char line[LINE_BYTES];
    WAIT_FOR(remote_line(remote, "opened", line)); /* it may take its time to fill memory */
    *take = (struct rig_take){0};
    rig_take_start(take, &here, remote->link, rig_key(id, number),
                   rig_shape(blocks, (uint16_t)runs), bytes);
    CHECK_INT(take->begun, STATUS_OK);
}

static void serve_both_ways(struct remote *remote, uint64_t id, uint64_t number)
{
    char line[LINE_BYTES];
    struct rig_take take;
    take_from(&take, remote, id, number, 8, 4, 65536);
    WAIT_FOR(take.released);
    CHECK_INT(take.status, STATUS_OK);
    CHECK(rig_take_equal(&take));
    CHECK_INT(take.token_id, id);
    WAIT_FOR(remote_line(remote, "given", line));
    struct rig_give give;
    rig_give_start(&give, &here, rig_key(id + 1, number), rig_shape(8, 4), 65536);
    rig_give_all(&give, 9);
    remote_say(remote, "take %llu %llu 8 4 65536\n", (unsigned long long)id + 1,
               (unsigned long long)number);
    WAIT_FOR(remote_line(remote, "taken", line));
    unsigned long long taken;
    int status, equal;
    CHECK(sscanf(line, "taken %llu %d %d", &taken, &status, &equal) == 3);
    CHECK(taken == id + 1);
    CHECK_INT(status, STATUS_OK);
    CHECK_INT(equal, 1);
    WAIT_FOR(give.released);
    CHECK_INT(give.status, STATUS_OK);
    rig_give_finish(&give);
    rig_take_finish(&take);
}

static void transfers_over(const char *transport)
{
    struct remote remote;
    here_start(ucx_rig_transport(transport));
    remote_start(&remote, transport, 600);
    for (uint64_t i = 0; i < 10; i++)
        serve_both_ways(&remote, 100 + 2 * i, 1 + i);
    CHECK(kv_link_info(remote.link).outstanding == 0);
    remote_reap(&remote);
    rig_node_stop(&here);
}

/* kvtransfer/ucx_send.c knows where one version keeps what it mends, on one kind of processor. */
#if defined(__x86_64__)
#define SKIP_WHERE_UCX_IS_NOT_KNOWN()                                          \
    do {                                                                       \
        unsigned major_, minor_, release_;                                     \
        ucp_get_version(&major_, &minor_, &release_);                          \
        if (major_ != 1 || minor_ != 13)                                       \
            TEST_SKIP("nothing is mended in this UCX, %u.%u", major_, minor_); \
    } while (0)
#else
#define SKIP_WHERE_UCX_IS_NOT_KNOWN() TEST_SKIP("what is mended is known for x86-64 alone")
#endif

/* What UCX 1.13 ends the process for without kvtransfer/ucx_send.c: its answer to a peer that has died meanwhile. */
void ucp_request_send_state_ff(void *request, ucs_status_t status);

TEST(ucx, an_answer_to_the_dead_is_thrown_away)
{
    SKIP_WHERE_UCX_IS_NOT_KNOWN();
    static void *endpoint[64];
    void *function = dlsym(RTLD_DEFAULT, "ucp_wireup_msg_progress"), *to = endpoint;
    CHECK(function != NULL);
    for (uint8_t kind = 0; kind < 6; kind++) { /* all that there are */
        uint8_t *request = calloc(1, 1024);
        void *message = malloc(16);
        memcpy(request + 0x18, &to, sizeof to);
        memcpy(request + 0x20, &message, sizeof message);
        memcpy(request + 0xe0, &function, sizeof function);
        request[0xa8] = kind;
        ucp_request_send_state_ff(request, UCS_ERR_ENDPOINT_TIMEOUT); /* frees both */
    }
}

/* --- an endpoint that is made while a message is handled, with more behind it --- */

struct tcp_end {
    ucs_async_context_t *async;
    uct_worker_h worker;
    uct_md_h md;
    uct_iface_h iface;
    uct_device_addr_t *device;
    uct_iface_addr_t *address;
    const struct tcp_end *answers; /* the other end, to which the first message makes an endpoint */
    uct_ep_h ep;
    unsigned messages;
};

static void tcp_end_connect(struct tcp_end *end, const struct tcp_end *to)
{
    uct_ep_params_t params = {.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR |
                                            UCT_EP_PARAM_FIELD_IFACE_ADDR,
                              .iface = end->iface,
                              .dev_addr = to->device,
                              .iface_addr = to->address};
    CHECK_INT(uct_ep_create(&params, &end->ep), UCS_OK);
}

static ucs_status_t tcp_end_message(void *context, void *data, size_t bytes, unsigned flags)
{
    struct tcp_end *end = context;
    if (end->messages++ == 0 && end->answers)
        tcp_end_connect(end, end->answers);
    return UCS_OK;
}

static uct_component_h tcp_component(void)
{
    uct_component_h *components, found = NULL;
    unsigned count;
    CHECK_INT(uct_query_components(&components, &count), UCS_OK);
    for (unsigned i = 0; i < count; i++) {
        uct_component_attr_t attr = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};
        CHECK_INT(uct_component_query(components[i], &attr), UCS_OK);
        if (strcmp(attr.name, "tcp") == 0)
            found = components[i];
    }
    uct_release_component_list(components);
    CHECK(found != NULL);
    return found;
}

static void tcp_end_open(struct tcp_end *end)
{
    *end = (struct tcp_end){0};
    uct_component_h component = tcp_component();
    uct_md_config_t *md_config;
    uct_iface_config_t *config;
    uct_iface_attr_t attr;
    uct_iface_params_t params = {.field_mask =
                                     UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
                                 .open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
                                 .mode.device = {.tl_name = "tcp", .dev_name = "lo"}};
    CHECK_INT(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &end->async), UCS_OK);
    CHECK_INT(uct_worker_create(end->async, UCS_THREAD_MODE_SINGLE, &end->worker), UCS_OK);
    CHECK_INT(uct_md_config_read(component, NULL, NULL, &md_config), UCS_OK);
    CHECK_INT(uct_md_open(component, "tcp", md_config, &end->md), UCS_OK);
    uct_config_release(md_config);
    CHECK_INT(uct_md_iface_config_read(end->md, "tcp", NULL, NULL, &config), UCS_OK);
    CHECK_INT(uct_iface_open(end->md, end->worker, &params, config, &end->iface), UCS_OK);
    uct_config_release(config);
    CHECK_INT(uct_iface_query(end->iface, &attr), UCS_OK);
    end->device = calloc(1, attr.device_addr_len);
    end->address = calloc(1, attr.iface_addr_len);
    CHECK_INT(uct_iface_get_device_address(end->iface, end->device), UCS_OK);
    CHECK_INT(uct_iface_get_address(end->iface, end->address), UCS_OK);
    CHECK_INT(uct_iface_set_am_handler(end->iface, 1, tcp_end_message, end, 0), UCS_OK);
    uct_iface_progress_enable(end->iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
}

static void tcp_end_close(struct tcp_end *end)
{
    uct_ep_destroy(end->ep);
    uct_iface_close(end->iface);
    uct_md_close(end->md);
    uct_worker_destroy(end->worker);
    ucs_async_context_destroy(end->async);
    free(end->device);
    free(end->address);
}

/* Both ends' progress until `sender` has sent so many messages more; what it has sent is not read meanwhile but while it connects. */
static void tcp_end_send(struct tcp_end *sender, struct tcp_end *receiver, unsigned count)
{
    uint64_t until_ns = clock_now_ns() + PATIENCE_S * NS_PER_S;
    for (unsigned sent = 0; sent < count && clock_now_ns() < until_ns;) {
        ucs_status_t status = uct_ep_am_short(sender->ep, 1, sent, "eight by", 8);
        sent += status == UCS_OK;
        CHECK(status == UCS_OK || status == UCS_ERR_NO_RESOURCE);
        if (sent == 0) {
            uct_worker_progress(sender->worker);
            uct_worker_progress(receiver->worker);
        }
    }
}

TEST(ucx, an_endpoint_made_while_messages_are_read_takes_them_over)
{
    SKIP_WHERE_UCX_IS_NOT_KNOWN();
    struct tcp_end here_end, there;
    tcp_end_open(&here_end);
    tcp_end_open(&there);
    here_end.answers = &there;
    tcp_end_connect(&there, &here_end);
    tcp_end_send(&there, &here_end, 5);
    uint64_t until_ns = clock_now_ns() + PATIENCE_S * NS_PER_S;
    while (here_end.messages < 5 && clock_now_ns() < until_ns) {
        uct_worker_progress(here_end.worker); /* the first read has them all */
        uct_worker_progress(there.worker);
    }
    CHECK_INT(here_end.messages, 5);
    tcp_end_send(&here_end, &there, 3);
    while (there.messages < 3 && clock_now_ns() < until_ns)
        uct_worker_progress(there.worker);
    CHECK_INT(there.messages, 3);
    tcp_end_close(&here_end);
    tcp_end_close(&there);
}

TEST(ucx, transfers_both_ways_over_tcp)
{
    transfers_over("tcp");
}

TEST(ucx, transfers_both_ways_over_shared_memory)
{
    transfers_over("shm");
}

/* Both sides after 200 transfers and after 1,000 more. */
TEST(ucx, a_thousand_transfers_leave_no_descriptor_and_no_memory)
{
    struct remote remote;
    char line[LINE_BYTES];
    unsigned fds[2], rss[2], remote_fds[2] = {0}, remote_rss[2] = {0};
    here_start(XFER_TRANSPORT_TCP);
    remote_start(&remote, "tcp", 600);
    uint64_t number = 0;
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < (round ? 1000 : 200); i++) {
            struct rig_take take;
            number++;
            take_from(&take, &remote, 100 + number, number, 4, 2, 32768);
            WAIT_FOR(take.released);
            CHECK_INT(take.status, STATUS_OK);
            CHECK(rig_take_equal(&take));
            rig_take_finish(&take);
            WAIT_FOR(remote_line(&remote, "given", line)); /* DONE has come there */
        }
        unsigned live, draining;
        remote_say(&remote, "state\n");
        WAIT_FOR(remote_line(&remote, "state", line));
        CHECK(sscanf(line, "state %u %u %*u %*u %u %u", &live, &draining, &remote_fds[round],
                     &remote_rss[round]) == 4);
        CHECK_INT(live + draining, 0);
        fds[round] = ucx_rig_fds();
        rss[round] = ucx_rig_rss_kb();
    }
    CHECK_INT(fds[1], fds[0]);
    CHECK_INT(remote_fds[1], remote_fds[0]);
    printf("# resident KB after 200 and 1,200 transfers: %u, %u; peer %u, %u\n", rss[0], rss[1],
           remote_rss[0], remote_rss[1]);
#ifndef BATON_SANITIZED /* a sanitizer keeps freed memory for a while */
    CHECK(rss[1] <= rss[0] + 2048);
    CHECK(remote_rss[1] <= remote_rss[0] + 2048);
#endif
    remote_reap(&remote);
    rig_node_stop(&here);
}

TEST(ucx, kill_of_the_giver_in_mid_transfer_ends_it_at_once_and_its_successor_serves)
{
    here_start(XFER_TRANSPORT_TCP);
    for (uint64_t i = 0; i < 5; i++) {
        struct remote remote;
        remote_start(&remote, "tcp", 600 + i);
        struct rig_take take;
        take_from(&take, &remote, 100 + i, 1, 64, 4, 262144);
        WAIT_FOR(take.received >= 3 + 20 * i);
        CHECK_INT(take.ended, 0);
        remote_kill(&remote);
        WAIT_FOR(take.released);
        CHECK_INT(take.ended, 1);
        CHECK_INT(take.status, STATUS_CLOSED); /* and not TIMEOUT, nor 4 s without a completion */
        CHECK_INT(kv_links_counters(here.links)->links_stalled, 0);
        CHECK(rig_take_untouched(&take));
        CHECK_INT(kv_sink_ending(here.sink), 0);
        kv_link_close(remote.link);
        rig_take_finish(&take);
    }
    rig_node_stop(&here);
}

TEST(ucx, kill_of_the_taker_in_mid_transfer_frees_the_giver)
{
    here_start(XFER_TRANSPORT_TCP);
    for (uint64_t i = 0; i < 5; i++) {
        struct remote remote;
        struct rig_give give;
        remote_start(&remote, "tcp", 600 + i);
        uint64_t before = kv_links_counters(here.links)->pieces_sent;
        rig_give_start(&give, &here, rig_key(100 + i, 1 + i), rig_shape(64, 4), 262144);
        rig_give_all(&give, 9);
        remote_say(&remote, "take %llu %llu 64 4 262144\n", 100ull + i, 1ull + i);
        WAIT_FOR(kv_links_counters(here.links)->pieces_sent >= before + 3 + 20 * i);
        CHECK_INT(give.ended, 0);
        remote_kill(&remote);
        WAIT_FOR(give.released);
        CHECK_INT(give.ended, 1);
        CHECK_INT(give.status, STATUS_CLOSED);
        CHECK_INT(kv_links_counters(here.links)->links_stalled, 0);
        kv_link_close(remote.link);
        rig_give_finish(&give);
    }
    rig_node_stop(&here);
}

/* A frozen giver: the taker gives up, force-closes after 4 s if something is outstanding, and nothing is written when the
 * giver wakes. */
static void giver_frozen(const char *transport)
{
    struct remote remote;
    here_start(ucx_rig_transport(transport));
    remote_start(&remote, transport, 600);
    struct rig_take take;
    take_from(&take, &remote, 100, 1, 64, 4, 262144);
    WAIT_FOR(take.received >= 20);
    kill(remote.pid, SIGSTOP);
    uint64_t frozen_ns = clock_now_ns();
    WAIT_FOR(take.ended);
    CHECK_INT(take.status, STATUS_TIMEOUT);
    CHECK(clock_now_ns() - frozen_ns >= 1400 * NS_PER_MS);
    WAIT_FOR(take.released);
    CHECK(rig_take_untouched(&take));
    kill(remote.pid, SIGCONT);
    uint64_t woken_ns = clock_now_ns();
    while (clock_now_ns() - woken_ns < 1500 * NS_PER_MS)
        turn();
    CHECK(rig_take_untouched(&take));
    WAIT_FOR(kv_link_info(remote.link).state == KV_LINK_UP);
    serve_both_ways(&remote, 200, 2);
    rig_take_finish(&take);
    remote_reap(&remote);
    rig_node_stop(&here);
}

TEST(ucx, a_frozen_giver_over_tcp_writes_nothing_late_and_serves_after_it_woke)
{
    giver_frozen("tcp");
}

TEST(ucx, a_frozen_taker_is_closed_after_four_seconds_and_served_after_it_woke)
{
    struct remote remote;
    struct rig_give give;
    here_start(XFER_TRANSPORT_TCP);
    remote_start(&remote, "tcp", 600);
    rig_give_start(&give, &here, rig_key(100, 1), rig_shape(64, 4), 262144);
    rig_give_all(&give, 9);
    remote_say(&remote, "take 100 1 64 4 262144\n");
    WAIT_FOR(kv_links_counters(here.links)->pieces_sent >= 20);
    kill(remote.pid, SIGSTOP);
    uint64_t frozen_ns = clock_now_ns();
    WAIT_FOR(give.released);
    CHECK(clock_now_ns() - frozen_ns >= 3500 * NS_PER_MS);
    CHECK_INT(give.status, STATUS_CLOSED);
    CHECK_INT(kv_links_counters(here.links)->links_stalled, 1);
    kill(remote.pid, SIGCONT);
    WAIT_FOR(kv_link_info(remote.link).state == KV_LINK_UP);
    char line[LINE_BYTES];
    WAIT_FOR(remote_line(&remote, "taken", line));
    serve_both_ways(&remote, 200, 2);
    rig_give_finish(&give);
    remote_reap(&remote);
    rig_node_stop(&here);
}

/* --- endpoints that only one side has had --- */

static struct rig_node there; /* in this process too */

static void turn_both(double seconds)
{
    for (uint64_t end_ns = clock_now_ns() + (uint64_t)(seconds * 1e9); clock_now_ns() < end_ns;) {
        rig_node_round(&there, clock_now_ns());
        turn();
    }
}

/* `count` calls that are not answered, for nobody there knows of this side yet. */
static void calls_in_vain(struct rig_node *from, const struct rig_node *to, unsigned count)
{
    size_t bytes;
    const uint8_t *address = xfer_address(to->xfer, &bytes);
    for (unsigned i = 0; i < count; i++) {
        struct err err = ERR_INIT;
        struct xfer_peer *peer;
        uint32_t number = 1;
        CHECK_INT(xfer_peer_open(from->xfer, address, bytes, &number, NULL, &peer, &err),
                  STATUS_OK);
        turn_both(0.02);
        xfer_peer_close(peer);
        turn_both(0.02);
    }
}

/* Both know of each other and meet; then the link stays up, though UCX asks each second whether the other end is there. */
static void both_meet_and_stay(void)
{
    struct kv_link *a = rig_link(&here, &there), *b = rig_link(&there, &here);
    for (uint64_t end_ns = clock_now_ns() + PATIENCE_S * NS_PER_S; clock_now_ns() < end_ns;) {
        turn_both(0.01);
        if (kv_link_info(a).state == KV_LINK_UP && kv_link_info(b).state == KV_LINK_UP)
            break;
    }
    CHECK_INT(kv_link_info(a).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(b).state, KV_LINK_UP);
    CHECK_INT(kv_link_info(a).epoch, kv_link_info(b).epoch);
    unsigned lost = here.changes[KV_LINK_DOWN] + there.changes[KV_LINK_DOWN];
    turn_both(1.6);
    CHECK_INT(here.changes[KV_LINK_DOWN] + there.changes[KV_LINK_DOWN] - lost, 0);
}

/* One side begins anew, and the other hears of it a little later. */
static void new_life(uint64_t incarnation)
{
    struct kv_link *link = kv_link_find(there.links, here.incarnation);
    kv_links_renew(here.links, here.incarnation = incarnation);
    turn_both(0.1);
    kv_link_close(link);
    turn_both(0.1);
}

TEST(ucx, who_has_called_in_vain_stays_together_with_whom_it_meets)
{
    static const struct rig_options rig = {.links = {.reopen_ns = 200 * NS_PER_MS}};
    struct xfer_options options = {.transport = XFER_TRANSPORT_TCP};
    rig_node_start(&here, NULL, &options, &rig, 500);
    rig_node_start(&there, NULL, &options, &rig, 600);
    calls_in_vain(&here, &there, 1);
    both_meet_and_stay();
    new_life(501); /* it is the one that calls, as before */
    both_meet_and_stay();
    new_life(701); /* now it is called */
    both_meet_and_stay();
    new_life(502);
    calls_in_vain(&there, &here, 70); /* more than are caught up with at once */
    both_meet_and_stay();
    rig_node_stop(&here);
    rig_node_stop(&there);
}

/* --- starting --- */

static void ignore_frame(void *context, const uint8_t *frame, size_t bytes)
{
}
static void ignore_piece(void *context, const uint8_t *header, size_t header_bytes,
                         size_t payload_bytes, struct xfer_incoming *incoming)
{
}
static void ignore_failed(void *context, void *peer_context, struct xfer_peer *peer,
                          enum status status)
{
}
static void ignore_closed(void *context, void *peer_context, struct xfer_peer *peer)
{
}
static const struct xfer_handler ignore = {NULL, ignore_frame, ignore_piece, ignore_failed,
                                           ignore_closed};

TEST(ucx, a_required_transport_that_is_absent_is_refused_by_name)
{
    struct err err = ERR_INIT;
    struct xfer *xfer;
    struct xfer_options options = {.transport = XFER_TRANSPORT_TCP, .interface = "nosuch0"};
    CHECK_INT(xfer_ucx_create(&options, &ignore, &xfer, &err), STATUS_CONFIG);
    CHECK_STR(err.message, "kv_interface: no network device \"nosuch0\"");
    if (access("/sys/class/infiniband", F_OK) != 0) {
        options = (struct xfer_options){.transport = XFER_TRANSPORT_RDMA};
        CHECK_INT(xfer_ucx_create(&options, &ignore, &xfer, &err), STATUS_CONFIG);
        CHECK_STR(err.message, "transport: rdma is required, but no RDMA device on this host "
                               "(/sys/class/infiniband)");
    }
}

TEST(ucx, it_says_what_carries)
{
    struct err err = ERR_INIT;
    struct xfer *xfer;
    struct xfer_options options = {.transport = XFER_TRANSPORT_AUTO};
    CHECK_INT(xfer_ucx_create(&options, &ignore, &xfer, &err), STATUS_OK);
    CHECK_STR(xfer_describe(xfer), "tcp/lo");
    CHECK(xfer_event_fd(xfer) >= 0);
    xfer_destroy(xfer);
    options.transport = XFER_TRANSPORT_SHM;
    CHECK_INT(xfer_ucx_create(&options, &ignore, &xfer, &err), STATUS_OK);
    CHECK_STR(xfer_describe(xfer), "shm/memory");
    xfer_destroy(xfer);
}

TEST(ucx, a_damaged_address_is_refused)
{
    struct err err = ERR_INIT;
    struct xfer *xfer;
    struct xfer_options options = {.transport = XFER_TRANSPORT_TCP};
    CHECK_INT(xfer_ucx_create(&options, &ignore, &xfer, &err), STATUS_OK);
    size_t bytes;
    const uint8_t *address = xfer_address(xfer, &bytes);
    uint8_t copy[XFER_ADDRESS_BYTES_MAX];
    struct xfer_peer *peer;
    uint32_t number = 1;
    for (size_t i = 0; i < bytes; i++) {
        memcpy(copy, address, bytes);
        copy[i] ^= 0x10;
        if (i == 4 || i == 5) /* the patch level and the unused byte of the version may differ */
            continue;
        CHECK_INT(xfer_peer_open(xfer, copy, bytes, &number, NULL, &peer, &err), STATUS_INVALID);
        CHECK_INT(xfer_peer_open(xfer, address, i, &number, NULL, &peer, &err), STATUS_INVALID);
    }
    xfer_destroy(xfer);
}

/* --- sending on a connection that is over --- */

TEST(ucx, within_progress_a_failed_send_looks_like_a_sent_one)
{
    int ends[2];
    char text[10] = "ten bytes", got[20];
    struct iovec parts[] = {{text, 4}, {text + 4, 6}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK_INT(sendmsg(ends[0], &message, MSG_NOSIGNAL), 10); /* what can be sent is sent */
    CHECK_INT(recv(ends[1], got, sizeof got, 0), 10);
    CHECK_STR(got, text);
    close(ends[1]);
    CHECK(send(ends[0], text, sizeof text, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    CHECK(sendmsg(ends[0], &message, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    ucx_send_forgive_begin();
    CHECK_INT(send(ends[0], text, sizeof text, MSG_NOSIGNAL), 10);
    CHECK_INT(sendmsg(ends[0], &message, MSG_NOSIGNAL), 10);
    CHECK(sendmsg(-1, &message, MSG_NOSIGNAL) == -1 && errno == EBADF); /* other errors stay */
    ucx_send_forgive_end();
    CHECK(sendmsg(ends[0], &message, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    close(ends[0]);
}

/* --- the listener's port --- */

/* A port on which a connection of an earlier life waits out its minute. */
static unsigned port_left_behind(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof at;
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0),
        client = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0 &&
          getsockname(listener, (struct sockaddr *)&at, &bytes) == 0 &&
          connect(client, (struct sockaddr *)&at, sizeof at) == 0);
    close(accept(listener, NULL, NULL)); /* who closes first waits */
    close(listener);
    close(client);
    int another = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(another, (struct sockaddr *)&at, sizeof at) != 0); /* the test can fail */
    close(another);
    return ntohs(at.sin_port);
}

TEST(ucx, a_new_life_has_the_port_of_the_old_one)
{
    struct err err = ERR_INIT;
    struct xfer *xfer, *second;
    char range[16];
    unsigned port = port_left_behind();
    snprintf(range, sizeof range, "%u-%u", port, port);
    struct xfer_options options = {.transport = XFER_TRANSPORT_TCP, .port_range = range};
    CHECK_MSG(!xfer_ucx_create(&options, &ignore, &xfer, &err), "%s", err.message);
    /* but while somebody listens there, nobody else does */
    CHECK_INT(xfer_ucx_create(&options, &ignore, &second, &err), STATUS_IN_USE);
    CHECK_MSG(strstr(err.message, range) || strstr(err.message, "in use"), "%s", err.message);
    xfer_destroy(xfer);
}

/* --- strangers --- */

static unsigned listening_port(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        int listening = 0;
        socklen_t bytes = sizeof listening;
        struct sockaddr_in name;
        socklen_t name_bytes = sizeof name;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) == 0 && listening &&
            getsockname(fd, (struct sockaddr *)&name, &name_bytes) == 0 &&
            name.sin_family == AF_INET)
            return ntohs(name.sin_port);
    }
    return 0;
}

/* 1 connected, 0 not within 300 ms. */
static int stranger_connects(unsigned port, int *fd_out)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    for (unsigned i = 0; i < 60; i++) {
        int error = 0;
        socklen_t bytes = sizeof error;
        struct sockaddr_in name;
        socklen_t name_bytes = sizeof name;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
        if (!error && getpeername(fd, (struct sockaddr *)&name, &name_bytes) == 0) {
            *fd_out = fd;
            return 1;
        }
        usleep(5000);
    }
    close(fd);
    return 0;
}

TEST(ucx, a_stranger_is_kept_off_the_listener_but_in_the_announced_moment)
{
    struct err err = ERR_INIT;
    struct xfer *xfer;
    struct xfer_options options = {.transport = XFER_TRANSPORT_TCP};
    int fd;
    CHECK_INT(xfer_ucx_create(&options, &ignore, &xfer, &err), STATUS_OK);
    unsigned port = listening_port();
    CHECK(port != 0);
    CHECK_INT(stranger_connects(port, &fd), 1); /* without the filter: the test can fail */
    close(fd);
    xfer_destroy(xfer);

    options.filter = true;
    CHECK_INT(xfer_ucx_create(&options, &ignore, &xfer, &err), STATUS_OK);
    port = listening_port();
    CHECK(port != 0);
    CHECK_INT(stranger_connects(port, &fd), 0);
    struct sockaddr_in loopback = {.sin_family = AF_INET};
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct sockaddr_in other = loopback;
    other.sin_addr.s_addr = htonl(0x7f000002);
    CHECK_INT(xfer_expect(xfer, (struct sockaddr *)&other, 0, 1000), STATUS_OK);
    CHECK_INT(stranger_connects(port, &fd), 0); /* somebody else is expected */
    CHECK_INT(xfer_expect(xfer, (struct sockaddr *)&loopback, 0, 2000), STATUS_OK);
    CHECK_INT(stranger_connects(port, &fd), 1);
    close(fd);
    xfer_expect_tick(xfer, 2000);
    CHECK_INT(stranger_connects(port, &fd), 0);
    for (unsigned i = 0; i < 100; i++)
        xfer_progress(xfer);
    xfer_destroy(xfer);
}
