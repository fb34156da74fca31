/* See ucx_bind.h. */
#include "kvtransfer/ucx_bind.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Thread_local bool reusing;

void ucx_bind_reuse_begin(void)
{
    reusing = true;
}

void ucx_bind_reuse_end(void)
{
    reusing = false;
}

static void reuse(int fd)
{
    int protocol = 0, on = 1;
    socklen_t bytes = sizeof protocol;
    if (!getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) && protocol == IPPROTO_TCP)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

__attribute__((visibility("default"))) int bind(int fd, const struct sockaddr *address,
                                                socklen_t bytes)
{
    if (reusing)
        reuse(fd);
    return (int)syscall(SYS_bind, fd, address, bytes);
}
