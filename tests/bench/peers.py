#!/usr/bin/env python3
"""llama.cpp's figures on the same file, for bench_engine's table: lines of "ID TOKENS_A_SECOND" on stdout.

usage: peers.py FOLDER MODEL

FOLDER holds llama-bench and llama-batched-bench. With one thread a figure is the better of two views of it: the best that the
program reports by the clock, and tokens by processor time (the difference of a longer and a shorter run, so that loading and
warming up fall out), which does not depend on who else wants the core; Baton's figures with one thread are by processor time,
too. With more threads it is the best reported.
"""
import json
import os
import re
import resource
import subprocess
import sys

FOLDER, MODEL = sys.argv[1:]


def run(program, *arguments):
    """What it printed, as JSON lines, and its processor seconds."""
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = FOLDER + ":" + environment.get("LD_LIBRARY_PATH", "")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([os.path.join(FOLDER, program), "-m", MODEL, *map(str, arguments)], env=environment,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    records = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return records, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def single(threads, prompt, generate):
    """llama-bench: tokens/s of a prompt, or of one sequence's decode."""
    def measure(repeats):
        records, seconds = run("llama-bench", "-o", "jsonl", "-t", threads, "-p", prompt, "-n", generate, "-r", repeats,
                               "--no-warmup")
        return max(records[0]["samples_ts"]), seconds

    short, long = (1, 3) if prompt else (2, 10)
    best, seconds = measure(long)
    if threads == 1:
        less = measure(short)[1]
        best = max(best, (long - short) * (prompt + generate) / (seconds - less))
    return best


def batched(threads, sequences):
    """llama-batched-bench: tokens/s of all sequences together while they decode."""
    def measure(tokens):
        records, seconds = run("llama-batched-bench", "-c", 2048, "-b", 2048, "-ub", 512, "-npp", 16, "-ntg", tokens,
                               "-npl", sequences, "-t", threads, "-tb", threads, "--output-format", "jsonl")
        return records[0]["speed_tg"], seconds

    best, seconds = measure(32)
    if threads == 1:
        less = measure(8)[1]
        best = max(best, 24 * sequences / (seconds - less))
    return best


def weight_type():
    """"q4_1" of "llama 256M Q4_1": as bench_engine names it."""
    records, _ = run("llama-bench", "-o", "jsonl", "-t", 1, "-p", 0, "-n", 1, "-r", 1, "--no-warmup")
    return re.split(r"\s", records[0]["model_type"])[-1].lower()


def main():
    kind = weight_type()
    for threads in sorted({1, os.cpu_count()}):
        for name, value in (("prefill512", lambda: single(threads, 512, 0)), ("decode1", lambda: single(threads, 0, 64)),
                            ("decode16", lambda: batched(threads, 16)), ("decode32", lambda: batched(threads, 32))):
            print(f"{name}_{kind}_{threads}t {value():.4f}", flush=True)


main()
