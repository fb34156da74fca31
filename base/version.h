/* Which source this program was built from. Constants only. */
#ifndef BATON_BASE_VERSION_H
#define BATON_BASE_VERSION_H

/* `git describe --always --dirty` at the last build; "unknown" without git. */
extern const char version_commit[];
#define VERSION_NUMBER "0.1.0"

#endif
