/* See inside.h. */
#include "node/registration.c"

#include "tests/sim/inside.h"

void inside_registration(const struct registration *r, struct print *print)
{
    print_head(print, "registration", r->state);
    PRINT(print, r->call != NULL);
    PRINT(print, r->calls_open);
    PRINT(print, r->backoff_ns);
    PRINT(print, r->number);
    PRINT(print, r->answered);
    PRINT(print, r->answered_sent_ns);
    PRINT(print, r->seen_ns);
    for (uint64_t n = r->answered + 1; n <= r->number; n++)
        PRINT(print, r->sent_ns[n % HEARTBEATS_REMEMBERED]);
}
