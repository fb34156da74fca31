/* Attention over an int8 KV cache, and its RoPE+KV write, in plain C: the definition. See attention_int8.h and
 * docs/NUMERICS.md. */
#include "kernels/cpu/attention_int8.h"

#include "kernels/cpu/rope_turn.h"

/* The bits of the largest magnitude: floats without their sign order as integers do, infinity and NaN on top. */
static uint32_t amax_bits(const float *x, uint32_t count)
{
    uint32_t top = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = mathf_bits(x[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    return top;
}

static uint16_t quantise(const float *x, uint32_t count, int8_t *q_out)
{
    uint16_t scale = kv_int8_scale(amax_bits(x, count));
    float inverse = kv_int8_inverse(scale);
    for (uint32_t i = 0; i < count; i++)
        q_out[i] = inverse == 0.0f ? 0 : (int8_t)mathf_rint(x[i] * inverse);
    return scale;
}

void cpu_plain_kv_int8_rope(const struct cpu_rope_row *row)
{
    rope_turn_all(row);
    kv_int8_row_store(row, quantise);
}

/* x becomes 16-bit integers; returns their factor. */
static float to_int16(const float *x, uint32_t count, int16_t *out)
{
    float inverse, factor = kv_int8_factor(amax_bits(x, count), &inverse);
    for (uint32_t i = 0; i < count; i++)
        out[i] = inverse == 0.0f ? 0 : (int16_t)mathf_rint(x[i] * inverse);
    return factor;
}

static const uint8_t *page_of(const struct cpu_attention_tile *tile, const uint8_t *base,
                              uint32_t position)
{
    return base + tile->blocks[position / tile->page_tokens] * tile->page_bytes;
}

/* Q . K at `position`. */
static int32_t score_sum(const struct cpu_attention_tile *tile, const int16_t *query,
                         uint32_t position)
{
    const int8_t *k = (const int8_t *)page_of(tile, tile->k, position);
    uint32_t token = position % tile->page_tokens;
    int32_t sum = 0;
    for (uint32_t i = 0; i < tile->head_dim; i++)
        sum += query[i] * k[kv_int8_k_index(tile->head_dim, i, token)];
    return sum;
}

static int32_t v_value(const struct cpu_attention_tile *tile, uint32_t position, uint32_t i)
{
    const int8_t *v = (const int8_t *)page_of(tile, tile->v, position);
    uint32_t token = position % tile->page_tokens;
    return v[kv_int8_v_index(tile->head_dim, tile->page_tokens, token, i)];
}

static float scale_at(const struct cpu_attention_tile *tile, const uint8_t *base, uint32_t position)
{
    const uint16_t *scales = (const uint16_t *)page_of(tile, base, position);
    return kv_int8_scale_value(scales[position % tile->page_tokens]);
}

/* One query head at `position`. */
static void attend(const struct cpu_attention_tile *tile, const float *q, uint32_t position,
                   float *out)
{
    int16_t query[KERN_HEAD_DIM_MAX], weight[ATTENTION_BLOCK];
    float factor = to_int16(q, tile->head_dim, query) * tile->scale;
    float running_max = 0, running_sum = 0;
    for (uint32_t begin = 0; begin <= position; begin += ATTENTION_BLOCK) {
        uint32_t count = position + 1 - begin;
        count = count < ATTENTION_BLOCK ? count : ATTENTION_BLOCK;
        float value[ATTENTION_BLOCK], max = -__builtin_inff();
        for (uint32_t j = 0; j < count; j++) {
            value[j] = (float)score_sum(tile, query, begin + j) * factor *
                       scale_at(tile, tile->k_scales, begin + j);
            max = value[j] > max ? value[j] : max;
        }
        float partial[16] = {0};
        for (uint32_t j = 0; j < count; j++) {
            float e = mathf_exp(value[j] - max);
            partial[j % 16] = partial[j % 16] + e;
            value[j] = e * scale_at(tile, tile->v_scales, begin + j);
        }
        for (int half = 8; half >= 1; half /= 2)
            for (int i = 0; i < half; i++)
                partial[i] = partial[i] + partial[i + half];
        float sum = partial[0], weight_factor = to_int16(value, count, weight);
        float new_max = max > running_max ? max : running_max;
        float keep = mathf_exp(running_max - new_max), add = mathf_exp(max - new_max);
        for (uint32_t i = 0; i < tile->head_dim; i++) {
            int32_t products = 0;
            for (uint32_t j = 0; j < count; j++)
                products += weight[j] * v_value(tile, begin + j, i);
            float o = (float)products * weight_factor;
            out[i] = begin == 0 ? o : __builtin_fmaf(out[i], keep, o * add);
        }
        running_sum = begin == 0 ? sum : __builtin_fmaf(running_sum, keep, sum * add);
        running_max = begin == 0 ? max : new_max;
    }
    float inverse = 1.0f / running_sum;
    for (uint32_t i = 0; i < tile->head_dim; i++)
        out[i] = out[i] * inverse;
}

void cpu_plain_kv_int8_tile(const struct cpu_attention_tile *tile)
{
    for (uint32_t r = 0; r < tile->rows; r++)
        for (uint32_t g = 0; g < tile->group; g++) {
            size_t at = r * tile->row_stride + (size_t)g * tile->head_dim;
            attend(tile, tile->q + at, tile->position + r, tile->out + at);
        }
}
