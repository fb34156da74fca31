/* See batch.h. */
#include "sched/batch.h"

#include <assert.h>

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How many of `rows` a prompt takes, all told, cut to a page boundary. */
static uint32_t chunk_rows(const struct batch_limits *limits,
                           const struct batch_candidate *candidate, uint32_t rows)
{
    rows = min_u32(rows, min_u32(candidate->rows_left, limits->chunk_tokens));
    if (rows == candidate->rows_left)
        return rows;
    uint32_t past = (candidate->position + rows) % limits->page_tokens;
    return past < rows ? rows - past : rows;
}

/* The prompt with the fewest rows left among those without a full chunk yet; `count` when there is
 * none. */
static uint32_t shortest(const struct batch_limits *limits, const struct batch_candidate *prompts,
                         const struct batch_share *shares, uint32_t count)
{
    uint32_t best = count;
    for (uint32_t i = 0; i < count; i++) {
        if (shares[i].rows >= min_u32(prompts[i].rows_left, limits->chunk_tokens))
            continue;
        if (best == count || prompts[i].rows_left < prompts[best].rows_left)
            best = i;
    }
    return best;
}

/* Divides `budget` rows among prompts, which are in order of age. Shares with no rows are possible.
 */
static void divide(const struct batch_limits *limits, const struct batch_candidate *prompts,
                   uint32_t count, uint32_t budget, struct batch_share *shares)
{
    for (uint32_t i = 0; i < count; i++)
        shares[i] = (struct batch_share){.index = prompts[i].index};

    uint32_t oldest_half = count > 1 ? budget - budget / 2 : budget;
    for (uint32_t i = 0; i < count && oldest_half; i++) {
        shares[i].rows = chunk_rows(limits, &prompts[i], oldest_half);
        oldest_half -= shares[i].rows;
        budget -= shares[i].rows;
    }
    /* Each is topped up at most once, to what its chunk allows; a cut that gains nothing ends its
     * turn. */
    for (uint32_t turn = 0; turn < count && budget; turn++) {
        uint32_t i = shortest(limits, prompts, shares, count);
        if (i == count)
            break;
        uint32_t rows = chunk_rows(limits, &prompts[i], shares[i].rows + budget);
        if (rows <= shares[i].rows)
            break;
        budget -= rows - shares[i].rows;
        shares[i].rows = rows;
    }
}

/* Prompts beside `used` rows that decode. */
static uint32_t plan(const struct batch_limits *limits, const struct batch_candidate *prompts,
                     uint32_t count, uint32_t used, struct batch_share *shares_inout)
{
    uint32_t rows = limits->rows_max - used;
    if (used && limits->beside_rows)
        rows = min_u32(rows, limits->beside_rows);
    count = min_u32(count, limits->sequences_max - used);
    divide(limits, prompts, count, rows, shares_inout + used);
    uint32_t kept = used;
    for (uint32_t i = 0; i < count; i++)
        if (shares_inout[used + i].rows)
            shares_inout[kept++] = shares_inout[used + i];
    return kept;
}

uint32_t batch_plan(struct batch_state *state, const struct batch_limits *limits,
                    struct batch_candidate *candidates, uint32_t count, uint32_t decode_count,
                    struct batch_share *shares_inout)
{
    assert(decode_count <= batch_decode_max(limits));
    /* the lonely ones out; the oldest of them is the one whose turn may come */
    uint32_t together = 0, alone_count = 0;
    struct batch_candidate lonely = {0};
    for (uint32_t i = 0; i < count; i++) {
        const struct batch_candidate *candidate = &candidates[i];
        if (!candidate->alone) {
            assert(candidate->rows_left);
            assert(!together || candidates[together - 1].age <= candidate->age);
            if (together != i)
                candidates[together] = *candidate;
            together++;
            continue;
        }
        if (!alone_count++ || candidate->age < lonely.age)
            lonely = *candidate;
    }
    bool its_turn = alone_count && (!(decode_count + together) || !state->alone_last);
    state->alone_last = its_turn;
    if (its_turn && !lonely.rows_left) {
        shares_inout[0] = (struct batch_share){.index = lonely.index, .rows = 1};
        return 1;
    }
    if (its_turn)
        return plan(limits, &lonely, 1, 0, shares_inout);
    return plan(limits, candidates, together, decode_count, shares_inout);
}

/* --- pace --- */

/* The mean of lately, but a rise counts at once, as a bound is to hold also in the next step; at most doubled, so that one
 * step that the machine disturbed is soon forgotten. */
static void pace_follow(double *mean, double value)
{
    if (*mean <= 0)
        *mean = value;
    else if (value > *mean)
        *mean = value < 2 * *mean ? value : 2 * *mean;
    else
        *mean = 0.75 * *mean + 0.25 * value;
}

void batch_pace_take(struct batch_pace *pace, uint32_t decode_rows, uint32_t prompt_rows,
                     uint64_t step_ns)
{
    if (!prompt_rows) {
        if (decode_rows)
            pace_follow(&pace->decode_ns, (double)step_ns);
        return;
    }
    /* what is not the prompt's by measurement is taken for it: that errs towards smaller chunks */
    double prompt_ns = (double)step_ns - (decode_rows ? pace->decode_ns : 0);
    double floor_ns = (double)step_ns / (decode_rows + prompt_rows);
    double row_ns = prompt_ns / prompt_rows;
    pace_follow(&pace->prompt_row_ns, row_ns > floor_ns ? row_ns : floor_ns);
}

/* Of a gap, as much is planned: the rest is for what no estimate knows, a deeper context, a core that somebody else wanted. */
static const double gap_planned = 0.75;
/* Of a step, prompts get at least so much, or a node whose decoding alone fills the gap would never come to them. */
static const double prompt_share_min = 0.125;

uint32_t batch_beside_rows(const struct batch_pace *pace, uint64_t gap_ns, uint32_t page_tokens)
{
    if (!gap_ns)
        return 0;
    if (pace->prompt_row_ns <= 0)
        return page_tokens;
    double room_ns = gap_planned * (double)gap_ns - pace->decode_ns;
    if (room_ns < prompt_share_min * pace->decode_ns)
        room_ns = prompt_share_min * pace->decode_ns;
    double rows = room_ns / pace->prompt_row_ns;
    if (rows < 1)
        return 1;
    uint32_t whole = rows < UINT32_MAX / 2 ? (uint32_t)rows : UINT32_MAX / 2;
    return whole < page_tokens ? whole : whole / page_tokens * page_tokens;
}
