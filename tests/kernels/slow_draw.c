/* See slow_draw.h. */
#include "tests/kernels/slow_draw.h"

#include <stdlib.h>

#include "kernels/cpu/philox.h"

static const float *sorted_values;

static int better_first(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sorted_values[x] != sorted_values[y])
        return sorted_values[x] > sorted_values[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* One draw's weights, by the definition. */
struct slow {
    uint32_t ids[SLOW_WORDS], units[SLOW_WORDS]; /* in order; by id */
    bool within[SLOW_WORDS];                     /* top_k and top_p */
    uint32_t vocab, least;
};

uint32_t slow_fell;

static void slow_weigh(struct slow *slow, const float *values, const struct kern_sampling *how)
{
    const uint32_t vocab = slow->vocab;
    for (uint32_t i = 0; i < vocab; i++)
        slow->ids[i] = i;
    sorted_values = values;
    qsort(slow->ids, vocab, sizeof slow->ids[0], better_first);
    struct cpu_sampler_scale scale = scale_of_temperature(values[slow->ids[0]], how->temperature);
    uint32_t limit = how->top_k && how->top_k < vocab ? how->top_k : vocab;
    uint64_t total = 0, before = 0;
    for (uint32_t i = 0; i < vocab; i++)
        slow->units[i] = cpu_sampler_units(&scale, values[i]);
    for (uint32_t i = 0; i < limit; i++)
        total += slow->units[slow->ids[i]];
    unsigned __int128 enough = (unsigned __int128)(uint64_t)((double)how->top_p * 0x1p40) * total;
    for (uint32_t i = 0; i < vocab; i++) {
        uint32_t id = slow->ids[i];
        slow->within[id] =
            i < limit && (how->top_p >= 1 || i == 0 || (unsigned __int128)before << 40 < enough);
        before += slow->units[id];
    }
    slow->least = (uint32_t)ceil((double)how->min_p * 0x1p30);
}

/* By a running sum in the order. */
static uint32_t slow_in_order(const struct slow *slow, uint64_t number)
{
    uint64_t sum = 0, reached = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < slow->vocab; i++) {
            uint32_t id = slow->ids[i];
            if (!slow->within[id] || slow->units[id] < slow->least)
                continue;
            if (pass == 0)
                sum += slow->units[id];
            else if ((reached += slow->units[id]) > (unsigned __int128)number * sum >> 64)
                return id;
        }
    return slow->vocab;
}

uint32_t slow_draw(const float *values, uint32_t vocab, const struct kern_sampling *how,
                   uint32_t position)
{
    static struct slow slow;
    static uint32_t bounds[SLOW_WORDS / 64 + 1];
    uint64_t numbers[2], whole = 0;
    uint32_t end = 512;
    slow.vocab = vocab;
    slow_weigh(&slow, values, how);
    for (uint32_t i = 0; i < vocab; i += 64) {
        uint32_t best = i;
        for (uint32_t k = i; k < vocab && k < i + 64; k++)
            best = values[k] > values[best] ? k : best;
        bounds[i / 64] = slow.units[best] >= slow.least ? slow.units[best] : 0;
        whole += bounds[i / 64];
    }
    for (uint32_t i = 0; i < end && !(how->top_k && how->top_k < vocab); i++) {
        philox_block(how->seed, how->n_index, position, i / 2, numbers);
        uint64_t place = (uint64_t)((unsigned __int128)numbers[i % 2] * (whole * 64) >> 64),
                 height = place / 64, run = 0;
        for (; height >= bounds[run]; run++)
            height -= bounds[run];
        uint64_t id = 64 * run + place % 64;
        if (id >= vocab || slow.units[id] <= height || slow.units[id] < slow.least)
            continue;
        if (slow.within[id])
            return (uint32_t)id;
        end = i + 64 < end ? i + 64 : end;
    }
    slow_fell++;
    philox_block(how->seed, how->n_index, position, how->top_k && how->top_k < vocab ? 0 : 256,
                 numbers);
    return slow_in_order(&slow, numbers[0]);
}
