/* See measure.h. */
#include "kvtransfer/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/huge.h"
#include "base/loop.h"
#include "kvtransfer/sink.h"
#include "kvtransfer/ucx_device.h"

enum { FILL = 7 };
static const uint64_t patience_ns = 60 * NS_PER_S;
static const struct kv_key key = {1, 1, {1, 1}, 1};

/* --- words between the two --- */

static enum status gone(struct err *err)
{
    return err_set(err, STATUS_CLOSED, "the other side has gone%s%s", errno ? ": " : "",
                   errno ? strerror(errno) : "");
}

static enum status send_all(int fd, const void *data, size_t bytes, struct err *err)
{
    for (size_t at = 0; at < bytes;) {
        errno = 0;
        ssize_t count = send(fd, (const uint8_t *)data + at, bytes - at, MSG_NOSIGNAL);
        if (count <= 0 && errno != EINTR)
            return gone(err);
        at += count > 0 ? (size_t)count : 0;
    }
    return STATUS_OK;
}

static enum status receive_all(int fd, void *data, size_t bytes, struct err *err)
{
    for (size_t at = 0; at < bytes;) {
        errno = 0;
        struct pollfd wait = {fd, POLLIN, 0};
        if (poll(&wait, 1, (int)(patience_ns / NS_PER_MS)) == 0)
            return err_set(err, STATUS_TIMEOUT, "the other side says nothing");
        ssize_t count = recv(fd, (uint8_t *)data + at, bytes - at, 0);
        if (count <= 0 && errno != EINTR)
            return gone(err);
        at += count > 0 ? (size_t)count : 0;
    }
    return STATUS_OK;
}

enum status kv_measure_exchange(int fd, const void *own, size_t own_bytes, void *theirs,
                                size_t theirs_max, size_t *theirs_bytes_out, struct err *err)
{
    uint32_t length = (uint32_t)own_bytes;
    enum status status = send_all(fd, &length, sizeof length, err);
    if (!status)
        status = send_all(fd, own, own_bytes, err);
    if (!status)
        status = receive_all(fd, &length, sizeof length, err);
    if (!status && (length == 0 || length > theirs_max))
        status =
            err_set(err, STATUS_PROTOCOL, "the other side says no address but %u bytes", length);
    if (!status)
        status = receive_all(fd, theirs, length, err);
    if (!status)
        *theirs_bytes_out = length;
    return status;
}

enum status kv_measure_say(int fd, char word, struct err *err)
{
    return send_all(fd, &word, 1, err);
}

enum status kv_measure_hear(int fd, char word, struct err *err)
{
    char heard;
    enum status status = receive_all(fd, &heard, 1, err);
    if (!status && heard != word)
        status = err_set(err, STATUS_PROTOCOL, "the other side says something else");
    return status;
}

/* --- one end --- */

struct end {
    struct loop *loop;
    struct kv_links *links;
    struct kv_source *source;
    struct kv_sink *sink;
    struct kv_link *link;
    size_t piece_bytes;
    uint8_t *memory;
    bool up, ended, released;
    enum status status;
};

static void on_link(void *context, struct kv_link *link, enum kv_link_state state, enum status why)
{
    ((struct end *)context)->up = state == KV_LINK_UP;
}

static void on_given(void *context, void *user, enum status status)
{
    ((struct end *)context)->status = status;
    ((struct end *)context)->ended = true;
}

static void on_released(void *context, void *user)
{
    ((struct end *)context)->released = true;
}

static void *on_memory(void *context, void *user, struct kv_piece piece, size_t *bytes_out)
{
    struct end *end = context;
    *bytes_out = end->piece_bytes;
    return end->memory + piece.block * end->piece_bytes;
}

/* Here and now: what has just come lies in the cache, where a checksum is several times as fast as from memory, and both cores
 * of a small machine are at work already. */
static void on_piece(void *context, void *user, uint64_t transfer, struct kv_piece piece,
                     void *memory, size_t bytes, uint64_t checksum)
{
    kv_sink_piece_verified(((struct end *)context)->sink, transfer, piece,
                           kv_checksum(memory, bytes) == checksum);
}

static void on_taken(void *context, void *user, const struct kv_sink_result *result)
{
    struct end *end = context;
    end->status = result->status;
    end->ended = true;
}

static bool loop_until(struct end *end, const bool *flag)
{
    uint64_t until_ns = clock_now_ns() + patience_ns;
    while (!*flag && clock_now_ns() < until_ns)
        loop_round(end->loop, NS_PER_S);
    return *flag;
}

static enum status end_open(struct end *end, const struct kv_measure *measure, uint64_t incarnation,
                            struct xfer **xfer_out, struct err *err)
{
    const struct kv_links_options links_options = {
        .links_max = 2, .window_max = KV_MEASURE_WINDOW, .wait_ns = KV_WAIT_NS};
    const struct kv_links_events links_events = {end, on_link};
    const struct kv_source_options source_options = {.transfers_max = 1,
                                                     .pieces_max = KV_MEASURE_PIECES_MAX};
    const struct kv_source_events source_events = {
        .context = end, .ended = on_given, .released = on_released};
    const struct kv_sink_options sink_options = {.transfers_max = 1,
                                                 .pieces_max = KV_MEASURE_PIECES_MAX};
    const struct kv_sink_events sink_events = {end, on_memory, on_piece, on_taken, on_released};
    const struct xfer_options xfer_options = {.transport = measure->transport,
                                              .interface = measure->interface,
                                              .port_range = measure->port_range};
    enum status status = loop_create(&end->loop, err);
    if (!status)
        status = kv_links_create(&links_options, &links_events, incarnation, &end->links, err);
    if (status)
        return status;
    struct xfer_handler handler = kv_links_handler(end->links);
    status = xfer_ucx_create(&xfer_options, &handler, xfer_out, err);
    if (status)
        return status;
    kv_links_start(end->links, *xfer_out);
    kv_links_set_router(end->links, key.router_incarnation);
    status = kv_source_create(end->links, &source_options, &source_events, &end->source, err);
    if (!status)
        status = kv_sink_create(end->links, &sink_options, &sink_events, &end->sink, err);
    if (!status)
        status = kv_links_attach(end->links, end->loop, err);
    return status;
}

/* The giver is 2, the taker 1. */
static enum status end_start(struct end *end, const struct kv_measure *measure,
                             uint64_t incarnation, int fd, struct err *err)
{
    struct xfer *xfer;
    enum status status = end_open(end, measure, incarnation, &xfer, err);
    if (status)
        return status;
    uint8_t theirs[XFER_ADDRESS_BYTES_MAX];
    size_t own_bytes, bytes;
    const uint8_t *own = xfer_address(xfer, &own_bytes);
    status = kv_measure_exchange(fd, own, own_bytes, theirs, sizeof theirs, &bytes, err);
    if (status)
        return status;
    const struct kv_link_options options = {.incarnation = 3 - incarnation,
                                            .wire = WIRE_NEWEST,
                                            .address = theirs,
                                            .address_bytes = bytes};
    status = kv_link_open(end->links, &options, &end->link, err);
    if (!status && !loop_until(end, &end->up))
        status = err_set(err, STATUS_TIMEOUT, "the two did not meet over %s", xfer_describe(xfer));
    return status;
}

static void end_stop(struct end *end)
{
    if (end->links) {
        kv_links_detach(end->links);
        kv_links_destroy(end->links);
    }
    kv_source_destroy(end->source);
    kv_sink_destroy(end->sink);
    loop_destroy(end->loop);
}

static enum status give(struct end *end, uint32_t count, int fd, struct err *err)
{
    const struct kv_shape shape = {1, {{count, 1, 1}}};
    uint64_t transfer;
    enum status status = kv_source_open(end->source, &key, &shape, NULL, &transfer);
    if (status)
        return err_set(err, status, "transfer: %s", status_text(status));
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *data = end->memory + i * end->piece_bytes;
        const struct kv_ready_piece ready = {
            {i, 0, 0}, data, end->piece_bytes, kv_checksum(data, end->piece_bytes)};
        kv_source_piece_ready(end->source, transfer, &ready);
    }
    const struct kv_first first = {.token_id = 1};
    kv_source_computed(end->source, transfer);
    kv_source_first(end->source, transfer, &first);
    status = kv_measure_say(fd, 'r', err);
    if (!status && !loop_until(end, &end->released))
        status = err_set(err, STATUS_TIMEOUT, "the transfer did not end");
    if (!status && end->status)
        status = err_set(err, end->status, "the transfer ended: %s", status_text(end->status));
    return status;
}

static enum status take(struct end *end, uint32_t count, int fd, double *seconds_out,
                        struct err *err)
{
    struct pollfd ready = {fd, POLLIN, 0};
    for (uint64_t until_ns = clock_now_ns() + patience_ns;
         poll(&ready, 1, 0) == 0 && clock_now_ns() < until_ns;)
        loop_round(end->loop,
                   NS_PER_MS); /* the link wants its words while the giver fills its table */
    enum status status = kv_measure_hear(fd, 'r', err);
    if (status)
        return status;
    const struct kv_sink_begin begin = {
        .key = key, .link = end->link, .shape = {1, {{count, 1, 1}}}, .deadline_ns = DEADLINE_NONE};
    uint64_t transfer, begin_ns = clock_now_ns();
    status = kv_sink_begin(end->sink, &begin, &transfer);
    if (status)
        return err_set(err, status, "transfer: %s", status_text(status));
    kv_links_flush(end->links);
    bool ended = loop_until(end, &end->ended);
    *seconds_out = 1e-9 * (double)(clock_now_ns() - begin_ns);
    if (!ended || !loop_until(end, &end->released))
        return err_set(err, STATUS_TIMEOUT, "the transfer did not end");
    if (end->status)
        return err_set(err, end->status, "the transfer ended: %s", status_text(end->status));
    return STATUS_OK;
}

/* --- calls --- */

enum status kv_measure_check(const struct kv_measure *measure, struct err *err)
{
    if (measure->piece_bytes < 1024 || measure->piece_bytes > 64 << 20)
        return err_set(err, STATUS_INVALID, "size: %zu bytes a piece (1K to 64M)",
                       measure->piece_bytes);
    if (measure->total_bytes < measure->piece_bytes ||
        measure->total_bytes / measure->piece_bytes > KV_MEASURE_PIECES_MAX)
        return err_set(err, STATUS_INVALID, "total: %zu bytes are %zu pieces (1 to %d)",
                       measure->total_bytes, measure->total_bytes / measure->piece_bytes,
                       KV_MEASURE_PIECES_MAX);
    return STATUS_OK;
}

static size_t bytes_of(const struct kv_measure *measure)
{
    return measure->total_bytes / measure->piece_bytes * measure->piece_bytes;
}

static uint8_t *memory_of(const struct kv_measure *measure, int fill, struct err *err)
{
    size_t bytes = bytes_of(measure);
    uint8_t *memory = huge_alloc(bytes, 1); /* on huge pages, as a node's pool is */
    if (!memory) {
        err_set(err, STATUS_MEMORY, "no memory for %zu bytes", bytes);
        return NULL;
    }
    memset(memory, fill, bytes);
    return memory;
}

/* What `auto` means here, for the side that has UCX alone. */
static enum status device_of(const struct kv_measure *measure, struct kv_measure *resolved_out,
                             struct ucx_choice *choice, struct err *err)
{
    *resolved_out = *measure;
    enum status status = ucx_device_choose(
        measure->transport, measure->interface ? measure->interface : "lo", choice, NULL, 0, err);
    if (!status)
        resolved_out->transport = choice->transport;
    return status;
}

enum status kv_measure_give(const struct kv_measure *measure, int fd, struct err *err)
{
    enum status status = kv_measure_check(measure, err);
    uint8_t *memory = status ? NULL : memory_of(measure, FILL, err);
    if (!memory)
        return status ? status : STATUS_MEMORY;
    if (measure->bare) {
        struct kv_measure resolved;
        struct ucx_choice choice;
        status = device_of(measure, &resolved, &choice, err);
        if (!status)
            status = ucx_bare_give(&resolved, choice.device, fd, memory, err);
    } else {
        struct end end = {.piece_bytes = measure->piece_bytes, .memory = memory};
        status = end_start(&end, measure, 2, fd, err);
        if (!status)
            status = give(&end, (uint32_t)(measure->total_bytes / measure->piece_bytes), fd, err);
        end_stop(&end);
    }
    huge_free(memory);
    return status;
}

enum status kv_measure_take(const struct kv_measure *measure, int fd, double *bytes_per_s_out,
                            struct err *err)
{
    enum status status = kv_measure_check(measure, err);
    uint8_t *memory = status ? NULL : memory_of(measure, 0, err);
    if (!memory)
        return status ? status : STATUS_MEMORY;
    double seconds = 0;
    size_t bytes = bytes_of(measure);
    if (measure->bare) {
        struct kv_measure resolved;
        struct ucx_choice choice;
        status = device_of(measure, &resolved, &choice, err);
        if (!status)
            status = ucx_bare_take(&resolved, choice.device, fd, memory, &seconds, err);
    } else {
        struct end end = {.piece_bytes = measure->piece_bytes, .memory = memory};
        status = end_start(&end, measure, 1, fd, err);
        if (!status)
            status = take(&end, (uint32_t)(measure->total_bytes / measure->piece_bytes), fd,
                          &seconds, err);
        end_stop(&end);
    }
    if (!status && (memory[0] != FILL || memory[bytes - 1] != FILL))
        status = err_set(err, STATUS_CHECKSUM, "other bytes came than were sent");
    huge_free(memory);
    if (!status)
        *bytes_per_s_out = (double)bytes / seconds;
    return status;
}

/* --- both sides here --- */

struct report {
    enum status status;
    double bytes_per_s;
    struct err err;
};

static _Noreturn void taker_run(const struct kv_measure *measure, int fd, int result)
{
    struct report report = {.err = ERR_INIT};
    report.status = kv_measure_take(measure, fd, &report.bytes_per_s, &report.err);
    ssize_t written = write(result, &report, sizeof report);
    _exit(written == sizeof report ? 0 : 1);
}

enum status kv_measure_local(const struct kv_measure *measure, double *bytes_per_s_out,
                             struct err *err)
{
    int pair[2], result[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return err_set(err, STATUS_IO, "socketpair: %s", strerror(errno));
    if (pipe2(result, O_CLOEXEC)) {
        close(pair[0]);
        close(pair[1]);
        return err_set(err, STATUS_IO, "pipe: %s", strerror(errno));
    }
    pid_t giver = fork();
    if (giver == 0) {
        struct err giver_err = ERR_INIT;
        close(pair[1]);
        _exit(kv_measure_give(measure, pair[0], &giver_err) ? 1 : 0);
    }
    pid_t taker = giver > 0 ? fork() : -1;
    if (taker == 0) {
        close(pair[0]);
        taker_run(measure, pair[1], result[1]);
    }
    close(pair[0]);
    close(pair[1]);
    close(result[1]);
    struct report report = {.status = STATUS_CLOSED};
    ssize_t count = taker > 0 ? read(result[0], &report, sizeof report) : 0;
    close(result[0]);
    if (taker > 0)
        waitpid(taker, NULL, 0);
    if (giver > 0)
        waitpid(giver, NULL, 0);
    if (count != sizeof report)
        return err_set(err, STATUS_CLOSED, "a process of the measurement has died");
    if (report.status)
        return err_set(err, report.status, "%s", report.err.message);
    *bytes_per_s_out = report.bytes_per_s;
    return STATUS_OK;
}
