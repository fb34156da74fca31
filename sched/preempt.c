/* See preempt.h. */
#include "sched/preempt.h"

#include <assert.h>
#include <stdlib.h>

/* --- coming in --- */

uint32_t preempt_pages_first(uint32_t rows, uint32_t page_tokens, uint32_t pages_whole, bool early)
{
    uint32_t pages = (rows + page_tokens - 1) / page_tokens + 1;
    return early || pages > pages_whole ? pages_whole : pages;
}

uint64_t preempt_headroom(const struct preempt_elders *elders, uint32_t times)
{
    uint64_t wanted = times < 32 ? (uint64_t)elders->count << times : UINT64_MAX;
    return wanted < elders->growth_pages ? wanted : elders->growth_pages;
}

/* --- giving way --- */

enum status preempt_scratch_init(struct preempt_scratch *scratch, uint32_t pages)
{
    scratch->drops = calloc(pages ? pages : 1, sizeof *scratch->drops);
    return scratch->drops ? STATUS_OK : STATUS_MEMORY;
}

void preempt_scratch_finish(struct preempt_scratch *scratch)
{
    free(scratch->drops);
    *scratch = (struct preempt_scratch){0};
}

/* Whether the page would be to be had after all drops so far. */
static bool page_idle(const struct pool *pool, const struct preempt_scratch *scratch, uint32_t page)
{
    const struct pool_page *p = &pool->pages[page];
    if (!p->indexed)
        return scratch->drops[page] > 0;
    return p->pins == scratch->drops[page] && !p->stuck;
}

/* One more holder lets go of the page: true when it is to be had after that. */
static bool page_drop(const struct pool *pool, struct preempt_scratch *scratch, uint32_t page)
{
    scratch->drops[page]++;
    return page_idle(pool, scratch, page);
}

static bool holder_helps(const struct pool *pool, const struct preempt_scratch *scratch,
                         const struct preempt_holder *holder)
{
    for (uint32_t i = 0; i < holder->page_count; i++)
        if (page_idle(pool, scratch, holder->pages[i]))
            return true;
    return false;
}

uint32_t preempt_victims(const struct pool *pool, struct preempt_scratch *scratch,
                         const struct preempt_holder *holders, uint32_t count, uint64_t age,
                         uint32_t pages_missing, uint32_t *victims_out)
{
    uint32_t asked = 0, freed = 0, victims = 0;
    while (asked < count && freed < pages_missing && holders[asked].age > age) {
        const struct preempt_holder *holder = &holders[asked++];
        assert(asked < 2 || holders[asked - 2].age >= holder->age);
        for (uint32_t i = 0; i < holder->page_count; i++)
            freed += page_drop(pool, scratch, holder->pages[i]);
    }
    for (uint32_t i = 0; i < asked && freed >= pages_missing; i++)
        if (holder_helps(pool, scratch, &holders[i]))
            victims_out[victims++] = holders[i].index;
    for (uint32_t i = 0; i < asked; i++)
        for (uint32_t k = 0; k < holders[i].page_count; k++)
            scratch->drops[holders[i].pages[k]] = 0;
    return victims;
}

/* --- the way out and back --- */

enum preempt_way preempt_choose(const struct preempt_cost *cost)
{
    if (!cost->swap_room || cost->rule == PREEMPT_RULE_RECOMPUTE)
        return PREEMPT_RECOMPUTE;
    if (cost->rule == PREEMPT_RULE_SWAP || cost->copy_bytes_per_s <= 0 ||
        cost->prompt_tokens_per_s <= 0)
        return PREEMPT_SWAP;
    double swap_s = 2 * (double)cost->bytes / cost->copy_bytes_per_s;
    return swap_s <= cost->tokens / cost->prompt_tokens_per_s ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
}

/* --- leaving --- */

bool preempt_ends_within(const struct preempt_rest *rest, uint64_t left_ns)
{
    double wanted_ns = rest->tokens_left * rest->step_ns;
    if (rest->prompt_tokens_per_s > 0)
        wanted_ns += rest->prompt_tokens_left * 1e9 / rest->prompt_tokens_per_s;
    return wanted_ns <= (double)left_ns;
}
