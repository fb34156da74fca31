/* The key of the prefix hashes, when it is configured rather than drawn. Owner: main, at start. */
#ifndef BATON_ROUTER_CACHE_KEY_H
#define BATON_ROUTER_CACHE_KEY_H

#include "base/err.h"
#include "sched/prefix.h"

/* `text`: 32 hexadecimal digits, or the path of a file that holds them and nothing else but white space around. CONFIG: neither, or
 * the file cannot be read. */
enum status cache_key_read(const char *text, uint8_t key_out[PREFIX_KEY_BYTES], struct err *err);

#endif
