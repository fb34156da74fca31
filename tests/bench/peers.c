/* See peers.h. The shell gets names in its environment, so that none needs quoting. */
#include "tests/bench/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void die(const char *what)
{
    fprintf(stderr, "bench: llama.cpp: %s\n", what);
    exit(1);
}

static double children_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* What lies behind `key` in the last record that the program printed; valid until the next run. Its processor seconds. */
static const char *run(const struct peer *peer, const char *arguments, const char *key,
                       double *seconds_out)
{
    static char line[8192], last[8192];
    char command[512];
    snprintf(command, sizeof command,
             "LD_LIBRARY_PATH=\"$BATON_LLAMA_BIN:$LD_LIBRARY_PATH\" exec "
             "\"$BATON_LLAMA_BIN\"/%s -m \"$BATON_BENCH_PEER\" </dev/null 2>/dev/null",
             arguments);
    setenv("BATON_BENCH_PEER", peer->path, 1);
    double before = children_seconds();
    FILE *out = popen(command, "r");
    last[0] = 0;
    while (out && fgets(line, sizeof line, out))
        if (line[0] == '{')
            memcpy(last, line, sizeof last);
    if (!out || pclose(out) != 0)
        die(command);
    *seconds_out = children_seconds() - before;
    const char *value = strstr(last, key);
    if (!value)
        die("its answer is not understood");
    return value + strlen(key);
}

/* `tokens` of each sequence. Before a prompt is timed, one of 16 tokens has warmed up. */
static double measure(const struct peer *peer, unsigned threads, uint32_t seqs, uint32_t rows,
                      uint32_t tokens, double *seconds_out)
{
    char arguments[256];
    if (rows > 1)
        snprintf(arguments, sizeof arguments,
                 "llama-bench -o jsonl -t %u -p 16,%u -n 0 -r 1 --no-warmup", threads, tokens);
    else if (seqs == 1)
        snprintf(arguments, sizeof arguments, "llama-bench -o jsonl -t %u -p 0 -n %u -r 1", threads,
                 tokens);
    else
        snprintf(arguments, sizeof arguments,
                 "llama-batched-bench --output-format jsonl -t %u -tb %u -c 2048 -b 2048 -ub 512 "
                 "-npp 28 -pps -ntg %u -npl %u",
                 threads, threads, tokens, seqs);
    bool batched = rows == 1 && seqs > 1;
    return strtod(
        run(peer, arguments, batched ? "\"speed_tg\": " : "\"samples_ts\": [ ", seconds_out), NULL);
}

double peers_tokens(struct peer *peer, unsigned threads, uint32_t seqs, uint32_t rows)
{
    const uint32_t few = 1, tokens = rows > 1 ? rows : seqs == 1 ? 64 : 8;
    double seconds, reported = measure(peer, threads, seqs, rows, tokens, &seconds);
    if (threads > 1)
        return reported;
    double *loading = &peer->loading[rows > 1 ? 0 : seqs];
    if (*loading == 0)
        measure(peer, threads, seqs, rows, few, loading);
    double by_processor = (tokens - few) * seqs / (seconds - *loading);
    return by_processor > reported ? by_processor : reported;
}

void peers_find(const char *model, struct peers *peers_out)
{
    static char files[4096];
    *peers_out = (struct peers){0};
    if (!getenv("BATON_LLAMA_BIN") || !*getenv("BATON_LLAMA_BIN"))
        return;
    const char *others = getenv("BATON_LLAMA_FILES");
    snprintf(files, sizeof files, "%s", others ? others : "");
    for (const char *path = model; path; path = strtok(path == model ? files : NULL, ":")) {
        if (peers_out->count == PEERS_MAX)
            die("BATON_LLAMA_FILES: more than 7 files");
        struct peer *peer = &peers_out->each[peers_out->count++];
        peer->path = path;
        double seconds; /* "llama 256M Q4_1" */
        const char *type =
            run(peer, "llama-bench -o jsonl -t 1 -p 0 -n 1 -r 1", "\"model_type\": \"", &seconds);
        int words = (int)strcspn(type, "\""), last = words;
        while (last > 0 && type[last - 1] != ' ')
            last--;
        snprintf(peer->name, sizeof peer->name, "llama.cpp %.*s", words - last, type + last);
    }
}
