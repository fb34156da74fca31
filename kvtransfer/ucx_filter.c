/* See ucx_filter.h. The program (classic BPF) sees a segment from its TCP header on; the IP header is reached by SKF_NET_OFF.
 * Sockets that the listener accepts inherit the program, which is why everything but a SYN passes. */
#include "kvtransfer/ucx_filter.h"

#include <errno.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/socket.h>

enum { PASS = 0x40000, DROP = 0, TCP_FLAGS_OFFSET = 13, TCP_SYN = 0x02, PROGRAM_MAX = 255 };

void ucx_filter_listening(struct ucx_filter_fds *fds_out)
{
    memset(fds_out, 0, sizeof *fds_out);
    for (int fd = 0; fd < UCX_FILTER_FDS_MAX; fd++) {
        int listening = 0, protocol = 0;
        socklen_t bytes = sizeof listening;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) || !listening)
            continue;
        bytes = sizeof protocol;
        if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) || protocol != IPPROTO_TCP)
            continue;
        fds_out->bits[fd / 64] |= UINT64_C(1) << (fd % 64);
    }
}

/* --- the program --- */

struct program {
    struct sock_filter code[PROGRAM_MAX];
    unsigned count;
};

static void emit(struct program *program, uint16_t code, uint32_t k, uint8_t jt, uint8_t jf)
{
    if (program->count < PROGRAM_MAX)
        program->code[program->count++] = (struct sock_filter){code, jt, jf, k};
}

static uint32_t word_at(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static bool is_ipv4(const uint8_t address[16])
{
    static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(address, prefix, sizeof prefix) == 0;
}

/* Pass when the source is `address` of the version that the packet has; else go on. */
static void emit_address(struct program *program, const uint8_t address[16], bool ipv4)
{
    unsigned words = ipv4 ? 1 : 4;
    for (unsigned i = 0; i < words; i++) {
        uint32_t offset = ipv4 ? 12 : 8 + 4 * i;
        uint8_t to_end = (uint8_t)(2 * (words - 1 - i) + 1); /* over the other words and the pass */
        emit(program, BPF_LD | BPF_W | BPF_ABS, (uint32_t)SKF_NET_OFF + offset, 0, 0);
        emit(program, BPF_JMP | BPF_JEQ | BPF_K, word_at(address + (ipv4 ? 12 : 4 * i)), 0, to_end);
    }
    emit(program, BPF_RET | BPF_K, PASS, 0, 0);
}

static unsigned addresses_emit(const struct ucx_filter *filter, struct program *program, bool ipv4)
{
    unsigned begin = program->count;
    for (unsigned i = 0; i < UCX_FILTER_ADDRESSES_MAX; i++)
        if (filter->windows[i].until_ns && is_ipv4(filter->windows[i].address) == ipv4)
            emit_address(program, filter->windows[i].address, ipv4);
    emit(program, BPF_RET | BPF_K, DROP, 0, 0);
    return program->count - begin;
}

/*     not a SYN: pass ── IPv4? ── its addresses: pass ── drop
 *                          └ no ── IPv6 addresses: pass ── drop */
static enum status filter_install(struct ucx_filter *filter)
{
    struct program program = {.count = 0};
    emit(&program, BPF_LD | BPF_B | BPF_ABS, TCP_FLAGS_OFFSET, 0, 0);
    emit(&program, BPF_JMP | BPF_JSET | BPF_K, TCP_SYN, 1, 0);
    emit(&program, BPF_RET | BPF_K, PASS, 0, 0);
    emit(&program, BPF_LD | BPF_B | BPF_ABS, (uint32_t)SKF_NET_OFF, 0, 0);
    emit(&program, BPF_ALU | BPF_RSH | BPF_K, 4, 0, 0);
    emit(&program, BPF_JMP | BPF_JEQ | BPF_K, 4, 1, 0);
    unsigned jump = program.count;
    emit(&program, BPF_JMP | BPF_JA, 0, 0, 0);
    program.code[jump].k = addresses_emit(filter, &program, true);
    addresses_emit(filter, &program, false);
    struct sock_fprog sock_program = {.len = (unsigned short)program.count, .filter = program.code};
    for (unsigned i = 0; i < filter->socket_count; i++)
        if (setsockopt(filter->sockets[i], SOL_SOCKET, SO_ATTACH_FILTER, &sock_program,
                       sizeof sock_program))
            return STATUS_IO;
    return STATUS_OK;
}

/* --- calls --- */

enum status ucx_filter_start(struct ucx_filter *filter, const struct ucx_filter_fds *before,
                             struct err *err)
{
    struct ucx_filter_fds now;
    ucx_filter_listening(&now);
    *filter = (struct ucx_filter){0};
    for (int fd = 0; fd < UCX_FILTER_FDS_MAX; fd++) {
        if (!((now.bits[fd / 64] & ~before->bits[fd / 64]) >> (fd % 64) & 1))
            continue;
        if (filter->socket_count == UCX_FILTER_SOCKETS_MAX)
            return err_set(err, STATUS_FULL, "kv listener: more than %d sockets to filter",
                           UCX_FILTER_SOCKETS_MAX);
        filter->sockets[filter->socket_count++] = fd;
    }
    if (filter->socket_count == 0)
        return err_set(err, STATUS_NOT_FOUND, "kv listener: no listening socket to filter");
    if (filter_install(filter))
        return err_set(err, STATUS_IO, "kv listener: SO_ATTACH_FILTER: %s", strerror(errno));
    filter->active = true;
    return STATUS_OK;
}

static bool address_of(const struct sockaddr *from, uint8_t out[16])
{
    if (from->sa_family == AF_INET) {
        memset(out, 0, 10);
        out[10] = out[11] = 0xff;
        memcpy(out + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
        return true;
    }
    if (from->sa_family == AF_INET6) {
        memcpy(out, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
        return true;
    }
    return false;
}

enum status ucx_filter_allow(struct ucx_filter *filter, const struct sockaddr *address,
                             uint64_t until_ns)
{
    uint8_t bytes[16];
    if (!address_of(address, bytes))
        return STATUS_INVALID;
    if (!filter->active)
        return STATUS_OK;
    struct ucx_filter_window *chosen = NULL;
    for (unsigned i = 0; i < UCX_FILTER_ADDRESSES_MAX; i++) {
        struct ucx_filter_window *window = &filter->windows[i];
        if (window->until_ns && memcmp(window->address, bytes, sizeof bytes) == 0) {
            window->until_ns = until_ns > window->until_ns ? until_ns : window->until_ns;
            return STATUS_OK;
        }
        if (!window->until_ns && !chosen)
            chosen = window;
    }
    if (!chosen)
        return STATUS_FULL;
    memcpy(chosen->address, bytes, sizeof bytes);
    chosen->until_ns = until_ns;
    return filter_install(filter);
}

void ucx_filter_tick(struct ucx_filter *filter, uint64_t now_ns)
{
    bool changed = false;
    for (unsigned i = 0; filter->active && i < UCX_FILTER_ADDRESSES_MAX; i++) {
        struct ucx_filter_window *window = &filter->windows[i];
        if (window->until_ns && now_ns >= window->until_ns) {
            window->until_ns = 0;
            changed = true;
        }
    }
    if (changed)
        filter_install(filter);
}
