/* Attention and the RoPE+KV write in plain C: the definition. See attention.h and docs/NUMERICS.md. */
#include "kernels/cpu/attention.h"

#include <string.h>

#include "kernels/cpu/attention_int8.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/mathf.h"

#define HALF_FROM_FLOAT half_from_float
#include "kernels/cpu/rope_row.h"

/* K[i] at `position`, V[i] at `position`, of the tile's KV head. */
static float k_value(const struct cpu_attention_tile *tile, enum kern_kv_type type,
                     uint32_t position, uint32_t i)
{
    const uint8_t *page = tile->k + tile->blocks[position / tile->page_tokens] * tile->page_bytes;
    size_t at = kv_k_index(tile->head_dim, i, position % tile->page_tokens);
    return type == KERN_KV_F16 ? half_to_float(((const uint16_t *)page)[at])
                               : ((const float *)page)[at];
}

static float v_value(const struct cpu_attention_tile *tile, enum kern_kv_type type,
                     uint32_t position, uint32_t i)
{
    const uint8_t *page = tile->v + tile->blocks[position / tile->page_tokens] * tile->page_bytes;
    size_t at = kv_v_index(tile->head_dim, tile->page_tokens, position % tile->page_tokens, i);
    return type == KERN_KV_F16 ? half_to_float(((const uint16_t *)page)[at])
                               : ((const float *)page)[at];
}

/* The fixed tree over 16 partials. */
static float sum16(float partial[16])
{
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            partial[i] = partial[i] + partial[i + half];
    return partial[0];
}

/* One query head at `position`. */
static void attend(const struct cpu_attention_tile *tile, enum kern_kv_type type, const float *q,
                   uint32_t position, float *out)
{
    float running_max = 0, running_sum = 0, running[KERN_HEAD_DIM_MAX];
    for (uint32_t begin = 0; begin <= position; begin += ATTENTION_BLOCK) {
        uint32_t count = position + 1 - begin;
        count = count < ATTENTION_BLOCK ? count : ATTENTION_BLOCK;
        float score[ATTENTION_BLOCK], max = -__builtin_inff();
        for (uint32_t j = 0; j < count; j++) {
            float chain = 0;
            for (uint32_t i = 0; i < tile->head_dim; i++)
                chain = __builtin_fmaf(q[i], k_value(tile, type, begin + j, i), chain);
            score[j] = chain * tile->scale;
            max = score[j] > max ? score[j] : max;
        }
        float partial[16] = {0};
        for (uint32_t j = 0; j < count; j++) {
            score[j] = mathf_exp(score[j] - max);
            partial[j % 16] = partial[j % 16] + score[j];
        }
        float sum = sum16(partial);
        float new_max = max > running_max ? max : running_max;
        float keep = mathf_exp(running_max - new_max), add = mathf_exp(max - new_max);
        for (uint32_t i = 0; i < tile->head_dim; i++) {
            float chain = 0;
            for (uint32_t j = 0; j < count; j++)
                chain = __builtin_fmaf(score[j], v_value(tile, type, begin + j, i), chain);
            running[i] = begin == 0 ? chain : __builtin_fmaf(running[i], keep, chain * add);
        }
        running_sum = begin == 0 ? sum : __builtin_fmaf(running_sum, keep, sum * add);
        running_max = begin == 0 ? max : new_max;
    }
    float inverse = 1.0f / running_sum;
    for (uint32_t i = 0; i < tile->head_dim; i++)
        out[i] = running[i] * inverse;
}

static void tile_plain(const struct cpu_attention_tile *tile, enum kern_kv_type type)
{
    for (uint32_t r = 0; r < tile->rows; r++)
        for (uint32_t g = 0; g < tile->group; g++) {
            size_t at = r * tile->row_stride + (size_t)g * tile->head_dim;
            attend(tile, type, tile->q + at, tile->position + r, tile->out + at);
        }
}

static void tile_f32(const struct cpu_attention_tile *tile)
{
    tile_plain(tile, KERN_KV_F32);
}

static void tile_f16(const struct cpu_attention_tile *tile)
{
    tile_plain(tile, KERN_KV_F16);
}

const struct cpu_attention_kernels cpu_attention_plain = {
    .rope_kv = {rope_kv_f32, rope_kv_f16, cpu_plain_kv_int8_rope},
    .tile = {tile_f32, tile_f16, cpu_plain_kv_int8_tile},
};
