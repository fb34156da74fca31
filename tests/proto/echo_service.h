/* A small service behind baton.v1's real paths, for the tests of proto/rpc: what comes in goes out in a predictable form.
 *
 *   Tokenize    ids = the bytes of `text`. "fail" ends with INVALID_ARGUMENT and a trailer, "hang" never answers,
 *               "deadline" gives ids = [milliseconds left], "peer" the bytes of the peer's address, "metadata" those of x-test.
 *   Detokenize  text = ids as bytes, NULs included
 *   Generate    max_tokens messages with position 0, 1, … and the request's text; unset: without end
 *   Connect     (baton.node.v1.Registry) sends each message back, ends with OK after the half-close
 * Owner: the loop thread. */
#ifndef BATON_TESTS_PROTO_ECHO_SERVICE_H
#define BATON_TESTS_PROTO_ECHO_SERVICE_H

#include "proto/rpc/rpc.h"

struct echo {
    size_t opened, closed, cancelled;
    enum grpc_code last_code;   /* of the call closed last */
    size_t generated;           /* messages that the transport took from Generate */
    struct rpc_call *last_call; /* opened last; dead once closed */
    uint64_t last_deadline_ns;  /* its deadline, as the server has it */
    const char *
        abort_message; /* set: the next Generate message is followed by an abort with this message */
};

enum status echo_add(struct echo *echo, struct rpc_server *server, struct err *err);

#endif
