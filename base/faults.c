/* See faults.h. */
#include "base/faults.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct place {
    uint64_t number;                   /* of the thing that passes now */
    uint64_t draws;                    /* for it, so far */
    uint32_t share[FAULTS_KIND_COUNT]; /* of 2^32 */
    uint64_t count[FAULTS_KIND_COUNT];
};

struct faults {
    uint64_t seed, max, total;
    uint64_t delay_ns, stall_ns;
    struct place places[FAULTS_PLACE_COUNT];
};

const char *faults_place_text(enum faults_place place)
{
    static const char *const texts[] = {
#define X(name, text) text,
        FAULTS_PLACES(X)
#undef X
    };
    return texts[place];
}

const char *faults_kind_text(enum faults_kind kind)
{
    static const char *const texts[] = {
#define X(name, text) text,
        FAULTS_KINDS(X)
#undef X
    };
    return texts[kind];
}

bool faults_built(void)
{
    return true;
}

/* --- the schedule's words --- */

static bool number_of(const char *text, double max, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= 0 && *out <= max;
}

/* "frame.drop": its share; NULL: no such place or kind. */
static uint32_t *share_of(struct faults *faults, const char *key)
{
    const char *dot = strchr(key, '.');
    for (int place = 0; dot && place < FAULTS_PLACE_COUNT; place++) {
        const char *text = faults_place_text((enum faults_place)place);
        if (strlen(text) != (size_t)(dot - key) || strncmp(text, key, strlen(text)) != 0)
            continue;
        for (int kind = 0; kind < FAULTS_KIND_COUNT; kind++)
            if (strcmp(faults_kind_text((enum faults_kind)kind), dot + 1) == 0)
                return &faults->places[place].share[kind];
    }
    return NULL;
}

static enum status word_take(struct faults *faults, char *word, struct err *err)
{
    char *value = strchr(word, '=');
    double number;
    if (!value)
        return err_set(err, STATUS_CONFIG, "faults: \"%.60s\" is not KEY=VALUE", word);
    *value++ = '\0';
    uint32_t *share = share_of(faults, word);
    bool known = share || !strcmp(word, "seed") || !strcmp(word, "max") ||
                 !strcmp(word, "delay_ms") || !strcmp(word, "stall_ms");
    if (!known)
        return err_set(err, STATUS_CONFIG, "faults: unknown key \"%.60s\"", word);
    if (!number_of(value, share ? 1 : 1e15, &number))
        return err_set(err, STATUS_CONFIG, "faults: %.60s: \"%.60s\" is not a number from 0 to %s",
                       word, value, share ? "1" : "10^15");
    if (share)
        *share = number >= 1 ? UINT32_MAX : (uint32_t)(number * 4294967296.0);
    else if (!strcmp(word, "seed"))
        faults->seed = (uint64_t)number;
    else if (!strcmp(word, "max"))
        faults->max = (uint64_t)number;
    else if (!strcmp(word, "delay_ms"))
        faults->delay_ns = (uint64_t)(number * (double)NS_PER_MS);
    else
        faults->stall_ns = (uint64_t)(number * (double)NS_PER_MS);
    return STATUS_OK;
}

enum status faults_create(const char *spec, struct faults **faults_out, struct err *err)
{
    struct faults *faults = calloc(1, sizeof *faults);
    char *copy = strdup(spec);
    enum status status =
        faults && copy ? STATUS_OK : err_set(err, STATUS_MEMORY, "faults: no memory");
    if (!status) {
        faults->seed = 1;
        faults->delay_ns = 30 * NS_PER_MS;
        faults->stall_ns = 500 * NS_PER_MS;
    }
    char *rest = copy;
    for (char *word; !status && (word = strsep(&rest, " ,"));)
        if (*word)
            status = word_take(faults, word, err);
    free(copy);
    if (status)
        free(faults);
    else
        *faults_out = faults;
    return status;
}

void faults_destroy(struct faults *faults)
{
    free(faults);
}

/* --- draws --- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t draw(struct faults *faults, enum faults_place at)
{
    struct place *place = &faults->places[at];
    uint64_t z = mix(faults->seed + UINT64_C(0x9e3779b97f4a7c15) * (1 + at));
    z = mix(z + UINT64_C(0x9e3779b97f4a7c15) * place->number);
    return mix(z + UINT64_C(0x9e3779b97f4a7c15) * ++place->draws);
}

void faults_next(struct faults *faults, enum faults_place place)
{
    if (!faults)
        return;
    faults->places[place].number++;
    faults->places[place].draws = 0;
}

bool faults_hit(struct faults *faults, enum faults_place place, enum faults_kind kind)
{
    if (!faults)
        return false;
    uint32_t share = faults->places[place].share[kind];
    if (!share || (uint32_t)(draw(faults, place) >> 32) >= share)
        return false;
    if (faults->max && faults->total >= faults->max)
        return false;
    faults->total++;
    faults->places[place].count[kind]++;
    return true;
}

void faults_miss(struct faults *faults, enum faults_place place, enum faults_kind kind)
{
    faults->total--;
    faults->places[place].count[kind]--;
}

uint64_t faults_random(struct faults *faults, enum faults_place place, uint64_t limit)
{
    return draw(faults, place) % limit;
}

static uint64_t upper_half(struct faults *faults, enum faults_place place, uint64_t ns)
{
    return ns / 2 + faults_random(faults, place, ns / 2 + 1);
}

uint64_t faults_delay_ns(struct faults *faults, enum faults_place place)
{
    return upper_half(faults, place, faults->delay_ns);
}

uint64_t faults_stall_ns(struct faults *faults, enum faults_place place)
{
    return upper_half(faults, place, faults->stall_ns);
}

void faults_flip_bit(struct faults *faults, enum faults_place place, void *data, size_t bytes)
{
    uint64_t bit = faults_random(faults, place, (uint64_t)bytes * 8);
    ((uint8_t *)data)[bit / 8] ^= (uint8_t)(1u << (bit & 7));
}

uint64_t faults_count(const struct faults *faults, enum faults_place place, enum faults_kind kind)
{
    return faults ? faults->places[place].count[kind] : 0;
}

uint64_t faults_total(const struct faults *faults)
{
    return faults ? faults->total : 0;
}

uint64_t faults_seed(const struct faults *faults)
{
    return faults ? faults->seed : 0;
}

static void injected_render(void *context, struct buf *out, const char *name)
{
    const struct faults *faults = context;
    for (int place = 0; place < FAULTS_PLACE_COUNT; place++)
        for (int kind = 0; kind < FAULTS_KIND_COUNT; kind++)
            if (faults->places[place].share[kind])
                metrics_sample(out, name, (double)faults->places[place].count[kind], "place",
                               faults_place_text((enum faults_place)place), "kind",
                               faults_kind_text((enum faults_kind)kind), NULL);
}

void faults_declare(const struct faults *faults, struct metrics *metrics)
{
    metrics_gauge_family(metrics, "baton_faults_injected", "Faults injected on purpose",
                         injected_render, (void *)faults);
}
