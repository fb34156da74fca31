/* The golden values of the forward pass are whole and make sense by themselves: formats as in README.md, ids in the vocabulary,
 * probabilities that add up. Needs no model. */
#include <math.h>

#include "tests/golden/golden_file.h"

enum { VOCAB = 49152 };

/* Reads `ids` and checks them; returns their number. */
static uint32_t skip_ids(struct golden *golden)
{
    uint32_t count = golden_u32(golden);
    uint32_t *ids = golden_ids(golden, count);
    for (uint32_t i = 0; i < count; i++)
        CHECK(ids[i] < VOCAB);
    free(ids);
    return count;
}

TEST(golden_files, sequences)
{
    struct golden golden = golden_open("sequences.bin", "BSEQ0001");
    uint32_t count = golden_u32(&golden), positions = 0;
    for (uint32_t i = 0; i < count; i++) {
        golden_bytes(&golden, golden_u32(&golden));
        positions += skip_ids(&golden);
    }
    CHECK_MSG(positions >= 10000, "%u positions", positions);
    golden_finish(&golden);
}

TEST(golden_files, greedy)
{
    struct golden golden = golden_open("greedy.bin", "BGRD0001");
    uint32_t count = golden_u32(&golden), tokens = golden_u32(&golden), close = 0;
    CHECK(count == 50 && tokens == 64);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(skip_ids(&golden) > 0);
        free(golden_ids(&golden, tokens));
        for (uint32_t j = 0; j < tokens; j++) {
            float margin = golden_f32(&golden);
            CHECK(isfinite(margin) && margin > -1e-3f);
            close += margin < 4e-3f;
        }
    }
    CHECK_MSG(close < count * tokens / 100, "%u of %u margins decide nothing", close,
              count * tokens);
    golden_finish(&golden);
}

TEST(golden_files, logits)
{
    struct golden golden = golden_open("logits.bin", "BLOG0001");
    uint32_t count = golden_u32(&golden);
    CHECK(count >= 20);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(skip_ids(&golden) > 0);
        float total = golden_f32(&golden);
        uint32_t values = golden_u32(&golden);
        CHECK(values >= 512 && values <= 576);
        uint32_t *ids = golden_ids(&golden, values);
        double known = 0;
        for (uint32_t j = 0; j < values; j++) {
            CHECK(ids[j] < VOCAB && (!j || ids[j] > ids[j - 1]));
            known += exp((double)golden_f32(&golden) - (double)total);
        }
        CHECK_MSG(known > 0.3 && known < 1.0001, "entry %u: %g of the mass", i, known);
        free(ids);
    }
    golden_finish(&golden);
}

TEST(golden_files, best_log_probabilities)
{
    struct golden golden = golden_open("top64.bin", "BTOP0001");
    uint32_t count = golden_u32(&golden), best = golden_u32(&golden), scored = 0;
    CHECK_INT(best, 64);
    for (uint32_t i = 0; i < count; i++) {
        golden_bytes(&golden, golden_u32(&golden));
        uint32_t tokens = skip_ids(&golden), first = golden_u32(&golden);
        uint32_t positions = golden_u32(&golden);
        CHECK(positions && first + positions <= tokens);
        scored += positions;
        for (uint32_t j = 0; j < positions; j++) {
            free(golden_ids(&golden, best));
            double total = 0, last = 0;
            for (uint32_t k = 0; k < best; k++) {
                double value = (double)golden_f32(&golden);
                CHECK(value <= last);
                last = value;
                total += exp(value);
            }
            total += (double)golden_f32(&golden);
            CHECK_MSG(fabs(total - 1) < 1e-5, "mass %g", total);
        }
    }
    CHECK_MSG(scored >= 1000, "%u positions", scored);
    golden_finish(&golden);
}
