"""What tests that strike at one chosen moment of a request share: prompts, the undisturbed answers, and looking at nodes."""
import random
import time

from cluster import Cluster, SLACK, pb, tiny_model

SAMPLED = dict(temperature=0.8, seed=5, logprobs=1, ignore_eos=True, repetition_penalty=1.1)


def prompt_of(length, seed=5):
    rng = random.Random(seed)
    return [rng.randrange(20, 49000) for _ in range(length)]


def solo(jobs):
    """What one mixed node answers, one request at a time. A job: (prompt, max_tokens, sampling)."""
    with Cluster(tiny_model(), mixed=1) as cluster:
        return [cluster.generate(p, n, 120, **dict(s)).key() for p, n, s in jobs]


def until(done, seconds, what):
    """Waits for it, at most `seconds` times SLACK; returns how long it took."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < seconds * SLACK, f"{what}: not within {seconds} s times {SLACK:g}"
        time.sleep(0.002)
    return time.monotonic() - began


def lives(cluster):
    """{name: (pid, incarnation)} of the nodes that the router calls serving."""
    status = cluster.admin.GetStatus(pb.GetStatusRequest(), timeout=5)
    return {n.name: (cluster.processes[n.name].child.pid, n.incarnation) for n in status.nodes if n.state == "serving"}


def pages(process, *states):
    values = process.metrics()
    return sum(values[f'baton_kv_pages{{state="{s}"}}'] for s in states)


def held(process):
    return pages(process, "used", "reserved", "quarantined")
