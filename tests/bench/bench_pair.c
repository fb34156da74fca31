/* Two nodes on one machine, a core each: what either loses to the other through what they share, the caches and the memory.
 *
 *     bench_pair [--json FILE] MODEL [SECONDS]
 *
 * Two processes, each with an engine of one thread that keeps to its core. In each round the first works alone, then the second,
 * then both at once; a figure is the median of the rounds' ratios, together to alone.
 *
 * pair_prefill_beside_decode    a prompt of 512 tokens at a time, beside a batch of 16 that decodes; wanted: 0.9
 * pair_decode_beside_prefill    the other one of these two; wanted: 0.9
 * pair_decoders                 both decode one sequence, whose steps read all weights: GB/s of both, beside what the two read
 *                               of as many bytes each at the same time, in the same round
 * pair_decode_beside_decode     one of these two, of itself alone: near 1, what the two lack is not what they share
 *
 * Times are processor times, so that a third who wants a core does not count, but what he takes of the memory does.
 * Owner: the main thread, which starts the two and tells them when. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cpu/peaks.h"
#include "tests/bench/bench.h"
#include "tests/bench/subject.h"

enum { ROUNDS = 7, BATCH = 16, DECODE_AT = 32 };

/* What one of the two is told to do, and what it says: seconds of a typical step, and the bytes of weights that one reads; or of as
 * many bytes that are read and nothing else. */
enum work { PREFILLS, DECODES, READS };

struct order {
    enum work work;
    uint32_t seqs; /* DECODES */
    double seconds;
};

struct result {
    double seconds, weight_bytes;
};

struct worker {
    pid_t pid;
    int orders, results;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_pair: %s\n", what);
    exit(1);
}

/* Seconds that reading so many bytes takes, as long as the other does what it does: the median of all that is measured. */
static double read_typical(struct peaks_reader *reader, double seconds, double bytes)
{
    enum { RATES_MAX = 1024 };
    static double rates[RATES_MAX];
    size_t count = 0;
    double start = bench_now();
    while (count == 0 || (count < RATES_MAX && bench_now() - start < seconds))
        rates[count++] = peaks_reader_rate(reader);
    return bytes / (bench_median(rates, count) * 1e9);
}

static _Noreturn void worker_run(struct model_file *model, const char *cpus, int orders,
                                 int results)
{
    static struct subject subject;
    struct engine_options options = subject_options(1);
    options.cpus = cpus;
    subject_open(&subject, model, options);
    subject_pages_fill(&subject);
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET((size_t)atoi(cpus), &own);
    if (sched_setaffinity(0, sizeof own, &own)) /* reading happens on this thread */
        die("a processor is not there for this process");
    struct peaks_reader *reader;
    if (peaks_reader_create(cpu_isa_detect(), (size_t)subject.bytes, 1, PEAKS_TURN, &reader))
        die("no memory");
    struct order order;
    while (read(orders, &order, sizeof order) == sizeof order) {
        struct result result = {.weight_bytes = subject.bytes};
        if (order.work == READS)
            result.seconds = read_typical(reader, order.seconds, subject.bytes);
        else if (order.work == DECODES)
            result.seconds =
                subject_step_typical(&subject, 5, order.seconds, order.seqs, 1, DECODE_AT);
        else
            result.seconds = subject_step_typical(&subject, 5, order.seconds, 1, SUBJECT_PROMPT, 0);
        if (write(results, &result, sizeof result) != sizeof result)
            break;
    }
    _exit(0);
}

static void worker_start(struct worker *worker, struct model_file *model, unsigned cpu)
{
    int orders[2], results[2];
    if (pipe(orders) || pipe(results))
        die("no pipe");
    worker->pid = fork();
    if (worker->pid < 0)
        die("no process");
    if (worker->pid == 0) {
        char cpus[16];
        snprintf(cpus, sizeof cpus, "%u", cpu);
        close(orders[1]);
        close(results[0]);
        worker_run(model, cpus, orders[0], results[1]);
    }
    close(orders[0]);
    close(results[1]);
    worker->orders = orders[1];
    worker->results = results[0];
}

static void worker_tell(const struct worker *worker, struct order order)
{
    if (write(worker->orders, &order, sizeof order) != sizeof order)
        die("one of the two has ended");
}

static struct result worker_hear(const struct worker *worker)
{
    struct result result;
    if (read(worker->results, &result, sizeof result) != sizeof result)
        die("one of the two has ended");
    return result;
}

static void add(struct bench *bench, const char *id, double value)
{
    bench_add(bench, &(struct bench_record){
                         .id = id, .value = value, .unit = "of alone", BENCH_LIMIT("wanted", 0.9)});
}

static void prefill_beside_decode(struct bench *bench, const struct worker *workers, double seconds)
{
    double shares[2][ROUNDS];
    const struct order orders[2] = {{PREFILLS, 1, seconds}, {DECODES, BATCH, seconds}};
    for (int round = 0; round < ROUNDS; round++) {
        double alone[2];
        for (int i = 0; i < 2; i++) {
            worker_tell(&workers[i], orders[i]);
            alone[i] = worker_hear(&workers[i]).seconds;
        }
        for (int i = 0; i < 2; i++)
            worker_tell(&workers[i], orders[i]);
        for (int i = 0; i < 2; i++)
            shares[i][round] = alone[i] / worker_hear(&workers[i]).seconds;
    }
    add(bench, "pair_prefill_beside_decode", bench_median(shares[0], ROUNDS));
    add(bench, "pair_decode_beside_prefill", bench_median(shares[1], ROUNDS));
}

/* Both do the same at once: GB/s of both; and the seconds that a step of either takes, added up. */
static double both(const struct worker *workers, struct order order, double *seconds_out)
{
    double rate = 0;
    *seconds_out = 0;
    for (int i = 0; i < 2; i++)
        worker_tell(&workers[i], order);
    for (int i = 0; i < 2; i++) {
        struct result result = worker_hear(&workers[i]);
        rate += 1e-9 * result.weight_bytes / result.seconds;
        *seconds_out += result.seconds;
    }
    return rate;
}

static void decoders(struct bench *bench, const struct worker *workers, double seconds)
{
    double shares[ROUNDS];
    struct bench_rounds rounds = {.count = ROUNDS};
    const struct order decode = {DECODES, 1, seconds}, reads = {READS, 1, seconds};
    for (int round = 0; round < ROUNDS; round++) {
        double alone = 0, together, unused;
        for (int i = 0; i < 2; i++) {
            worker_tell(&workers[i], decode);
            alone += worker_hear(&workers[i]).seconds;
        }
        rounds.values[round] = both(workers, decode, &together);
        rounds.limits[round] = both(workers, reads, &unused);
        shares[round] = alone / together;
    }
    add(bench, "pair_decode_beside_decode", bench_median(shares, ROUNDS));
    bench_add_rounds(
        bench,
        (struct bench_record){.id = "pair_decoders", .unit = "GB/s", .limit_name = "the two read"},
        &rounds);
}

int main(int argc, char **argv)
{
    struct bench bench;
    if (bench_begin(&bench, &argc, argv) < 1)
        die("usage: bench_pair [--json FILE] MODEL [SECONDS]");
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
        die("this machine has one processor: there is nothing to measure");
    double seconds = argc > 2 ? atof(argv[2]) : 1.0;
    struct err err = ERR_INIT;
    struct model_file *model;
    if (model_open(argv[1], &model, &err) != STATUS_OK)
        die(err.message);
    struct worker workers[2];
    for (unsigned i = 0; i < 2; i++)
        worker_start(&workers[i], model, i);
    prefill_beside_decode(&bench, workers, seconds);
    decoders(&bench, workers, seconds);
    for (int i = 0; i < 2; i++)
        close(workers[i].orders);
    for (int i = 0; i < 2; i++)
        waitpid(workers[i].pid, NULL, 0);
    model_close(model);
    return bench_end(&bench);
}
