#!/usr/bin/env python3
"""What the hand-off costs a request, and what a cache saves it: a real cluster on loopback, one thread a node.

    handoff2000_exposed        the gap to the second token less D's first step, for prompts of 2,000 tokens, one after another;
                               allowed: one decode step
    handoff2000_exposed_4      the same with four in flight
    handoff2000_throttled      the link held to what makes a transfer alone take half of the prefill time: exposed, as a share
                               of the time to the first token; allowed: 10 %
    ttft2000_cached            time to the first token of a prompt that was computed before, as a share of the cold one's;
                               allowed: 10 %
    chat8_computed             a chat of eight turns: prompt tokens computed in a turn beyond the new ones, the most of all
                               turns; allowed: one page

Figures are medians by the router's clock (Timings). usage: bench_handoff.py [--json FILE] [--repeat N] MODEL
Environment: as tests/e2e/cluster.py.
"""
import argparse
import json
import os
import random
import statistics
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import Cluster, request  # noqa: E402

TOKENS = 2000


def prompt(seed, count=TOKENS):
    """Distinct ids of ordinary words: nothing is found in a cache unless it was meant to be."""
    words = random.Random(seed)
    return [words.randrange(1000, 40000) for _ in range(count)]


def ask(cluster, ids, tokens=4):
    answer = cluster.generate(request(ids, tokens, temperature=0, ignore_eos=True), timeout=300)
    assert not answer.timings.replays
    return answer


def exposed(answers):
    """Median of the exposed hand-off and of D's first step, in ms."""
    return (1e-3 * statistics.median(a.timings.handoff_us for a in answers),
            1e-3 * statistics.median(a.timings.first_decode_us for a in answers))


def in_flight(cluster, seeds, together):
    answers, lock = [], threading.Lock()

    def client(mine):
        for seed in mine:
            answer = ask(cluster, prompt(seed))
            with lock:
                answers.append(answer)

    threads = [threading.Thread(target=client, args=(seeds[i::together],)) for i in range(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def record(name, value, unit, limit_name, limit):
    print(f"{name:26} {value:9.2f} {unit:7} allowed {limit:9.2f} {limit_name}", flush=True)
    return {"id": name, "value": value, "unit": unit, "limit_name": limit_name, "limit": limit,
            "share": limit / value if value else None, "peer_name": None, "peer": None, "ratio": None}


def measure_hidden(model, repeat, args):
    with Cluster(model, prefill=1, decode=1, node_args=args) as cluster:
        ask(cluster, prompt(0))
        alone = [ask(cluster, prompt(1 + i)) for i in range(repeat)]
        value, step = exposed(alone)
        records = [record("handoff2000_exposed", value, "ms", "one decode step", step)]
        value, step = exposed(in_flight(cluster, list(range(100, 100 + 4 * max(1, repeat // 2))), 4))
        records.append(record("handoff2000_exposed_4", value, "ms", "one decode step", step))
    prefill_s = 1e-6 * statistics.median(a.timings.prefill_us for a in alone)
    return records, prefill_s, alone[-1].timings.kv_bytes_moved


def measure_throttled(model, repeat, args, prefill_s, moved):
    rate = int(moved / (prefill_s / 2))
    with Cluster(model, prefill=1, decode=1, node_args=[*args, "--kv-rate-max", str(rate)]) as cluster:
        ask(cluster, prompt(0, 64))
        answers = [ask(cluster, prompt(200 + i)) for i in range(repeat)]
    share = statistics.median(100 * a.timings.handoff_us / a.timings.ttft_us for a in answers)
    return [record("handoff2000_throttled", share, "%", "of the time to the first token", 10.0)]


def measure_cached(model, repeat, args):
    shares, most = [], 0
    with Cluster(model, prefill=1, decode=1, node_args=args) as cluster:
        ask(cluster, prompt(0))
        for i in range(repeat):
            cold = ask(cluster, prompt(300 + i))
            warm = ask(cluster, prompt(300 + i))
            assert warm.ids == cold.ids and not cold.usage.cached_tokens, (cold.usage, warm.usage)
            shares.append(100 * warm.timings.ttft_us / cold.timings.ttft_us)
        page = page_tokens(cluster)
        ids, known = prompt(400, 150), 0
        for turn in range(8):
            answer = ask(cluster, ids, 40)
            computed = answer.usage.prompt_tokens - answer.usage.cached_tokens
            most = max(most, computed - (len(ids) - known))
            known = len(ids) + len(answer.ids)
            ids = ids + answer.ids + prompt(500 + turn, 60)
    return [record("ttft2000_cached", statistics.median(shares), "%", "of the cold one's", 10.0),
            record("chat8_computed", most, "tokens", "one page", page)]


def page_tokens(cluster):
    """Found as the unit in which prompts are reused: a prompt asked twice reuses all whole pages but that of its last token."""
    for size in (16, 32, 64, 128):
        ids = prompt(600 + size, size + 1)
        ask(cluster, ids, 1)
        if ask(cluster, ids, 1).usage.cached_tokens == size:
            return size
    raise AssertionError("nothing is ever reused")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("model")
    options = parser.parse_args()
    args = ["--threads", "1", "--kv-memory", "1G"]
    records, prefill_s, moved = measure_hidden(options.model, options.repeat, args)
    records += measure_throttled(options.model, options.repeat, args, prefill_s, moved)
    records += measure_cached(options.model, options.repeat, args)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(records, file)


main()
