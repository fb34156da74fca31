/* A child process that is started again when it dies: one of the programs that `baton up` runs.
 *
 *                    spawn                    waitpid
 *     IDLE ────────────────────▶ RUNNING ──────────────────▶ WAITING ──(back-off)──▶ RUNNING
 *                                   │ child_stop                │ five deaths in 30 s, or it never could run
 *                                   ▼                           ▼
 *                                STOPPING ──▶ STOPPED        FAILED
 *
 * RUN_DIR holds NAME.pid and NAME.log (written here) and the files in which the child writes its bound addresses. The first
 * addresses are kept, and given to every later life, so that peers and clients find it where it was.
 *
 * A child has a process group of its own (Ctrl-C reaches only `baton up`, which stops the children in order) and dies with
 * its parent (PR_SET_PDEATHSIG). The parent reaps it at once: peers of a killed process cannot see its death while it is an
 * unreaped zombie that still holds its sockets' other half.
 *
 * Owner: the main thread. */
#ifndef BATON_CLIENT_CHILD_H
#define BATON_CLIENT_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum {
    CHILD_DEATHS_MAX = 5,
    CHILD_ARGUMENTS_MAX = 256,
    CHILD_PATH_BYTES = 4096,
    CHILD_ADDRESS_BYTES = 300,
};
#define CHILD_DEATHS_WINDOW_NS (30 * UINT64_C(1000000000))

enum child_state {
    CHILD_IDLE,
    CHILD_RUNNING,
    CHILD_WAITING,
    CHILD_STOPPING,
    CHILD_STOPPED,
    CHILD_FAILED,
};

enum child_address { CHILD_GRPC, CHILD_HTTP, CHILD_NODE_GRPC, CHILD_ADDRESS_COUNT };

struct child {
    char name[64];
    char program[CHILD_PATH_BYTES];
    const char *run_dir;
    bool has_node_grpc;
    /* the program's arguments but for name, addresses and their files; the strings are the caller's */
    const char *arguments[CHILD_ARGUMENTS_MAX];
    int argument_count;
    /* what to ask for; after the first life, what was bound. "": the program's own choice */
    char addresses[CHILD_ADDRESS_COUNT][CHILD_ADDRESS_BYTES];
    bool bound; /* all addresses of the present life are known */

    enum child_state state;
    pid_t pid;
    int wait_status; /* of the last death */
    uint64_t deaths_ns[CHILD_DEATHS_MAX];
    int death_count; /* all in all */
    uint64_t restart_ns;
};

/* False when there is no room for another argument. */
bool child_argument(struct child *child, const char *argument);
/* Starts a life. IO names what failed. */
enum status child_spawn(struct child *child, struct err *err);
/* Looks for its address files; sets `bound` when all are there. */
void child_read_addresses(struct child *child);
/* True when it has just ended (reaped, wait_status is set); the state is WAITING, FAILED or STOPPED then. `may_restart`: an
 * end by its own hand with exit 1 or 2 is worth another try. */
bool child_reap(struct child *child, bool may_restart);
/* Sends `signal_number` and marks it STOPPING; one that is not running is STOPPED. */
void child_stop(struct child *child, int signal_number);
/* "killed by signal 9 (Killed)", "exit 1" */
const char *child_death_text(const struct child *child, char *buffer, size_t buffer_bytes);
/* The last line of its log that is not empty, or "". */
const char *child_last_line(const struct child *child, char *buffer, size_t buffer_bytes);
/* Removes the pid and address files; the log stays. */
void child_clean(struct child *child);

#endif
