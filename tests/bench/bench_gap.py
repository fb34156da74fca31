#!/usr/bin/env python3
"""What a long prompt does to the streams of others: eight sequences decode, in turn alone and while a prompt of 4,000 tokens
is computed and its second token made, and every gap between two messages of a stream is measured where a client sees it. In
turn, because a step gets longer as its contexts grow: what is compared was measured over the same lengths.

    Baton P + D     one thread each, and all   the prompts are computed on P, the streams run on D
                    of a node on a core of its own
    Baton --mixed   one node, two threads      both on one node, prompt chunks beside decode rows
    llama-server    two threads, -np 9         the same, at each batch size of BATCHES; the peer is the one of the highest
                                               throughput, and the one of the smallest gaps is shown beside it

All three have the same cores, one after another. A run in which a stream was cut (it ended, or lost a token) is void and ends
the benchmark. A gap counts as beside a prompt if any part of it is: so at least five per cent must be touched, and all are.

usage: bench_gap.py [--json FILE] [--plot FILE.svg] [--seconds N] MODEL
Environment: as tests/e2e/cluster.py; BATON_LLAMA_BIN, a folder with llama-server (without it there is no peer). --plot needs
gnuplot.
"""
import argparse
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import Cluster, request  # noqa: E402

STREAMS, LONG_TOKENS, SHORT_TOKENS = 8, 4000, 32
LONG_NEW = 2  # tokens that a long prompt asks for: the first is made by P, the second by D from what it was sent
ALONE_S = 4  # how long the streams are alone between two prompts
CONTEXT, KV_MEMORY = 8192, "1G"
BATCHES = ((2048, 512), (512, 512), (256, 256), (128, 128), (64, 64))  # -b and -ub of llama-server; the first is its default
RATIO_MAX = 1.5


def prompt(seed, count):
    """Distinct ids of ordinary words, so that nothing is found in a cache."""
    words = random.Random(seed)
    return [words.randrange(1000, 40000) for _ in range(count)]


class Stream:
    """One decoding sequence: when its tokens came."""

    def __init__(self):
        self.times, self.ended = [], None


class Baton:
    def __init__(self, model, name, **nodes):
        self.name = name
        apart = "prefill" in nodes
        self.cluster = Cluster(model, node_args=["--threads", "1" if apart else "2", "--kv-memory", KV_MEMORY], **nodes)

    def __enter__(self):
        self.cluster.__enter__()
        nodes = self.cluster.nodes()
        if len(nodes) > 1:
            for node, processor in zip(nodes, sorted(os.sched_getaffinity(0))):
                for thread in os.listdir(f"/proc/{node.child.pid}/task"):
                    os.sched_setaffinity(int(thread), {processor})
        for node in nodes:
            node.settled_rss_bytes()
        return self

    def __exit__(self, *what):
        self.cluster.__exit__(*what)

    def stream(self, ids, tokens, stream, stop):
        message = request(ids, tokens, temperature=0, ignore_eos=True)
        call = self.cluster.stream(message, timeout=600)
        for reply in call:
            now = time.perf_counter()
            stream.times += [now] * len(reply.token_ids)
            if reply.finish_reason:
                stream.ended = now
            if stop.is_set():
                call.cancel()
                return

    def once(self, ids):
        self.cluster.generate(request(ids, LONG_NEW, temperature=0, ignore_eos=True), timeout=600)


class Llama:
    def __init__(self, model, batch, ubatch):
        self.name = f"llama-server -b {batch} -ub {ubatch}"
        folder = os.environ["BATON_LLAMA_BIN"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = dict(os.environ, LD_LIBRARY_PATH=folder + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
        self.log = tempfile.TemporaryFile()
        slots = STREAMS + 1
        self.child = subprocess.Popen(
            [os.path.join(folder, "llama-server"), "-m", model, "--port", str(self.port), "--host", "127.0.0.1", "-np", str(slots),
             "-c", str(slots * CONTEXT // 2 + slots * 512), "-t", "2", "-tb", "2", "-b", str(batch), "-ub", str(ubatch)],
            env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def __enter__(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return self
            except OSError:
                pass
            assert self.child.poll() is None, "llama-server ended"
            time.sleep(0.1)
        raise TimeoutError("llama-server did not start")

    def __exit__(self, *what):
        self.child.kill()
        self.child.wait()

    def _ask(self, ids, tokens, stream):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "stream": stream, "cache_prompt": False}
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        return connection, reply

    def stream(self, ids, tokens, stream, stop):
        connection, reply = self._ask(ids, tokens, True)
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            now = time.perf_counter()
            event = json.loads(line[6:])
            if event.get("stop"):
                stream.ended = now
                break
            stream.times.append(now)
            if stop.is_set():
                break
        connection.close()

    def once(self, ids):
        connection, reply = self._ask(ids, LONG_NEW, False)
        reply.read()
        connection.close()


def gaps_of(streams, spans, begin, end):
    """[(when it ended, seconds)] of the gaps that end in [begin, end): those that touch one of `spans`, and the others."""
    beside, alone = [], []
    for stream in streams:
        times = stream.times + ([end] if stream.times[-1] < end else [])  # one that is silent still: a gap at least this long
        for before, after in zip(times, times[1:]):
            if begin <= after <= end:
                touched = any(before < span_end and after > span_begin for span_begin, span_end in spans)
                (beside if touched else alone).append((after, after - before))
    return sorted(beside), sorted(alone)


def quantile(gaps, part):
    values = sorted(gap for _, gap in gaps)
    return values[min(len(values) - 1, int(len(values) * part))]


def stolen_s():
    """Seconds that the host took from this machine's processors since it booted."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def measure(contender, seconds):
    """Both phases of one contender."""
    streams, stop, threads = [Stream() for _ in range(STREAMS)], threading.Event(), []
    for i, stream in enumerate(streams):
        arguments = (prompt(i, SHORT_TOKENS), LONG_TOKENS - SHORT_TOKENS, stream, stop)
        threads.append(threading.Thread(target=contender.stream, args=arguments, daemon=True))
        threads[-1].start()
    while not all(len(stream.times) > 8 for stream in streams):
        time.sleep(0.05)
    begin, stolen, spans = time.perf_counter(), stolen_s(), []
    while not spans or spans[-1][1] < begin + seconds:
        time.sleep(ALONE_S)
        span_begin = time.perf_counter()
        contender.once(prompt(1000 + len(spans), LONG_TOKENS))
        spans.append((span_begin, time.perf_counter()))
    time.sleep(ALONE_S)
    end, stolen = time.perf_counter(), stolen_s() - stolen
    cut = [stream for stream in streams if stream.ended]
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not cut, f"{contender.name}: a stream ended during the run: it is void"
    beside, alone = gaps_of(streams, spans, begin, end)
    made = sum(any(span_begin <= at < span_end for span_begin, span_end in spans) for stream in streams for at in stream.times)
    return {"name": contender.name, "begin": begin, "spans": spans, "gaps": sorted(alone + beside), "prompts": len(spans),
            "alone_p50": quantile(alone, 0.5), "alone_p99": quantile(alone, 0.99), "alone_max": quantile(alone, 1),
            "p50": quantile(beside, 0.5), "p99": quantile(beside, 0.99), "max": quantile(beside, 1),
            "touched": len(beside) / (len(beside) + len(alone)),
            "stolen": stolen / (end - begin) / os.cpu_count(),
            "tokens_per_s": (made + len(spans) * (LONG_TOKENS + LONG_NEW)) / sum(after - before for before, after in spans)}


def show(result):
    print(f"{result['name']:28} alone p50 {1e3 * result['alone_p50']:6.1f} p99 {1e3 * result['alone_p99']:6.1f} max "
          f"{1e3 * result['alone_max']:6.1f} ms | beside p50 "
          f"{1e3 * result['p50']:8.1f} p99 {1e3 * result['p99']:8.1f} max {1e3 * result['max']:8.1f} ms | "
          f"{result['tokens_per_s']:7.1f} tokens/s, {result['prompts']} prompts, {100 * result['stolen']:.1f} % stolen", flush=True)


def plot(results, path):
    """Gaps over time, the largest of each half second."""
    script = ["set terminal svg size 900,420 font 'sans,12' background 'white'", f"set output '{path}'", "set logscale y",
              f"set xlabel 'seconds; {ALONE_S} of them alone, then beside a prompt of 4,000 tokens until its second token (bold), and so on'",
              "set ylabel 'largest gap between two tokens of a stream (ms)'", "set key outside bottom center horizontal",
              "set grid ytics"]
    data, curves = [], []
    for i, result in enumerate(results):
        bins, begin = {}, result["begin"]
        for when, gap in result["gaps"]:
            at = (when - begin) // 0.5 * 0.5
            bins[at] = max(gap, bins.get(at, 0))
        rows = "".join(f"{at:.1f} {1e3 * gap:.2f}\n" for at, gap in sorted(bins.items()))
        bold = "\n".join("".join(f"{at:.1f} {1e3 * gap:.2f}\n" for at, gap in sorted(bins.items())
                                 if span_begin - begin <= at <= span_end - begin) for span_begin, span_end in result["spans"])
        data += [f"$all{i} << EOD\n{rows}EOD", f"$beside{i} << EOD\n{bold}EOD"]
        curves += [f"$all{i} using 1:2 with lines linewidth 1 linecolor {i + 1} notitle",
                   f"$beside{i} using 1:2 with lines linewidth 3 linecolor {i + 1} title '{result['name']}'"]
    subprocess.run(["gnuplot"], input="\n".join(data + script + ["plot " + ", ".join(curves)]), text=True, check=True)


def record(name, value, unit="ms", limit_name=None, limit=None, peer_name=None, peer=None, ratio=None):
    return {"id": name, "value": value, "unit": unit, "limit_name": limit_name, "limit": limit,
            "share": limit / value if limit else None, "peer_name": peer_name, "peer": peer, "ratio": ratio}


def best_of(peers):
    return max(peers, key=lambda result: result["tokens_per_s"]) if peers else None


def records_of(ours, mixed, peers):
    """The peer is the server at its best throughput; what it reaches when its gaps are smallest stands apart."""
    records = []
    peer = best_of(peers)
    for name, result in (("", ours), ("_mixed", mixed)):
        for part in ("p99", "max"):
            value, limit = 1e3 * result[part], 1e3 * RATIO_MAX * result["alone_" + part]
            theirs = 1e3 * peer[part] if peer else None
            records.append(record(f"gap_long_prompts_{part}{name}", value, "ms", f"{RATIO_MAX} x without them", limit,
                                  peer["name"] if peer else None, theirs, theirs / value if peer else None))
        theirs = peer["tokens_per_s"] if peer else None
        records.append(record(f"gap_tokens_per_s{name}", result["tokens_per_s"], "tokens/s", None, None,
                              peer["name"] if peer else None, theirs, result["tokens_per_s"] / theirs if peer else None))
    if peers:
        calm = min(peers, key=lambda result: result["max"])
        for part in ("p99", "max"):
            records.append(record(f"gap_long_prompts_{part}_calm", 1e3 * ours[part], "ms", None, None, calm["name"],
                                  1e3 * calm[part], calm[part] / ours[part]))
    return records


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--plot")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("model")
    options = parser.parse_args()
    results = []
    for name, nodes in (("Baton, P + D", dict(prefill=1, decode=1)), ("Baton --mixed", dict(mixed=1))):
        with Baton(options.model, name, **nodes) as contender:
            results.append(measure(contender, options.seconds))
            show(results[-1])
    peers = []
    if os.environ.get("BATON_LLAMA_BIN"):
        for batch, ubatch in BATCHES:
            with Llama(options.model, batch, ubatch) as contender:
                peers.append(measure(contender, options.seconds))
                show(peers[-1])
    records = records_of(results[0], results[1], peers)
    for r in records:
        beside = f"{r['peer']:10.1f} {r['ratio']:7.1f} x  {r['peer_name']}" if r["peer"] else ""
        limit = f"{r['limit']:8.1f}" if r["limit"] else ""
        print(f"{r['id']:30} {r['value']:9.1f} {r['unit']:9} {limit:>8} {beside}")
    touched = results[0]["touched"], results[1]["touched"]
    print(f"gaps beside a prompt: {100 * touched[0]:.1f} % (P + D), {100 * touched[1]:.1f} % (mixed)")
    if options.plot:
        plot(results + ([best_of(peers)] if peers else []), options.plot)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(records, file)


if __name__ == "__main__":
    main()
