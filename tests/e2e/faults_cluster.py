"""Real processes in which things go wrong on purpose, by a seeded schedule (base/faults.h): every answer equals an undisturbed one.

Needs programs built with -Dfaults=true; `./dev test asan` has them. BATON_FAULTS_SEED names another seed.
"""
import os
import random
import subprocess
import threading

import tap
import storm
from cluster import BUILD, Cluster, grpc, request, tiny_model

SEED = int(os.environ.get("BATON_FAULTS_SEED", "1"))
KV = ("frame.drop=0.01 frame.delay=0.02 frame.duplicate=0.02 frame.reorder=0.02 frame.flip=0.01 "
      "piece.drop=0.01 piece.delay=0.03 piece.duplicate=0.03 piece.reorder=0.03 piece.flip=0.03 delay_ms=40")


def injects():
    help_text = subprocess.run([os.path.join(BUILD, "baton-decode"), "--help"], capture_output=True, text=True).stdout
    return "--faults" in help_text


_known = []


def known(count):
    """[(prompt, max_tokens, sampling)] and what an undisturbed mixed node answers."""
    if not injects():
        raise tap.Skip("these programs were built without -Dfaults=true")
    if not _known:
        jobs = storm.kinds(SEED)[:40]
        _known.extend(zip(jobs, storm.expected(jobs)))
    return [_known[i % len(_known)] for i in range(count)]


def ask_all(cluster, jobs, clients=6):
    """Asks for all of them; returns what went wrong, in words."""
    left, lock, wrong = list(enumerate(jobs)), threading.Lock(), []

    def work():
        while True:
            with lock:
                if not left:
                    return
                number, ((prompt, tokens, sampling), want) = left.pop()
            try:
                got = cluster.generate(prompt, tokens, 120, **dict(sampling)).key()
                fault = None if got == want else f"{got} instead of {want}"
            except Exception as error:  # whatever it is, it is this request's
                fault = str(error).splitlines()[0]
            if fault:
                with lock:
                    wrong.append(f"request {number}: {fault}")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def injected(process, **labels):
    return int(process.metric("baton_faults_injected", **labels))


def undisturbed(cluster):
    assert all(p.alive() for p in cluster.processes.values())
    assert not cluster.settled(), cluster.settled()
    assert cluster.router.metric("baton_token_mismatches_total") == 0
    for process in cluster.processes.values():
        with open(process._file("log"), errors="replace") as log:
            if process.args_faults:
                assert f"faults are injected: seed={SEED} " in log.read(), process.name


def cluster_with(node_faults=None, *node_args, router_faults=None, router_args=(), **counts):
    node = ["--faults", f"seed={SEED} {node_faults}"] if node_faults else []
    router = ["--faults", f"seed={SEED} {router_faults}"] if router_faults else []
    cluster = Cluster(tiny_model(), node_args=[*node, "--page-tokens", "16", *node_args],
                      router_args=[*router, *router_args], **counts)
    for process in cluster.processes.values():
        process.args_faults = bool(router if process.name == "router" else node)
    return cluster


def test_the_hand_off():
    jobs = known(120)
    with cluster_with(KV, "--prefix-cache", "off", prefill=1, decode=2) as cluster:
        wrong = ask_all(cluster, jobs)
        assert not wrong, wrong[:5]
        undisturbed(cluster)
        flips = refused = unverified = 0
        for process in cluster.nodes():
            flips += injected(process, place="piece", kind="flip")
            refused += int(process.metric("baton_kv_checksum_failures_total"))
            unverified += int(process.metric("baton_kv_pieces_unverified_total"))
        total = sum(injected(p) for p in cluster.nodes())
        print(f"# seed {SEED}: {total} faults, {flips} pieces hit, {refused} refused, {unverified} came too late to be looked at")
        # each hit piece is refused, once, but for those whose transfer was over when they came
        assert refused <= flips <= refused + unverified, (flips, refused, unverified)
        assert unverified > 0 or flips == refused
        assert flips > 5, flips


def test_pages_that_rot_before_they_leave():
    jobs = known(80)
    with cluster_with("rest.flip=0.04", "--prefix-cache", "off", prefill=1, decode=1) as cluster:
        wrong = ask_all(cluster, jobs)
        assert not wrong, wrong[:5]
        undisturbed(cluster)
        hit = injected(cluster.prefill_0, place="rest")
        refused = int(cluster.decode_0.metric("baton_kv_checksum_failures_total"))
        found = int(cluster.prefill_0.metric("baton_kv_pieces_damaged_total"))
        print(f"# seed {SEED}: {hit} sealed pieces hit, {refused} refused, {found} found by their owner when asked again")
        # the first of a transfer ends it: others that were hit may not be looked at
        assert 0 < refused <= hit, (hit, refused)
        assert found > 0


def test_cached_pages_that_rot():
    jobs = known(40) * 4
    with cluster_with("rest.flip=0.1", mixed=1) as cluster:
        wrong = ask_all(cluster, jobs)
        assert not wrong, wrong[:5]
        undisturbed(cluster)
        hit, counted = injected(cluster.mixed_0, place="rest"), int(cluster.mixed_0.metric("baton_kv_checksum_failures_total"))
        print(f"# seed {SEED}: {hit} cached pages hit, {counted} counted")
        assert hit == counted and hit > 10, (hit, counted)


def test_stalls():
    jobs = known(40)
    with cluster_with("frame.stall=0.004 piece.stall=0.004 stall_ms=6000 frame.drop=0.01", prefill=2, decode=2) as cluster:
        wrong = ask_all(cluster, jobs)
        assert not wrong, wrong[:5]
        undisturbed(cluster)
        assert sum(injected(p, kind="stall") for p in cluster.nodes()) > 0


def noticed(cluster, *reasons):
    return sum(int(p.metric("baton_stream_faults_total", reason=r)) for p in cluster.processes.values() for r in reasons)


def test_the_streams_of_an_older_version():
    """Between the router and its nodes, without seals: what is late, early, twice or for a while not there at all."""
    jobs = known(60)
    faults = "message.delay=0.05 message.duplicate=0.1 message.reorder=0.1 message.stall=0.001 delay_ms=40 stall_ms=900"
    with cluster_with(faults, "--wire-max", "2", router_faults=faults, prefill=1, decode=2) as cluster:
        wrong = ask_all(cluster, jobs)
        assert not wrong, wrong[:5]
        undisturbed(cluster)
        assert injected(cluster.router) > 20
        assert sum(injected(p) for p in cluster.nodes()) > 20
        assert noticed(cluster, "twice", "checksum", "number", "format") == 0  # nobody could


def test_the_streams():
    """Between the router and its nodes: what is lost, altered, overtaken, twice, or late. Each stream that lost something ends, and
    what it brought runs again."""
    jobs = known(40)
    faults = ("message.drop=0.005 message.flip=0.005 message.reorder=0.005 message.duplicate=0.03 message.delay=0.001 "
              "message.stall=0.0003 delay_ms=40 stall_ms=900")
    # such a line looks like nodes that die, and a request outlives eight deaths
    with cluster_with(faults, router_faults=faults, router_args=["--replays-max", "40"], prefill=1, decode=2) as cluster:
        wrong = ask_all(cluster, jobs)
        assert not wrong, wrong[:5]
        undisturbed(cluster)
        twice, altered, missing = noticed(cluster, "twice"), noticed(cluster, "checksum", "format"), noticed(cluster, "number")
        done = {kind: sum(injected(p, place="message", kind=kind) for p in cluster.processes.values())
                for kind in ("drop", "flip", "reorder", "duplicate", "delay", "stall")}
        overtaken = done["reorder"] + done["delay"] + done["stall"]
        ended = int(cluster.router.metric("baton_node_deaths_total"))
        print(f"# seed {SEED}: {done}; noticed: {twice} twice, {altered} altered, {missing} missing; {ended} registrations ended")
        # a fault on a stream that is over already is nobody's, and one that is missing can be noticed once
        assert done["flip"] / 3 < altered <= done["flip"], (altered, done)
        assert 0 < missing <= done["drop"] + overtaken, (missing, done)
        assert done["duplicate"] / 3 < twice <= done["duplicate"], (twice, done)
        assert ended > 0


def test_everything_at_once():
    jobs = known(60)
    kv = KV + " rest.flip=0.002 frame.stall=0.001 stall_ms=3000 message.delay=0.001 message.duplicate=0.01 "
    kv += "message.drop=0.001 message.flip=0.001"
    with cluster_with(kv, router_faults="message.duplicate=0.01 message.reorder=0.001 message.flip=0.001", prefill=2,
                      decode=2) as cluster:
        wrong = ask_all(cluster, jobs)
        assert not wrong, wrong[:5]
        undisturbed(cluster)


def test_words_that_are_wrong():
    if not injects():
        raise tap.Skip("these programs were built without -Dfaults=true")
    for program in ("baton-router", "baton-decode"):
        ended = subprocess.run([os.path.join(BUILD, program), "--model", tiny_model(), "--faults", "frame.explode=1"],
                               capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2, ended
        assert 'faults: unknown key "frame.explode"' in ended.stderr, ended.stderr


if __name__ == "__main__":
    tap.main(globals())
