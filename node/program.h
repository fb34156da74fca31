/* The body of both node programs, from main to exit code.
 *
 *     options ─▶ loop, rpc, health (NOT_SERVING) ─▶ loader thread: model, engine ─▶ node, registration ─▶ loop
 *     SIGTERM, SIGINT: drain within --grace_s, then leave; a second one: leave now
 *
 * Exit codes: 0 left in good order; 1 port in use, model unreadable, no memory, refused by the router; 2 wrong usage.
 * Owner: the main thread. The loader thread ends before the node begins. */
#ifndef BATON_NODE_PROGRAM_H
#define BATON_NODE_PROGRAM_H

#include "node/node.h"

struct node_program {
    const char *name;    /* "baton-prefill" */
    const char *section; /* of the file */
    enum node_role role; /* unless --role says otherwise */
    const struct node_leg *prefill, *decode;
};

int node_program_run(const struct node_program *program, int argc, char **argv);

#endif
