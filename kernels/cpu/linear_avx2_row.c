/* One row's int8 products for AVX2: equal to linear_plain.c to the bit. Bound by reading, so nothing but the records goes through
 * memory, and every instruction that the loop does without is one that reading need not wait for: beside a neighbour on the core's other
 * hardware thread hardly three a cycle are handed out.
 *
 *     matrix   |place 0 ───▶      |place 1 ───▶      |place 2 ───▶      |place 3 ───▶      |rest
 *
 * A line of each place in turn, a block of each before the next: the processor follows four streams of plain loads in order better than
 * one, and better than what is asked for far ahead; the activations are loaded once for all of them. Weights are loaded by the
 * instructions that cut them: vpand takes the low nibbles, vpmulhuw by 4096 is a shift by 4 that reads memory. (Of bytes: even ones,
 * and odd ones by a shift of 8, as words, so that vpmaddwd leaves sums of 32 bits.)
 * Owner: as linear.h. Compiled with -mavx2 -mfma -mf16c; called only where the CPU has them. */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/linear_avx2.h"

enum {
    STREAMS = 4,
    STREAMS_BYTES = 3,
    AHEAD =
        256, /* bytes of a stream: little, or asking would be in the way of the processor's own */
    FIRST = 1024, /* that are asked for before a product begins */
};

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i spread(const void *p)
{
    int32_t value;
    memcpy(&value, p, sizeof value);
    return _mm256_set1_epi32(value);
}

INLINE void line_ask(const uint8_t *line)
{
    _mm_prefetch((const char *)line + AHEAD, _MM_HINT_T0);
}

/* Both load and cut in one instruction each: the compiler would load once for both, which is one more. */
INLINE __m256i load_and(const void *p, __m256i mask)
{
    __m256i result;
    __asm__("vpand %[p], %[mask], %[result]"
            : [result] "=x"(result)
            : [mask] "x"(mask), [p] "m"(*(const __m256i_u *)p));
    return result;
}

INLINE __m256i load_shifted(const void *p, __m256i factor)
{
    __m256i result;
    __asm__("vpmulhuw %[p], %[factor], %[result]"
            : [result] "=x"(result)
            : [factor] "x"(factor), [p] "m"(*(const __m256i_u *)p));
    return result;
}

/* sum += products, as one chain: the compiler, left to itself, turns chains into trees and spills. */
INLINE __m256i add_words(__m256i sum, __m256i products)
{
    __asm__("vpaddw %[products], %[sum], %[sum]" : [sum] "+x"(sum) : [products] "x"(products));
    return sum;
}

INLINE __m256i add_doubles(__m256i sum, __m256i products)
{
    __asm__("vpaddd %[products], %[sum], %[sum]" : [sum] "+x"(sum) : [products] "x"(products));
    return sum;
}

/* One block of 16 outputs in each of S places: the end, from their integer sums. */
INLINE __m256 chain_block(const enum cpu_form form, __m256i sum, const uint8_t *scales, int half,
                          __m256 da, __m256 chain)
{
    const void *narrow = scales + half * 16, *wide = scales + half * 32;
    if (form == CPU_FORM_E32_PAIR || form == CPU_FORM_E32_SINGLE) {
        __m256i pair = form == CPU_FORM_E32_PAIR ? _mm256_loadu_si256(wide)
                                                 : _mm256_cvtepu16_epi32(_mm_loadu_si128(narrow));
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(sum, pair)), da, chain);
    }
    __m256 d = form == CPU_FORM_BYTE_HALF ? _mm256_cvtph_ps(_mm_loadu_si128(narrow))
                                          : _mm256_loadu_ps(wide);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, da), chain);
}

/* Nibbles add up in 16 bits (linear_avx2.c). */
INLINE void nibbles_abreast(const int S, const enum cpu_form form, const int8_t *row,
                            struct offsets at, const uint8_t *const *from, __m256 (*held)[2])
{
    const __m256i mask = _mm256_set1_epi8(15), factor = _mm256_set1_epi16(1 << 12);
    __m256i sum[STREAMS][2];
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        __m256i low = spread(row + at.a + g * 4), high = spread(row + at.a + 16 + g * 4);
#pragma GCC unroll 4
        for (int i = 0; i < S; i++) {
            const uint8_t *line = from[i] + g * CPU_LINE_BYTES;
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m256i w = load_and(line + h * 32, mask),
                        u = _mm256_and_si256(load_shifted(line + h * 32, factor), mask);
                w = _mm256_maddubs_epi16(w, low);
                sum[i][h] = g == 0 ? w : add_words(sum[i][h], w);
                sum[i][h] = add_words(sum[i][h], _mm256_maddubs_epi16(u, high));
            }
            line_ask(line);
        }
    }
    const __m256i ones = _mm256_set1_epi16(1), v0 = spread(row + at.v0);
    __m256 da = _mm256_castsi256_ps(spread(row + at.da));
#pragma GCC unroll 4
    for (int i = 0; i < S; i++) {
        line_ask(from[i] + CPU_NIBBLE_BYTES);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            held[i][h] = chain_block(form, _mm256_add_epi32(_mm256_madd_epi16(sum[i][h], ones), v0),
                                     from[i] + CPU_NIBBLE_BYTES, h, da, held[i][h]);
    }
}

/* S = sum of (w + 128) a, less 128 s. `words`: 16 bits of the even activations, then of the odd ones. */
INLINE void bytes_abreast(const int S, const enum cpu_form form, const int8_t *row,
                          struct offsets at, const uint8_t *const *from, __m256 (*held)[2])
{
    const __m256i mask = _mm256_set1_epi16(255), factor = _mm256_set1_epi16(1 << 8);
    const __m256i a = _mm256_loadu_si256((const void *)(row + at.a));
    _Alignas(32) int32_t words[2][8];
    _mm256_store_si256((void *)words[0], _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8));
    _mm256_store_si256((void *)words[1], _mm256_srai_epi16(a, 8));
    const __m256i start =
        _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(spread(row + at.s), 7));
    __m256i sum[STREAMS][2];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        __m256i even = spread(&words[0][g]), odd = spread(&words[1][g]);
#pragma GCC unroll 4
        for (int i = 0; i < S; i++) {
            const uint8_t *line = from[i] + g * CPU_LINE_BYTES;
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m256i w = load_and(line + h * 32, mask), u = load_shifted(line + h * 32, factor);
                w = _mm256_madd_epi16(w, even);
                sum[i][h] = g == 0 ? _mm256_add_epi32(w, start) : add_doubles(sum[i][h], w);
                sum[i][h] = add_doubles(sum[i][h], _mm256_madd_epi16(u, odd));
            }
            line_ask(line);
        }
    }
    __m256 da = _mm256_castsi256_ps(spread(row + at.da));
#pragma GCC unroll 4
    for (int i = 0; i < S; i++) {
        line_ask(from[i] + CPU_BYTE_BYTES);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            held[i][h] = chain_block(form, sum[i][h], from[i] + CPU_BYTE_BYTES, h, da, held[i][h]);
    }
}

/* The end of one panel's chains; `scales`: E32's D. As cpu_avx2_store, but for what most panels are: outputs in order. */
INLINE void chain_store(const enum cpu_form form, const struct cpu_linear_call *call, size_t index,
                        const uint8_t *scales, __m256 *held)
{
    if (index >= call->weights->in_order || call->maxima) {
        struct cpu_panel panel = cpu_weights_panel(call->weights, index);
        _Alignas(32) float chain[1][CPU_PANEL];
        _mm256_store_ps(chain[0], held[0]);
        _mm256_store_ps(chain[0] + 8, held[1]);
        cpu_avx2_store(call, &panel, call->rows.begin, 1, chain);
        return;
    }
    float *out = call->out + call->rows.begin * call->ld_out + index * CPU_PANEL;
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m256 y = held[h];
        if (cpu_form_is_e32(form))
            y = _mm256_mul_ps(y, _mm256_loadu_ps((const void *)(scales + h * 32)));
        if (call->accumulate)
            y = _mm256_add_ps(_mm256_loadu_ps(out + h * 8), y);
        _mm256_storeu_ps(out + h * 8, y);
    }
}

/* `count` panels from each of S places, `apart` panels from one to the next. */
INLINE void panels_abreast(const int S, const enum cpu_form form,
                           const struct cpu_linear_call *call, size_t begin, size_t count,
                           size_t apart)
{
    const size_t blocks = call->weights->blocks, record_bytes = cpu_form_record_bytes(form),
                 panel_bytes = cpu_form_panel_bytes(form, blocks),
                 apart_bytes = apart * panel_bytes;
    const uint8_t *record = call->weights->run[0].records + begin * panel_bytes;
    const int8_t *row = cpu_acts_a(&call->acts, call->rows.begin);
    for (size_t p = begin; p < begin + count; p++) {
        __m256 held[STREAMS][2];
#pragma GCC unroll 4
        for (int i = 0; i < S; i++)
            held[i][0] = held[i][1] = _mm256_setzero_ps();
        for (size_t b = 0; b < blocks; b++, record += record_bytes) {
            struct offsets at = block_offsets(&call->acts, b);
            const uint8_t *from[STREAMS];
#pragma GCC unroll 4
            for (int i = 0; i < S; i++)
                from[i] = record + (size_t)i * apart_bytes;
            if (cpu_form_is_e32(form))
                nibbles_abreast(S, form, row, at, from, held);
            else
                bytes_abreast(S, form, row, at, from, held);
        }
#pragma GCC unroll 4
        for (int i = 0; i < S; i++) {
            const uint8_t *end = record + (size_t)i * apart_bytes;
            if (cpu_form_is_e32(form)) /* a line of scales */
                line_ask(end);
            chain_store(form, call, p + (size_t)i * apart, end, held[i]);
        }
        record += panel_bytes - blocks * record_bytes;
    }
}

/* Panels of one form, [begin, end). */
INLINE void streams(const int S, const enum cpu_form form, const struct cpu_linear_call *call,
                    size_t begin, size_t end)
{
    size_t each = (end - begin) / (size_t)S;
    if (each > 0)
        panels_abreast(S, form, call, begin, each, each);
    begin += each * (size_t)S;
    if (begin < end)
        panels_abreast(1, form, call, begin, end - begin, 0);
}

void cpu_avx2_row(const struct cpu_linear_call *call, size_t begin, size_t end)
{
    switch (call->weights->run[0].form) {
    case CPU_FORM_E32_PAIR:
        streams(STREAMS, CPU_FORM_E32_PAIR, call, begin, end);
        break;
    case CPU_FORM_E32_SINGLE:
        streams(STREAMS, CPU_FORM_E32_SINGLE, call, begin, end);
        break;
    case CPU_FORM_BYTE_HALF:
        streams(STREAMS_BYTES, CPU_FORM_BYTE_HALF, call, begin, end);
        break;
    default:
        streams(STREAMS_BYTES, CPU_FORM_BYTE_FLOAT, call, begin, end);
        break;
    }
}

void cpu_avx2_row_ask(const struct cpu_weights *weights, size_t begin, size_t end)
{
    const struct cpu_panel_run *run = &weights->run[0];
    size_t places = cpu_form_is_e32(run->form) ? STREAMS : STREAMS_BYTES;
    end = end < run->panels ? end : run->panels;
    if (weights->compute != KERN_COMPUTE_INT8 || end < begin + places)
        return;
    const uint8_t *from = run->records + begin * run->panel_bytes;
    size_t apart_bytes = (end - begin) / places * run->panel_bytes;
    for (size_t at = 0; at < FIRST; at += CPU_LINE_BYTES)
        for (size_t i = 0; i < places; i++)
            _mm_prefetch((const char *)from + i * apart_bytes + at, _MM_HINT_T0);
}
