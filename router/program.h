/* baton-router as a program: options, sockets, signals, and the loop that drives the core.
 *
 *     RECEIVE   calls of clients and nodes (proto/rpc)
 *     SCHEDULE  core_schedule: placing; then the health follows
 *     timer     every 50 ms: deadlines, slow clients
 *
 * SIGTERM or SIGINT drains: no new calls, health NOT_SERVING, streams may end within grace_s, then they get UNAVAILABLE. A second
 * signal ends the grace at once.
 *
 * Owner: the main thread. */
#ifndef BATON_ROUTER_PROGRAM_H
#define BATON_ROUTER_PROGRAM_H

/* Returns the exit code. */
int router_program_run(int argc, char **argv);

#endif
