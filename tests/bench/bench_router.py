#!/usr/bin/env python3
"""What the router adds to a first token: a real cluster on loopback (router, one prefill and one decode node with one thread
each, the tiny model), one request after another.

    client ──▶ router ──▶ P: prefill_us ──▶ router ──▶ client
    └───────────────── to the first message ─────────────────┘

router_first_token is the client's time to its first message less P's own prefill_us less what the same Python client needs
for a one-token stream from a bare echo server (tests/proto/rpc_echo_server): so the router's work and both trips between router
and node are in it, Python is not. router_first_token_own is queue + placement + send by the router's own clock: without the
client's connection. The calls are made by turns. Figures are medians; those that end in _p10 are the best tenth's bound, which
says more where others want the cores.

usage: bench_router.py [--json FILE] [REQUESTS]
Environment: as tests/e2e/cluster.py; BATON_BUILD holds tests/proto/rpc_echo_server, too.
"""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import grpc  # noqa: E402
from cluster import BUILD, Cluster, pb, pb_grpc, request, tiny_model  # noqa: E402

LIMIT_MS = 0.5
WARM = 50


def first_message(stub, message):
    """Milliseconds to the first message, and the last one."""
    started = time.perf_counter()
    stream = stub.Generate(message, timeout=60)
    last = next(stream)
    took = time.perf_counter() - started
    for last in stream:
        pass
    return 1e3 * took, last


def measure(cluster, echo, count):
    ask = request("The quick brown fox jumps over the lazy dog. " * 3, 2, temperature=0, ignore_eos=True)
    one = pb.GenerateRequest(text=" token", sampling=pb.SamplingParams(max_tokens=1))
    whole, own, alone = [], [], []
    for i in range(WARM + count):
        took, _ = first_message(echo, one)
        ours, last = first_message(cluster.stub, ask)
        timings = last.timings
        assert last.finish_reason and not timings.replays, last
        if i >= WARM:
            alone.append(took)
            whole.append(ours - 1e-3 * timings.prefill_us)
            own.append(1e-3 * (timings.queue_us + timings.placement_us + timings.send_us))
    return whole, own, alone


# On a machine with few cores the decode node wakes for the same request and takes one away from the path to the first token, which
# on machines of its own it does not; a mixed node shows the router without it.
SHAPES = {"": dict(prefill=1, decode=1), "_mixed": dict(mixed=1)}


def quantile(figures, part):
    return sorted(figures)[int(len(figures) * part)]


def record(name, value, limit=True):
    return {"id": name, "value": value, "unit": "ms", "limit_name": "allowed" if limit else None,
            "limit": LIMIT_MS if limit else None, "share": LIMIT_MS / value if limit else None,
            "peer_name": None, "peer": None, "ratio": None}


def main():
    arguments = sys.argv[1:]
    path = None
    if arguments[:1] == ["--json"]:
        path, arguments = arguments[1], arguments[2:]
    count = int(arguments[0]) if arguments else 1000
    server = subprocess.Popen([os.path.join(BUILD, "tests/proto/rpc_echo_server")], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        records = []
        with grpc.insecure_channel(f"127.0.0.1:{int(server.stdout.readline())}") as channel:
            for shape, nodes in SHAPES.items():
                with Cluster(tiny_model(), node_args=["--threads", "1"], **nodes) as cluster:
                    whole, own, alone = measure(cluster, pb_grpc.GenerationStub(channel), count)
                for suffix, part in (("", 0.5), ("_p10", 0.1)):
                    of_client = quantile(alone, part)
                    records += [
                        record("router_first_token" + shape + suffix, max(quantile(whole, part) - of_client, 1e-6)),
                        record("router_first_token_own" + shape + suffix, quantile(own, part)),
                        record("router_client_alone" + shape + suffix, of_client, limit=False)]
    finally:
        server.communicate(timeout=20)
    print(f"{'':32} {'value':>10} {'unit':10} {'share':>7}  of the limit")
    for r in records:
        share = f"{100 * r['share']:.1f} %" if r["share"] else ""
        print(f"{r['id']:32} {r['value']:10.4g} {r['unit']:10} {share:>7}  "
              f"{r['limit_name'] + ' ' + str(r['limit']) if r['limit'] else ''}")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(records, file)


main()
