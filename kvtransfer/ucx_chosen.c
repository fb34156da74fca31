/* See ucx_chosen.h. UCX 1.13 tells this in no structure; its description of a context has a line for each resource:
 *
 *     #      resource 0  :  md 0  dev 0  flags -- tcp/lo */
#include "kvtransfer/ucx_chosen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ucx_chosen_is(enum xfer_transport transport, const char *resource)
{
    static const char *const prefixes[][4] = {
        [XFER_TRANSPORT_TCP] = {"tcp/"},
        [XFER_TRANSPORT_SHM] = {"posix/"},
        [XFER_TRANSPORT_RDMA] = {"rc_", "dc_", "ud_"},
    };
    for (size_t i = 0; i < 4 && prefixes[transport][i]; i++)
        if (strncmp(resource, prefixes[transport][i], strlen(prefixes[transport][i])) == 0)
            return true;
    return false;
}

/* The resources, separated by blanks, in `out`; returns how many there are, and of them how many are of the transport. */
static unsigned resources_read(const char *text, enum xfer_transport transport, char *out,
                               size_t out_bytes, unsigned *right_out)
{
    unsigned count = 0;
    *right_out = 0;
    out[0] = '\0';
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        size_t bytes = strcspn(line, "\n");
        char copy[256], *name;
        snprintf(copy, sizeof copy, "%.*s", (int)bytes, line);
        if (!strstr(copy, " resource ") || !(name = strstr(copy, "-- ")))
            continue;
        name += 3;
        name[strcspn(name, " \t")] = '\0';
        count++;
        *right_out += ucx_chosen_is(transport, name);
        size_t used = strlen(out);
        snprintf(out + used, out_bytes - used, "%s%s", used ? " " : "", name);
    }
    return count;
}

enum status ucx_chosen_check(ucp_context_h context, enum xfer_transport transport,
                             const char *device, struct err *err)
{
    char *text = NULL, names[256];
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream)
        return err_set(err, STATUS_MEMORY, "transport: no memory");
    ucp_context_print_info(context, stream);
    fclose(stream);
    unsigned right;
    unsigned count = resources_read(text, transport, names, sizeof names, &right);
    free(text);
    if (count && right == count)
        return STATUS_OK;
    return err_set(err, STATUS_CONFIG,
                   "transport: %s on %s was not chosen by UCX %s, which has: %s",
                   xfer_transport_text(transport), device, ucp_get_version_string(),
                   names[0] ? names : "nothing");
}
