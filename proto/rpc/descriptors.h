/* The table that embed_descriptors.py fills at build time: every .proto file of this build, for server reflection.
 * Owner: no thread; constants only. */
#ifndef BATON_PROTO_RPC_DESCRIPTORS_H
#define BATON_PROTO_RPC_DESCRIPTORS_H

#include <stddef.h>
#include <stdint.h>

struct descriptor_file {
    const char *name;    /* "baton/v1/baton.proto" */
    const uint8_t *data; /* a serialized FileDescriptorProto */
    size_t bytes;
    const int *imports; /* indices of files, ended by -1 */
};
extern const struct descriptor_file descriptor_files[];
extern const size_t descriptor_file_count;

struct descriptor_symbol {
    const char *name; /* full name of a message, field, enum, enum value, service or method */
    int file;
};
extern const struct descriptor_symbol descriptor_symbols[]; /* ascending by strcmp */
extern const size_t descriptor_symbol_count;

#endif
