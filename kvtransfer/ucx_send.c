/* See ucx_send.h. */
#include "kvtransfer/ucx_send.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

static _Thread_local bool forgiving;

void ucx_send_forgive_begin(void)
{
    forgiving = true;
}

void ucx_send_forgive_end(void)
{
    forgiving = false;
}

__attribute__((visibility("default"))) ssize_t send(int fd, const void *data, size_t bytes,
                                                    int flags)
{
    ssize_t sent = sendto(fd, data, bytes, flags, NULL, 0); /* what send is defined as */
    if (sent >= 0 || !forgiving || (errno != ECONNRESET && errno != EPIPE))
        return sent;
    return (ssize_t)bytes;
}
