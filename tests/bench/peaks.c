/* See peaks.h. x86-64 alone. */
#include "tests/bench/peaks.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/bench/bench.h"

/* --- threads that work between two barriers --- */

struct team {
    unsigned threads;
    void (*run)(void *data);
    void *data[PEAKS_THREADS_MAX];
    bool ending;
    pthread_barrier_t begin, end;
    pthread_t others[PEAKS_THREADS_MAX];
};

struct member {
    struct team *team;
    unsigned index;
};

static void *member_main(void *data)
{
    struct member member = *(struct member *)data;
    pthread_barrier_wait(&member.team->end);
    for (;;) {
        pthread_barrier_wait(&member.team->begin);
        if (member.team->ending)
            return NULL;
        member.team->run(member.team->data[member.index]);
        pthread_barrier_wait(&member.team->end);
    }
}

static void team_start(struct team *team)
{
    pthread_barrier_init(&team->begin, NULL, team->threads);
    pthread_barrier_init(&team->end, NULL, team->threads);
    struct member members[PEAKS_THREADS_MAX];
    for (unsigned i = 1; i < team->threads; i++) {
        members[i] = (struct member){team, i};
        if (pthread_create(&team->others[i], NULL, member_main, &members[i]) != 0) {
            fprintf(stderr, "peaks: no thread\n");
            exit(1);
        }
    }
    pthread_barrier_wait(&team->end); /* all have copied their member */
}

static void team_stop(struct team *team)
{
    team->ending = true;
    pthread_barrier_wait(&team->begin);
    for (unsigned i = 1; i < team->threads; i++)
        pthread_join(team->others[i], NULL);
    pthread_barrier_destroy(&team->begin);
    pthread_barrier_destroy(&team->end);
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
    return team->threads == 1 ? bench_best_cpu(seconds, team->run, team->data[0])
                              : bench_best(seconds, team_round, team);
}

/* --- arithmetic --- */

/* Some milliseconds: under a hypervisor processor time is corrected for what was stolen, now and then and afterwards, so that
 * the best of much shorter pieces would be too good to be true. */
enum { PASSES = 500000 };

/* Ten chains, so that latency hides: each line is repeated for ymm0..ymm9 as accumulators. ymm10..ymm15 are operands and
 * temporaries, all zero: no denormals, no traps. */
#define CHAINS_AVX2(line)                                                           \
    line("0", "12") line("1", "13") line("2", "14") line("3", "15") line("4", "12") \
        line("5", "13") line("6", "14") line("7", "15") line("8", "12") line("9", "13")
#define FMA(acc, temp) "vfmadd231ps %%ymm10, %%ymm11, %%ymm" acc "\n\t"
#define MADDUBS_WIDE(acc, temp)                          \
    "vpmaddubsw %%ymm10, %%ymm11, %%ymm" temp "\n\t"     \
    "vpmaddwd %%ymm11, %%ymm" temp ", %%ymm" temp "\n\t" \
    "vpaddd %%ymm" temp ", %%ymm" acc ", %%ymm" acc "\n\t"
#define MADDUBS_NARROW(acc, temp)                    \
    "vpmaddubsw %%ymm10, %%ymm11, %%ymm" temp "\n\t" \
    "vpaddw %%ymm" temp ", %%ymm" acc ", %%ymm" acc "\n\t"
#define MADDWD(acc, temp)                          \
    "vpmaddwd %%ymm10, %%ymm11, %%ymm" temp "\n\t" \
    "vpaddd %%ymm" temp ", %%ymm" acc ", %%ymm" acc "\n\t"
#define CHAINS_AVX512(line)                                                                   \
    line("0") line("1") line("2") line("3") line("4") line("5") line("6") line("7") line("8") \
        line("9") line("12") line("13") line("14") line("15") line("16") line("17")
#define FMA_512(acc) "vfmadd231ps %%zmm10, %%zmm11, %%zmm" acc "\n\t"
#define DPBUSD_512(acc) "vpdpbusd %%zmm10, %%zmm11, %%zmm" acc "\n\t"
#define DPWSSD_512(acc) "vpdpwssd %%zmm10, %%zmm11, %%zmm" acc "\n\t"

#define CLOBBERS_AVX2                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"

#define DEFINE_LOOP(name, target_, clobbers, body)                          \
    __attribute__((target(target_), noinline)) static void name(void *data) \
    {                                                                       \
        (void)data;                                                         \
        __asm__ volatile("vzeroall" ::: clobbers);                          \
        for (int i = 0; i < PASSES; i++)                                    \
            __asm__ volatile(body body ::: clobbers);                       \
        __asm__ volatile("vzeroupper" ::: clobbers);                        \
    }
DEFINE_LOOP(loop_fma, "avx2,fma", CLOBBERS_AVX2, CHAINS_AVX2(FMA))
DEFINE_LOOP(loop_wide, "avx2,fma", CLOBBERS_AVX2, CHAINS_AVX2(MADDUBS_WIDE))
DEFINE_LOOP(loop_narrow, "avx2,fma", CLOBBERS_AVX2, CHAINS_AVX2(MADDUBS_NARROW))
DEFINE_LOOP(loop_pair, "avx2,fma", CLOBBERS_AVX2, CHAINS_AVX2(MADDWD))
#define CLOBBERS_AVX512                                                                      \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "cc"
DEFINE_LOOP(loop_fma_512, "avx512f", CLOBBERS_AVX512, CHAINS_AVX512(FMA_512))
DEFINE_LOOP(loop_dpbusd_512, "avx512f,avx512vnni", CLOBBERS_AVX512, CHAINS_AVX512(DPBUSD_512))
DEFINE_LOOP(loop_dpwssd_512, "avx512f,avx512vnni", CLOBBERS_AVX512, CHAINS_AVX512(DPWSSD_512))

struct loop_time {
    void (*loop)(void *data);
    double best; /* seconds of the calling thread's processor time */
};

static void loop_timed(void *data)
{
    struct loop_time *time = data;
    double seconds = bench_best_cpu(0.02, time->loop, NULL);
    time->best = seconds < time->best ? seconds : time->best;
}

/* 1e9 operations a second of a loop with `chains` steps of `products` products in each of its two bodies: the sum of what each
 * thread reaches in its own processor time while the others do the same. */
static double rate(unsigned threads, void (*loop)(void *), double chains, double products)
{
    struct loop_time times[PEAKS_THREADS_MAX];
    struct team team = {.threads = threads, .run = loop_timed};
    for (unsigned i = 0; i < threads; i++) {
        times[i] = (struct loop_time){loop, INFINITY};
        team.data[i] = &times[i];
    }
    team_start(&team);
    bench_best(0.3, team_round, &team);
    team_stop(&team);
    double loops = 0;
    for (unsigned i = 0; i < threads; i++)
        loops += 1 / times[i].best;
    return loops * 2.0 * PASSES * 2.0 * chains * products * 1e-9;
}

void peaks_measure(enum cpu_isa_level isa, unsigned threads, struct peaks *peaks_out)
{
    *peaks_out = (struct peaks){.f32 = isa >= CPU_ISA_AVX512 ? rate(threads, loop_fma_512, 16, 16)
                                                             : rate(threads, loop_fma, 10, 8)};
    if (isa >= CPU_ISA_AVX512VNNI) {
        peaks_out->int8 = peaks_out->nibble = rate(threads, loop_dpbusd_512, 16, 64);
        peaks_out->int8_name = peaks_out->nibble_name = "vpdpbusd GOP/s";
        peaks_out->pair = rate(threads, loop_dpwssd_512, 16, 32);
        peaks_out->pair_name = "vpdpwssd GOP/s";
        return;
    }
    peaks_out->int8 = rate(threads, loop_wide, 10, 32);
    peaks_out->int8_name = "vpmaddubsw+vpmaddwd+vpaddd GOP/s";
    peaks_out->nibble = rate(threads, loop_narrow, 10, 32);
    peaks_out->nibble_name = "vpmaddubsw+vpaddw GOP/s";
    peaks_out->pair = rate(threads, loop_pair, 10, 16);
    peaks_out->pair_name = "vpmaddwd+vpaddd GOP/s";
}

/* --- memory --- */

struct span {
    void (*read)(void *span);
    const uint8_t *begin;
    size_t bytes; /* a multiple of 4 streams x 128 bytes */
    size_t
        ahead; /* bytes between a load and its prefetch; 0: a prefetch of the very line, which is none */
};

/* Two lines of the stream whose reads start at operand `p` and prefetches at operand `q`. */
#define LINES(p, q, acc, hint)                               \
    "vpor (%[" p "],%[i]), %%ymm" acc ", %%ymm" acc "\n\t"   \
    "vpor 32(%[" p "],%[i]), %%ymm" acc ", %%ymm" acc "\n\t" \
    "vpor 64(%[" p "],%[i]), %%ymm" acc ", %%ymm" acc "\n\t" \
    "vpor 96(%[" p "],%[i]), %%ymm" acc ", %%ymm" acc "\n\t" \
    "prefetch" hint " (%[" q "],%[i])\n\t"                   \
    "prefetch" hint " 64(%[" q "],%[i])\n\t"

#define DEFINE_READ(name, streams, lines)                                                       \
    __attribute__((target("avx2"), noinline)) static void name(void *data)                      \
    {                                                                                           \
        const struct span *span = data;                                                         \
        size_t each = span->bytes / (streams), i = 0;                                           \
        const uint8_t *p = span->begin, *q = p + span->ahead;                                   \
        __asm__ volatile(                                                                       \
            "vzeroall\n\t"                                                                      \
            "1:\n\t" lines "add $128, %[i]\n\t"                                                 \
            "cmp %[each], %[i]\n\t"                                                             \
            "jb 1b\n\t"                                                                         \
            "vzeroupper"                                                                        \
            : [i] "+r"(i)                                                                       \
            : [each] "r"(each), [p0] "r"(p), [q0] "r"(q), [p1] "r"(p + each * (1 % (streams))), \
              [q1] "r"(q + each * (1 % (streams))), [p2] "r"(p + each * (2 % (streams))),       \
              [q2] "r"(q + each * (2 % (streams))), [p3] "r"(p + each * (3 % (streams))),       \
              [q3] "r"(q + each * (3 % (streams)))                                              \
            : CLOBBERS_AVX2, "memory");                                                         \
    }
#define STREAMS_1(hint) LINES("p0", "q0", "0", hint)
#define STREAMS_2(hint) STREAMS_1(hint) LINES("p1", "q1", "1", hint)
#define STREAMS_4(hint) STREAMS_2(hint) LINES("p2", "q2", "2", hint) LINES("p3", "q3", "3", hint)
DEFINE_READ(read_1_t0, 1, STREAMS_1("t0"))
DEFINE_READ(read_2_t0, 2, STREAMS_2("t0"))
DEFINE_READ(read_4_t0, 4, STREAMS_4("t0"))
DEFINE_READ(read_1_nta, 1, STREAMS_1("nta"))
DEFINE_READ(read_2_nta, 2, STREAMS_2("nta"))
DEFINE_READ(read_4_nta, 4, STREAMS_4("nta"))

static void (*const reads[])(void *) = {read_1_t0,  read_2_t0,  read_4_t0,
                                        read_1_nta, read_2_nta, read_4_nta};

/* One pass of several threads, which are timed by the clock; of one, enough that processor time can be trusted (see PASSES). */
enum { READS = 5 };

static void read_once(void *data)
{
    ((struct span *)data)->read(data);
}

static void read_again(void *data)
{
    for (int i = 0; i < READS; i++)
        read_once(data);
}

/* GB/s of all spans with this pattern. */
static double read_rate(struct team *team, struct span *spans, size_t pattern, size_t ahead,
                        double seconds)
{
    for (unsigned i = 0; i < team->threads; i++) {
        spans[i].read = reads[pattern];
        spans[i].ahead = ahead;
    }
    double bytes = (double)spans[0].bytes * team->threads * (team->threads == 1 ? READS : 1);
    return bytes / team_best(team, seconds) * 1e-9;
}

double peaks_read_bandwidth(size_t bytes, unsigned threads)
{
    size_t each = bytes / threads / 4096 * 4096;
    void *memory =
        mmap(NULL, each * threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "peaks: no memory\n");
        exit(1);
    }
    madvise(memory, each * threads, MADV_HUGEPAGE); /* a hint only */
    memset(memory, 1, each * threads);

    struct span spans[PEAKS_THREADS_MAX];
    struct team team = {.threads = threads};
    for (unsigned i = 0; i < threads; i++) {
        spans[i] = (struct span){.begin = (uint8_t *)memory + i * each, .bytes = each};
        team.data[i] = &spans[i];
    }
    team.run = threads == 1 ? read_again : read_once;
    team_start(&team);
    double best = 0;
    size_t best_pattern = 0, best_ahead = 0;
    for (size_t pattern = 0; pattern < sizeof reads / sizeof *reads; pattern++)
        for (size_t ahead = 0; ahead <= 8192; ahead = ahead ? ahead * 2 : 512) {
            double rate = read_rate(&team, spans, pattern, ahead, 0.05);
            if (rate > best) {
                best = rate;
                best_pattern = pattern;
                best_ahead = ahead;
            }
        }
    double again = read_rate(&team, spans, best_pattern, best_ahead, 1.0);
    team_stop(&team);
    munmap(memory, each * threads);
    return again > best ? again : best;
}
