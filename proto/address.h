/* "host:port" as users write it: "127.0.0.1:7070", "[::1]:0", "localhost:7070".
 * Cold paths only (resolving may ask the network). Owner: any thread. */
#ifndef BATON_PROTO_ADDRESS_H
#define BATON_PROTO_ADDRESS_H

#include <stddef.h>

#include "base/err.h"

enum { ADDRESS_HOST_BYTES = 256 };

/* Splits at the last colon and takes brackets off. CONFIG when there is no port or it is not 0 to 65535. */
enum status address_split(const char *address, char host_out[ADDRESS_HOST_BYTES], int *port_out,
                          struct err *err);
/* Finds out whether every address that `address` resolves to could be bound now: IN_USE when one is taken, IO when the
 * machine refuses it, CONFIG when it does not parse or resolve. */
enum status address_probe(const char *address, struct err *err);
/* A listening TCP socket on the first address that it resolves to, non-blocking and close-on-exec; fails as above. */
enum status address_listen(const char *address, int *fd_out, int *port_out, struct err *err);
/* Writes `address` and a line feed to the file at `path`, whole or not at all. A NULL path: nothing is asked for. IO. */
enum status address_file_write(const char *path, const char *address, struct err *err);

#endif
