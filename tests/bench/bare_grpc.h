/* The peer of bench_rpc: the same calls by gRPC core alone, one thread on one completion queue, no loop, no second thread, no
 * checks. What proto/rpc costs is the difference.
 * Owner: the main thread of its process. */
#ifndef BATON_TESTS_BENCH_BARE_GRPC_H
#define BATON_TESTS_BENCH_BARE_GRPC_H

#include <stddef.h>
#include <stdint.h>

/* Serves for ever: every call is answered with as many copies of `message` as the 4-byte number in its request says.
 * Writes the port to `port_fd` first. */
void bare_serve(int port_fd, const uint8_t *message, size_t bytes);

struct bare_client;
struct bare_client *bare_connect(int port);
void bare_disconnect(struct bare_client *client);
/* `streams` calls side by side of `count` messages each, read to their ends; returns the messages received. */
size_t bare_call(struct bare_client *client, uint32_t count, size_t streams);

#endif
