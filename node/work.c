/* See work.h. */
#include "node/work.h"

#include <assert.h>
#include <string.h>

#include "base/huge.h"
#include "base/plant.h"

static const struct sm_state states[] = {
    [WORK_FREE] = {"free", SM_TO(WORK_WAITING) | SM_TO(WORK_HOLDING)},
    [WORK_WAITING] = {"waiting", SM_TO(WORK_PROMPT) | SM_TO(WORK_FETCHING) | SM_TO(WORK_ENDING)},
    [WORK_PROMPT] = {"prompt", SM_TO(WORK_HOLDING) | SM_TO(WORK_DECODING) | SM_TO(WORK_SAVING) |
                                   SM_TO(WORK_ENDING)},
    [WORK_HOLDING] = {"holding", SM_TO(WORK_ENDING)},
    [WORK_FETCHING] = {"fetching", SM_TO(WORK_WAITING) | SM_TO(WORK_PROMPT) | SM_TO(WORK_ORPHAN) |
                                       SM_TO(WORK_DECODING) | SM_TO(WORK_SAVING) |
                                       SM_TO(WORK_PREEMPTED) | SM_TO(WORK_ENDING)},
    [WORK_ORPHAN] = {"orphan", SM_TO(WORK_DECODING) | SM_TO(WORK_ENDING)},
    [WORK_DECODING] = {"decoding", SM_TO(WORK_SAVING) | SM_TO(WORK_ENDING)},
    [WORK_SAVING] = {"saving", SM_TO(WORK_PREEMPTED) | SM_TO(WORK_ENDING)},
    [WORK_PREEMPTED] = {"preempted", SM_TO(WORK_RESTORING) | SM_TO(WORK_FETCHING) |
                                         SM_TO(WORK_PROMPT) | SM_TO(WORK_ENDING)},
    [WORK_RESTORING] = {"restoring", SM_TO(WORK_DECODING) | SM_TO(WORK_PROMPT) |
                                         SM_TO(WORK_SAVING) | SM_TO(WORK_ENDING)},
    [WORK_ENDING] = {"ending", SM_TO(WORK_LEAVING) | SM_TO(WORK_QUARANTINED)},
    [WORK_QUARANTINED] = {"quarantined", SM_TO(WORK_LEAVING)},
    [WORK_LEAVING] = {"leaving", SM_TO(WORK_FREE)},
};
const struct sm_table work_states = SM_TABLE("work", states);

/* --- lists --- */

/* Free entries, and those that only go, need no order: the last one is used again first. */
static bool state_by_age(unsigned state)
{
    return state != WORK_FREE && state < WORK_ENDING;
}

/* How many of those that decode are at least as old. */
static uint32_t turns_before(const struct work_table *table, uint64_t age)
{
    uint32_t begin = 0, end = table->state_counts[WORK_DECODING];
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (table->decoding[middle].age <= age)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

static void turn_enter(struct work *work)
{
    struct work_table *table = work->table;
    uint32_t count = table->state_counts[WORK_DECODING], at = turns_before(table, work->age);
    struct work_turn *turn = &table->decoding[at];
    memmove(turn + 1, turn, (count - at) * sizeof *turn);
    *turn = (struct work_turn){work->age, work};
}

static void turn_leave(struct work *work)
{
    struct work_table *table = work->table;
    uint32_t count = table->state_counts[WORK_DECODING], at = turns_before(table, work->age);
    struct work_turn *turn = &table->decoding[at - 1];
    for (; turn->work != work; turn--)
        assert(turn > table->decoding);
    memmove(turn, turn + 1, (size_t)(table->decoding + count - turn - 1) * sizeof *turn);
}

static void state_enter(struct work *work)
{
    struct list *head = &work->table->states[work->state];
    struct list *at = state_by_age(work->state) ? head : head->next;
    if (state_by_age(work->state))
        while (at->prev != head && container_of(at->prev, struct work, link)->age > work->age)
            at = at->prev;
    list_insert_before(at, &work->link);
    if (work->state == WORK_DECODING)
        turn_enter(work);
    work->table->state_counts[work->state]++;
}

static void state_leave(struct work *work)
{
    list_remove(&work->link);
    if (work->state == WORK_DECODING)
        turn_leave(work);
    work->table->state_counts[work->state]--;
}

static struct list *attempts_of(struct work_table *table, struct kv_id attempt)
{
    return &table->attempts[(attempt.low ^ attempt.low >> 32) & table->attempt_mask];
}

uint32_t work_count(const struct work_table *table, uint32_t states_wanted)
{
    uint32_t count = 0;
    for (unsigned state = 0; state < WORK_STATE_COUNT; state++)
        if (states_wanted & SM_TO(state))
            count += table->state_counts[state];
    return count;
}

/* --- the table --- */

/* Elements of 4 bytes from one work's array to the next one's: an odd number of lines of the processor's cache. With a power of two, as
 * lengths like to be, what a step looks at of each would have the same few places there, and what was asked for early would be
 * gone again when it is wanted. */
static size_t array_stride(uint32_t count)
{
    enum { LINE = 64 / sizeof(uint32_t) };
    return ((count + LINE - 1) / LINE | 1) * (size_t)LINE;
}

enum status work_table_init(struct work_table *table, uint32_t count, uint32_t tokens_max,
                            uint32_t pages_max)
{
    *table = (struct work_table){.count = count, .tokens_max = tokens_max, .pages_max = pages_max};
    for (unsigned state = 0; state < WORK_STATE_COUNT; state++)
        list_init(&table->states[state]);
    while (table->attempt_mask < count)
        table->attempt_mask = table->attempt_mask * 2 + 1;
    table->works = huge_alloc(count, sizeof *table->works);
    table->attempts = huge_alloc(table->attempt_mask + 1, sizeof *table->attempts);
    size_t tokens_stride = array_stride(tokens_max), pages_stride = array_stride(pages_max);
    uint32_t *tokens = table->memory[0] = huge_alloc(count * tokens_stride, sizeof *tokens);
    uint32_t *pages = table->memory[1] = huge_alloc(count * pages_stride, sizeof *pages);
    struct sampling_bias *bias = table->memory[2] =
        huge_alloc((size_t)count * SAMPLING_LOGIT_BIAS_MAX, sizeof *bias);
    uint32_t *stops = table->memory[3] =
        huge_alloc((size_t)count * SAMPLING_STOP_IDS_MAX, sizeof *stops);
    uint32_t *swaps = table->memory[4] = huge_alloc((size_t)count * pages_max, sizeof *swaps);
    uint32_t *stuck = table->memory[5] = huge_alloc((size_t)count * pages_max, sizeof *stuck);
    table->decoding = table->memory[6] = huge_alloc(count, sizeof *table->decoding);
    if (!table->works || !table->attempts || !tokens || !pages || !bias || !stops || !swaps ||
        !stuck || !table->decoding)
        return STATUS_MEMORY;
    for (uint32_t i = 0; i <= table->attempt_mask; i++)
        list_init(&table->attempts[i]);
    for (uint32_t i = count; i-- > 0;) {
        table->works[i] = (struct work){
            .index = i,
            .table = table,
            .tokens = tokens + i * tokens_stride,
            .pages = pages + i * pages_stride,
            .bias = bias + (size_t)i * SAMPLING_LOGIT_BIAS_MAX,
            .stop_ids = stops + (size_t)i * SAMPLING_STOP_IDS_MAX,
            .swap_pages = swaps + (size_t)i * pages_max,
            .stuck_pages = stuck + (size_t)i * pages_max,
        };
        state_enter(&table->works[i]);
    }
    return STATUS_OK;
}

void work_table_finish(struct work_table *table)
{
    huge_free(table->works);
    huge_free(table->attempts);
    for (int i = 0; i < 7; i++)
        huge_free(table->memory[i]);
    *table = (struct work_table){0};
}

struct work *work_take(struct work_table *table)
{
    if (list_empty(&table->states[WORK_FREE]))
        return NULL;
    struct work *work = container_of(table->states[WORK_FREE].next, struct work, link);
    list_remove(&work->link);
    *work = (struct work){.index = work->index,
                          .table = table,
                          .life = work->life + 1,
                          .tokens = work->tokens,
                          .pages = work->pages,
                          .bias = work->bias,
                          .stop_ids = work->stop_ids,
                          .swap_pages = work->swap_pages,
                          .stuck_pages = work->stuck_pages};
    list_push_front(&table->states[WORK_FREE], &work->link);
    return work;
}

struct work *work_find_any(struct work_table *table, struct kv_id attempt)
{
    list_for_each(it, attempts_of(table, attempt))
    {
        struct work *work = container_of(it, struct work, attempt_link);
        if (kv_id_equal(work->key.transfer, attempt))
            return work;
    }
    return NULL;
}

/* No two works of one attempt are here at a time: an assignment finds none of its attempt, or is refused. */
struct work *work_find(struct work_table *table, struct kv_id attempt)
{
    struct work *work = work_find_any(table, attempt);
    return work && work_live(work) ? work : NULL;
}

void work_move(struct work *work, enum work_state to, uint64_t now_ns)
{
    struct work_table *table = work->table;
    table->moves++;
    if (work->state == WORK_FREE)
        list_push_back(attempts_of(table, work->key.transfer), &work->attempt_link);
    if (work->alone && work->state == WORK_FREE)
        table->alone_count++;
    state_leave(work);
    sm_move(&work_states, &work->state, to);
    state_enter(work);
    if (to == WORK_FREE)
        list_remove(&work->attempt_link);
    if (work->alone && to == WORK_FREE)
        table->alone_count--;
    work->page_written = PLANTED(PAGE_NOT_OPENED) ? work->page_written : 0;
    work->state_since_ns = now_ns;
}

enum work_finish work_finish(const struct work *work, uint32_t token)
{
    assert(work->generated_count > 0);
    if (work->generated_count >= work->min_tokens)
        for (uint32_t i = 0; i < work->stop_count; i++)
            if (work->stop_ids[i] == token)
                return WORK_FINISH_STOP;
    return work->generated_count >= work->answer_max ? WORK_FINISH_LENGTH : WORK_FINISH_NONE;
}
