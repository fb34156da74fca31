/* Whether anything of ours allocates while a node runs. Linked into a test with the linker's --wrap (alloc_guard_dep): calls
 * of malloc and its kin from our own objects come here; those inside shared libraries (gRPC, UCX, protobuf-c, libc) do not.
 *
 *     guarded    every hook, timer and descriptor of the loop, what the router's messages lead to, and the engine's threads
 *     left out   proto/rpc: its own hooks, and calls into it, which make gRPC's messages
 *
 * Owner: the test's main thread, which runs the loop. */
#ifndef BATON_TESTS_NODE_ALLOC_GUARD_H
#define BATON_TESTS_NODE_ALLOC_GUARD_H

#include <stdint.h>

/* Begins to count, from nothing. */
void alloc_guard_begin(void);
/* Ends, and says how many allocations were seen. Where the first few came from is on stderr. */
uint64_t alloc_guard_end(void);

#endif
