/* Merges the bytes of a word into tokens: always the pair of lowest rank, among equals the leftmost.
 *
 * Short words are searched again for each merge, which is fastest. Long ones (a megabyte of one letter is one word) keep
 * candidates in a heap ordered by (rank, position) over a linked list of symbols; a candidate whose pair has changed since is
 * dropped when it comes up, so the whole takes O(n log n).
 *
 *     symbols   [h]─[e]─[l]─[l]─[o]      heap  (rank of "h e", 0) (rank of "l l", 2) …
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_internal.h"

#define NO_SYMBOL UINT32_MAX
enum { SHORT_WORD = 24 };

struct symbol {
    uint32_t id, prev, next; /* id TOKEN_NONE: merged into its left neighbour */
};

struct candidate {
    uint32_t rank, at; /* `at`: the left symbol */
};

struct tokenizer_scratch {
    struct symbol *symbols;
    struct candidate *heap;
    size_t
        capacity; /* symbols; the heap has twice as many: each merge takes one out and puts at most two in */
    size_t heap_count;
};

struct tokenizer_scratch *tokenizer_scratch_create(void)
{
    return calloc(1, sizeof(struct tokenizer_scratch));
}

void tokenizer_scratch_destroy(struct tokenizer_scratch *scratch)
{
    if (!scratch)
        return;
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch);
}

static bool scratch_reserve(struct tokenizer_scratch *scratch, size_t symbols)
{
    if (symbols <= scratch->capacity)
        return true;
    size_t capacity = scratch->capacity * 2 > symbols ? scratch->capacity * 2 : symbols;
    free(scratch->symbols);
    free(scratch->heap);
    scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
    scratch->heap = malloc(2 * capacity * sizeof *scratch->heap);
    scratch->capacity = scratch->symbols && scratch->heap ? capacity : 0;
    return scratch->capacity != 0;
}

uint32_t tokenizer_pair_hash(uint32_t left, uint32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)((key ^ key >> 29) * UINT64_C(0xbf58476d1ce4e5b9) >> 32);
}

const struct merge *tokenizer_merge_find(const struct tokenizer *tokenizer, uint32_t left,
                                         uint32_t right)
{
    uint32_t slot = tokenizer_pair_hash(left, right) & tokenizer->merge_mask;
    for (;; slot = (slot + 1) & tokenizer->merge_mask) {
        const struct merge *merge = &tokenizer->merges[slot];
        if (merge->left == TOKEN_NONE)
            return NULL;
        if (merge->left == left && merge->right == right)
            return merge;
    }
}

/* ids[0, count) in place; returns how many are left. */
static size_t merge_short(const struct tokenizer *tokenizer, uint32_t *ids, size_t count)
{
    uint32_t ranks[SHORT_WORD], merged[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++) {
        const struct merge *merge = tokenizer_merge_find(tokenizer, ids[i], ids[i + 1]);
        ranks[i] = merge ? merge->rank : UINT32_MAX;
        merged[i] = merge ? merge->merged : 0;
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == UINT32_MAX)
            break;
        ids[best] = merged[best];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        memmove(ranks + best + 1, ranks + best + 2, (count - best - 1) * sizeof *ranks);
        memmove(merged + best + 1, merged + best + 2, (count - best - 1) * sizeof *merged);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < count; i++) {
            const struct merge *merge = tokenizer_merge_find(tokenizer, ids[i], ids[i + 1]);
            ranks[i] = merge ? merge->rank : UINT32_MAX;
            merged[i] = merge ? merge->merged : 0;
        }
    }
    return count;
}

static bool candidate_before(struct candidate a, struct candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(struct tokenizer_scratch *scratch, struct candidate candidate)
{
    assert(scratch->heap_count < 2 * scratch->capacity);
    size_t at = scratch->heap_count++;
    while (at && candidate_before(candidate, scratch->heap[(at - 1) / 2])) {
        scratch->heap[at] = scratch->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    scratch->heap[at] = candidate;
}

static struct candidate heap_pop(struct tokenizer_scratch *scratch)
{
    struct candidate top = scratch->heap[0], last = scratch->heap[--scratch->heap_count];
    size_t at = 0, count = scratch->heap_count;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && candidate_before(scratch->heap[child + 1], scratch->heap[child]))
            child++;
        if (!candidate_before(scratch->heap[child], last))
            break;
        scratch->heap[at] = scratch->heap[child];
    }
    scratch->heap[at] = last;
    return top;
}

static const struct merge *merge_at(const struct tokenizer *tokenizer,
                                    const struct tokenizer_scratch *scratch, uint32_t at)
{
    const struct symbol *symbol = &scratch->symbols[at];
    if (symbol->id == TOKEN_NONE || symbol->next == NO_SYMBOL)
        return NULL;
    return tokenizer_merge_find(tokenizer, symbol->id, scratch->symbols[symbol->next].id);
}

static void consider(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                     uint32_t at)
{
    const struct merge *merge = merge_at(tokenizer, scratch, at);
    if (merge)
        heap_push(scratch, (struct candidate){merge->rank, at});
}

static void merge_long(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                       size_t count)
{
    scratch->heap_count = 0;
    for (size_t i = 0; i + 1 < count; i++)
        consider(tokenizer, scratch, (uint32_t)i);
    while (scratch->heap_count) {
        struct candidate candidate = heap_pop(scratch);
        const struct merge *merge = merge_at(tokenizer, scratch, candidate.at);
        if (!merge || merge->rank != candidate.rank)
            continue; /* its pair is no more */
        struct symbol *left = &scratch->symbols[candidate.at];
        struct symbol *right = &scratch->symbols[left->next];
        left->id = merge->merged;
        right->id = TOKEN_NONE;
        left->next = right->next;
        if (left->next != NO_SYMBOL)
            scratch->symbols[left->next].prev = candidate.at;
        if (left->prev != NO_SYMBOL)
            consider(tokenizer, scratch, left->prev);
        consider(tokenizer, scratch, candidate.at);
    }
}

bool bpe_encode_word(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                     const char *word, size_t bytes, struct token_list *ids)
{
    /* A byte without a token is left out before merging, so that its neighbours may merge (as the reference does). */
    const uint8_t *at = (const uint8_t *)word;
    size_t count = 0;
    if (bytes <= SHORT_WORD) {
        uint32_t short_ids[SHORT_WORD];
        for (size_t i = 0; i < bytes; i++)
            if (tokenizer->byte_ids[at[i]] != TOKEN_NONE)
                short_ids[count++] = tokenizer->byte_ids[at[i]];
        count = merge_short(tokenizer, short_ids, count);
        for (size_t i = 0; i < count; i++)
            if (!token_list_append(ids, short_ids[i]))
                return false;
        return true;
    }
    if (!scratch_reserve(scratch, bytes))
        return false;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t id = tokenizer->byte_ids[at[i]];
        if (id == TOKEN_NONE)
            continue;
        scratch->symbols[count] =
            (struct symbol){id, count ? (uint32_t)(count - 1) : NO_SYMBOL, (uint32_t)(count + 1)};
        count++;
    }
    if (!count)
        return true;
    scratch->symbols[count - 1].next = NO_SYMBOL;
    merge_long(tokenizer, scratch, count);
    for (uint32_t i = 0; i != NO_SYMBOL; i = scratch->symbols[i].next)
        if (!token_list_append(ids, scratch->symbols[i].id))
            return false;
    return true;
}
