/* A transfer's pieces as one row of numbers, the same on both sides: those of a group lie together, [block][run]. Pure.
 * Inside kvtransfer only. */
#ifndef BATON_KVTRANSFER_SHAPE_H
#define BATON_KVTRANSFER_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtransfer/source.h"

struct kv_layout {
    struct kv_shape shape;
    uint32_t piece_count, block_count;
    uint32_t piece_base[KV_GROUPS_MAX], block_base[KV_GROUPS_MAX];
};

/* False when the shape has more than `pieces_max` pieces, no group, or a group without runs. */
static inline bool kv_layout_init(struct kv_layout *layout, const struct kv_shape *shape,
                                  uint32_t pieces_max)
{
    if (shape->group_count == 0 || shape->group_count > KV_GROUPS_MAX)
        return false;
    *layout = (struct kv_layout){.shape = *shape};
    uint64_t pieces = 0, blocks = 0;
    for (uint32_t i = 0; i < shape->group_count; i++) {
        const struct kv_group_shape *group = &shape->groups[i];
        layout->piece_base[i] = (uint32_t)pieces;
        layout->block_base[i] = (uint32_t)blocks;
        pieces += (uint64_t)group->blocks * group->runs;
        blocks += group->blocks;
        if (group->runs == 0 || pieces > pieces_max)
            return false;
    }
    layout->piece_count = (uint32_t)pieces;
    layout->block_count = (uint32_t)blocks;
    return true;
}

static inline bool kv_layout_has(const struct kv_layout *layout, struct kv_piece piece)
{
    return piece.group < layout->shape.group_count &&
           piece.block < layout->shape.groups[piece.group].blocks &&
           piece.run < layout->shape.groups[piece.group].runs;
}

static inline uint32_t kv_layout_index(const struct kv_layout *layout, struct kv_piece piece)
{
    return layout->piece_base[piece.group] + piece.block * layout->shape.groups[piece.group].runs +
           piece.run;
}

static inline struct kv_piece kv_layout_piece(const struct kv_layout *layout, uint32_t index)
{
    uint16_t group = (uint16_t)(layout->shape.group_count - 1);
    while (index < layout->piece_base[group])
        group--;
    uint32_t within = index - layout->piece_base[group];
    uint16_t runs = layout->shape.groups[group].runs;
    return (struct kv_piece){
        .block = within / runs, .group = group, .run = (uint16_t)(within % runs)};
}

/* Sets of pieces. */
static inline bool bit_get(const uint64_t *words, uint32_t index)
{
    return words[index / 64] >> (index % 64) & 1;
}

static inline void bit_set(uint64_t *words, uint32_t index)
{
    words[index / 64] |= UINT64_C(1) << (index % 64);
}

static inline void bit_clear(uint64_t *words, uint32_t index)
{
    words[index / 64] &= ~(UINT64_C(1) << (index % 64));
}

#endif
