/* See peaks.h. */
#include "kernels/cpu/peaks.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/huge.h"
#include "kernels/cpu/peaks_loops.h"

/* --- timing --- */

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Seconds, by `clock`, of the fastest of at least `runs` runs within about `seconds`. */
static double best_of(clockid_t clock, int runs, double seconds, void (*run)(void *data),
                      void *data)
{
    double until = now(CLOCK_MONOTONIC) + seconds, best = INFINITY;
    for (int i = 0; i < runs || now(CLOCK_MONOTONIC) < until; i++) {
        double begin = now(clock);
        run(data);
        double taken = now(clock) - begin;
        best = taken < best ? taken : best;
    }
    return best;
}

/* --- threads that work between two barriers --- */

struct team {
    unsigned threads;
    void (*run)(void *data);
    void *data[PEAKS_THREADS_MAX];
    unsigned started; /* with the caller's */
    bool ending;
    pthread_barrier_t begin, end;
    pthread_mutex_t door; /* held until it is known how many there are */
    pthread_t others[PEAKS_THREADS_MAX];
};

struct member {
    struct team *team;
    unsigned index;
};

static void *member_main(void *data)
{
    struct member *member = data;
    struct team *team = member->team;
    unsigned index = member->index;
    pthread_mutex_lock(&team->door);
    pthread_mutex_unlock(&team->door);
    if (team->started < team->threads)
        return NULL;
    pthread_barrier_wait(&team->end);
    for (;;) {
        pthread_barrier_wait(&team->begin);
        if (team->ending)
            return NULL;
        team->run(team->data[index]);
        pthread_barrier_wait(&team->end);
    }
}

static enum status team_start(struct team *team)
{
    struct member members[PEAKS_THREADS_MAX]; /* read before this returns */
    pthread_barrier_init(&team->begin, NULL, team->threads);
    pthread_barrier_init(&team->end, NULL, team->threads);
    pthread_mutex_init(&team->door, NULL);
    pthread_mutex_lock(&team->door);
    for (team->started = 1; team->started < team->threads; team->started++) {
        members[team->started] = (struct member){team, team->started};
        if (pthread_create(&team->others[team->started], NULL, member_main,
                           &members[team->started]))
            break;
    }
    bool all = team->started == team->threads;
    pthread_mutex_unlock(&team->door);
    if (all) {
        pthread_barrier_wait(&team->end); /* all have read their member */
        return STATUS_OK;
    }
    for (unsigned i = 1; i < team->started; i++)
        pthread_join(team->others[i], NULL);
    return STATUS_MEMORY;
}

static void team_stop(struct team *team)
{
    team->ending = true;
    pthread_barrier_wait(&team->begin);
    for (unsigned i = 1; i < team->threads; i++)
        pthread_join(team->others[i], NULL);
    pthread_barrier_destroy(&team->begin);
    pthread_barrier_destroy(&team->end);
    pthread_mutex_destroy(&team->door);
}

static void team_round(void *data)
{
    struct team *team = data;
    pthread_barrier_wait(&team->begin);
    team->run(team->data[0]);
    pthread_barrier_wait(&team->end);
}

/* Seconds of the fastest round. */
static double team_best(struct team *team, double seconds)
{
    return team->threads == 1
               ? best_of(CLOCK_THREAD_CPUTIME_ID, 3, seconds, team->run, team->data[0])
               : best_of(CLOCK_MONOTONIC, 3, seconds, team_round, team);
}

/* --- arithmetic --- */

struct loop_time {
    void (*run)(void *unused);
    int runs; /* of a round, at least */
    double seconds;
    double best; /* seconds of the calling thread's processor time */
};

static void loop_timed(void *data)
{
    struct loop_time *time = data;
    double seconds = best_of(CLOCK_THREAD_CPUTIME_ID, time->runs, time->seconds, time->run, NULL);
    time->best = seconds < time->best ? seconds : time->best;
}

/* 1e9 operations a second of a loop: the sum of what each thread reaches in its own processor time while the others do the same. */
static enum status rate(unsigned threads, const struct peaks_loop *loop, enum peaks_care care,
                        double *rate_out)
{
    struct loop_time times[PEAKS_THREADS_MAX];
    struct team team = {.threads = threads, .run = loop_timed};
    static const double round_seconds[] = {0, 0.02, 0.02}, seconds[] = {0, 0, 0.3}; /* by care */
    const bool sharp = care == PEAKS_SHARP;
    for (unsigned i = 0; i < threads; i++) {
        times[i] = (struct loop_time){loop->run, care ? 3 : 2, round_seconds[care], INFINITY};
        team.data[i] = &times[i];
    }
    enum status status = team_start(&team);
    if (status)
        return status;
    best_of(CLOCK_MONOTONIC, sharp ? 3 : 1, seconds[care], team_round, &team);
    team_stop(&team);
    double loops = 0;
    for (unsigned i = 0; i < threads; i++)
        loops += 1 / times[i].best;
    *rate_out = loops * loop->operations * 1e-9;
    return STATUS_OK;
}

enum status peaks_measure(enum cpu_isa_level isa, unsigned threads, enum peaks_care care,
                          struct peaks *peaks_out)
{
    struct peaks_loop loops[PEAKS_LOOPS];
    double rates[PEAKS_LOOPS];
    peaks_loops_arithmetic(isa, loops);
    for (int i = 0; i < PEAKS_LOOPS; i++) {
        enum status status = rate(threads, &loops[i], care, &rates[i]);
        if (status)
            return status;
    }
    *peaks_out =
        (struct peaks){rates[PEAKS_F32],         rates[PEAKS_INT8],     rates[PEAKS_NIBBLE],
                       rates[PEAKS_PAIR],        loops[PEAKS_F32].name, loops[PEAKS_INT8].name,
                       loops[PEAKS_NIBBLE].name, loops[PEAKS_PAIR].name};
    return STATUS_OK;
}

/* --- memory --- */

/* One pass of several threads, which are timed by the clock; of one, enough that processor time can be trusted: under a hypervisor
 * it is corrected for what was stolen, now and then and afterwards, so that the best of much shorter pieces would be too good. */
enum { READS = 5 };

static void read_once(void *data)
{
    ((struct peaks_span *)data)->read(data);
}

static void read_again(void *data)
{
    for (int i = 0; i < READS; i++)
        read_once(data);
}

enum { BEST = 3 };

struct way {
    peaks_read *read;
    size_t ahead;
    double rate; /* GB/s at first */
};

struct peaks_reader {
    struct team team;
    struct peaks_span spans[PEAKS_THREADS_MAX];
    uint8_t *memory;
    struct way best[BEST]; /* best first */
};

/* GB/s of all spans, read this way. */
static double way_rate(struct peaks_reader *reader, const struct way *way, double seconds)
{
    struct team *team = &reader->team;
    for (unsigned i = 0; i < team->threads; i++) {
        reader->spans[i].read = way->read;
        reader->spans[i].ahead = way->ahead;
    }
    double passes = team->run == read_again ? READS : 1,
           bytes = (double)reader->spans[0].bytes * team->threads * passes;
    return bytes / team_best(team, seconds) * 1e-9;
}

static void ways_try(struct peaks_reader *reader, enum cpu_isa_level isa, bool quick)
{
    for (size_t pattern = 0; pattern < PEAKS_READS; pattern++) {
        peaks_read *read = peaks_loops_read(isa, pattern);
        for (size_t ahead = 0; read && ahead <= 8192; ahead = ahead ? ahead * 2 : 512) {
            if (quick && !(pattern == 0 && ahead == 0) && !(pattern == 1 && ahead == 2048) &&
                !(pattern == 2 && ahead == 2048))
                continue; /* each was the best, or nearly, wherever it was tried */
            struct way way = {read, ahead, 0};
            way.rate = way_rate(reader, &way, quick ? 0 : 0.05);
            for (int i = 0; i < BEST; i++)
                if (way.rate > reader->best[i].rate) {
                    struct way worse = reader->best[i];
                    reader->best[i] = way;
                    way = worse;
                }
        }
    }
}

enum status peaks_reader_create(enum cpu_isa_level isa, size_t bytes, unsigned threads,
                                enum peaks_care care, struct peaks_reader **reader_out)
{
    struct peaks_reader *reader = calloc(1, sizeof *reader);
    size_t each = bytes / threads / 4096 * 4096;
    if (!reader)
        return STATUS_MEMORY;
    reader->memory = huge_alloc(each, threads);
    if (!reader->memory) {
        free(reader);
        return STATUS_MEMORY;
    }
    memset(reader->memory, 1, each * threads);
    reader->team.threads = threads;
    reader->team.run = threads == 1 && care != PEAKS_QUICK ? read_again : read_once;
    for (unsigned i = 0; i < threads; i++) {
        reader->spans[i] = (struct peaks_span){.begin = reader->memory + i * each, .bytes = each};
        reader->team.data[i] = &reader->spans[i];
    }
    enum status status = team_start(&reader->team);
    if (status) {
        huge_free(reader->memory);
        free(reader);
        return status;
    }
    ways_try(reader, isa, care == PEAKS_QUICK);
    *reader_out = reader;
    return STATUS_OK;
}

void peaks_reader_destroy(struct peaks_reader *reader)
{
    if (!reader)
        return;
    team_stop(&reader->team);
    huge_free(reader->memory);
    free(reader);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* GB/s of one thread's typical pass. */
static double way_typical(struct peaks_reader *reader, const struct way *way)
{
    enum { PASSES = 12 };
    double seconds[PASSES];
    struct peaks_span *span = &reader->spans[0];
    span->ahead = way->ahead;
    for (int i = 0; i < PASSES; i++)
        seconds[i] = best_of(CLOCK_THREAD_CPUTIME_ID, 1, 0, way->read, span);
    qsort(seconds, PASSES, sizeof *seconds, ascending);
    return (double)span->bytes / seconds[PASSES / 2] * 1e-9;
}

double peaks_reader_rate(struct peaks_reader *reader)
{
    double best = 0;
    for (int i = 0; i < BEST && reader->best[i].read; i++) {
        double rate = reader->team.threads == 1 ? way_typical(reader, &reader->best[i])
                                                : way_rate(reader, &reader->best[i], 0);
        best = rate > best ? rate : best;
    }
    return best;
}

enum status peaks_read_bandwidth(enum cpu_isa_level isa, size_t bytes, unsigned threads,
                                 enum peaks_care care, double *gb_per_s_out)
{
    struct peaks_reader *reader;
    enum status status = peaks_reader_create(isa, bytes, threads, care, &reader);
    if (status)
        return status;
    double first = reader->best[0].rate,
           again = way_rate(reader, &reader->best[0], care == PEAKS_SHARP ? 1.0 : 0);
    *gb_per_s_out = again > first ? again : first;
    peaks_reader_destroy(reader);
    return STATUS_OK;
}
