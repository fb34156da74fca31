/* See address.h. */
#include "proto/address.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LISTEN_BACKLOG = 128 };

enum status address_split(const char *address, char host_out[ADDRESS_HOST_BYTES], int *port_out,
                          struct err *err)
{
    const char *colon = strrchr(address, ':');
    if (!colon || !colon[1])
        return err_set(err, STATUS_CONFIG, "address \"%s\": no port (HOST:PORT)", address);
    char *end;
    errno = 0;
    long port = strtol(colon + 1, &end, 10);
    if (errno || *end || colon[1] < '0' || colon[1] > '9' || port > 65535)
        return err_set(err, STATUS_CONFIG, "address \"%s\": the port is not 0 to 65535", address);
    const char *host = address;
    size_t host_bytes = (size_t)(colon - address);
    if (host_bytes >= 2 && host[0] == '[' && host[host_bytes - 1] == ']') {
        host++;
        host_bytes -= 2;
    } else if (memchr(host, ':', host_bytes)) {
        return err_set(err, STATUS_CONFIG, "address \"%s\": write IPv6 as [ADDRESS]:PORT", address);
    }
    if (host_bytes == 0 || host_bytes >= ADDRESS_HOST_BYTES)
        return err_set(err, STATUS_CONFIG, "address \"%s\": the host is empty or too long",
                       address);
    memcpy(host_out, host, host_bytes);
    host_out[host_bytes] = '\0';
    *port_out = (int)port;
    return STATUS_OK;
}

static enum status resolve(const char *address, struct addrinfo **list_out, int *port_out,
                           struct err *err)
{
    char host[ADDRESS_HOST_BYTES], service[16];
    enum status status = address_split(address, host, port_out, err);
    if (status)
        return status;
    snprintf(service, sizeof service, "%d", *port_out);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int rc = getaddrinfo(host, service, &hints, list_out);
    if (rc)
        return err_set(err, STATUS_CONFIG, "address \"%s\": %s", address, gai_strerror(rc));
    return STATUS_OK;
}

/* A bound socket, or an error; a family that this machine lacks gives fd -1 and OK. */
static enum status bind_one(const char *address, const struct addrinfo *info, int *fd_out,
                            struct err *err)
{
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *fd_out = -1;
    if (fd < 0 && errno == EAFNOSUPPORT)
        return STATUS_OK;
    if (fd < 0)
        return err_set(err, STATUS_IO, "address \"%s\": socket: %s", address, strerror(errno));
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, info->ai_addr, info->ai_addrlen)) {
        int why = errno;
        close(fd);
        if (why == EADDRINUSE)
            return err_set(
                err, STATUS_IN_USE,
                "address \"%s\": the port is in use (choose another, or 0 for a free one)",
                address);
        return err_set(err, STATUS_IO, "address \"%s\": %s", address, strerror(why));
    }
    *fd_out = fd;
    return STATUS_OK;
}

enum status address_probe(const char *address, struct err *err)
{
    struct addrinfo *list;
    int port;
    enum status status = resolve(address, &list, &port, err);
    if (status)
        return status;
    for (struct addrinfo *info = list; !status && info; info = info->ai_next) {
        int fd;
        status = bind_one(address, info, &fd, err);
        if (!status && fd >= 0)
            close(fd);
    }
    freeaddrinfo(list);
    return status;
}

static int socket_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &bytes))
        return 0;
    if (address.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

enum status address_listen(const char *address, int *fd_out, int *port_out, struct err *err)
{
    struct addrinfo *list;
    int port, fd = -1;
    enum status status = resolve(address, &list, &port, err);
    if (status)
        return status;
    for (struct addrinfo *info = list; !status && fd < 0 && info; info = info->ai_next)
        status = bind_one(address, info, &fd, err);
    freeaddrinfo(list);
    if (status)
        return status;
    if (fd < 0)
        return err_set(err, STATUS_IO, "address \"%s\": no usable address family", address);
    if (listen(fd, LISTEN_BACKLOG)) {
        int why = errno;
        close(fd);
        /* two sockets may bind with SO_REUSEADDR while neither listens yet; the second listen says so */
        return err_set(err, why == EADDRINUSE ? STATUS_IN_USE : STATUS_IO, "address \"%s\": %s",
                       address, strerror(why));
    }
    *fd_out = fd;
    *port_out = socket_port(fd);
    return STATUS_OK;
}

enum status address_file_write(const char *path, const char *address, struct err *err)
{
    if (!path)
        return STATUS_OK;
    /* whole or not at all: a reader polls for it */
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.part", path);
    FILE *file = fopen(temporary, "we");
    bool good = file && fprintf(file, "%s\n", address) > 0;
    good = file && fclose(file) == 0 && good;
    if (!good || rename(temporary, path))
        return err_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    return STATUS_OK;
}
