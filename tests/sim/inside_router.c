/* See inside.h. */
#include "router/registry_links.c"

#include "tests/sim/inside.h"

void inside_link_views(const struct registry *registry, struct print *print)
{
    for (size_t i = 0; i < registry->node_count; i++)
        for (size_t k = 0; k < registry->node_count; k++) {
            const struct link_view *view = view_of(registry, i, k);
            print_head(print, "view", i * registry->node_count + k);
            PRINT(print, view->state);
            PRINT(print, view->failed);
            PRINT(print, view->since_ns);
            PRINT(print, view->failed ? view->failed_ns : 0);
            PRINT(print, view->bytes_per_s);
        }
}
