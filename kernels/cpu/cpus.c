/* See cpus.h. */
#include "kernels/cpu/cpus.h"

#include <assert.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

/* One number below CPU_LIST_MAX; *at moves behind it. */
static bool number(const char **at, unsigned *value_out)
{
    unsigned value = 0;
    const char *start = *at;
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        value = value * 10 + (unsigned)(**at - '0');
        if (value >= CPU_LIST_MAX)
            return false;
    }
    *value_out = value;
    return *at > start;
}

static enum status add(struct cpu_list *list, unsigned id, const cpu_set_t *allowed,
                       struct err *err)
{
    if (!CPU_ISSET(id, allowed))
        return err_set(err, STATUS_CONFIG,
                       "cpus: processor %u is none that this process may run on", id);
    for (unsigned i = 0; i < list->count; i++)
        if (list->ids[i] == id)
            return err_set(err, STATUS_CONFIG, "cpus: processor %u is named twice", id);
    list->ids[list->count++] = (uint16_t)id;
    return STATUS_OK;
}

enum status cpu_list_parse(const char *text, struct cpu_list *list_out, struct err *err)
{
    cpu_set_t allowed;
    list_out->count = 0;
    if (!text || !*text)
        return STATUS_OK;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return err_set(err, STATUS_CONFIG, "cpus: this system does not say where it may run");
    for (const char *at = text;; at++) {
        unsigned first, last;
        bool good = number(&at, &first);
        last = first;
        if (good && *at == '-') {
            at++;
            good = number(&at, &last) && last >= first;
        }
        if (!good || (*at && *at != ','))
            return err_set(err, STATUS_CONFIG,
                           "cpus: \"%.100s\" is no list of processors from 0 to %d such as 0-3,8",
                           text, CPU_LIST_MAX - 1);
        for (unsigned id = first; id <= last; id++) {
            enum status status = add(list_out, id, &allowed, err);
            if (status != STATUS_OK)
                return status;
        }
        if (!*at)
            return STATUS_OK;
    }
}

void cpu_list_pin(const struct cpu_list *list, unsigned thread)
{
    if (!list->count)
        return;
    assert(thread < list->count);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(list->ids[thread], &set);
    (void)sched_setaffinity(0, sizeof set, &set); /* 0: the calling thread */
}
