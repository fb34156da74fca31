"""Pools that are too small for what is asked: everything ends, nobody's answer changes, and the memory comes back."""
import random
import threading

import tap
from cluster import Answer, Cluster, grpc, request, tiny_model

PAGE = 16


def prompt_of(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(20, 49000) for _ in range(length)]


def mixture(count, seed=1, prompts=(10, 160), answers=(20, 180)):
    """Requests of every kind: greedy and seeded, with penalties, with logprobs."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        sampling = dict(ignore_eos=True, seed=500 + i, logprobs=2)
        if i % 2:
            sampling["temperature"] = 0.9
        if i % 3 == 1:
            sampling.update(repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.1)
        out.append((prompt_of(rng.randint(*prompts), 100 * seed + i), rng.randint(*answers), sampling))
    return out


def pages_of(requests):
    return sum((len(prompt) + tokens - 1 + PAGE - 1) // PAGE for prompt, tokens, _ in requests)


def all_at_once(cluster, requests, timeout=120):
    """Every request on a thread of its own; their keys, in order."""
    answers, errors = [None] * len(requests), []

    def run(i):
        prompt, tokens, sampling = requests[i]
        answer = Answer()
        try:
            for reply in cluster.stream(request(prompt, tokens, **sampling), timeout):
                answer.add(reply)
            answers[i] = answer
        except Exception as error:  # noqa: BLE001 - reported below, with its number
            errors.append(f"request {i}: {error}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[:3]
    return answers


_solo = {}


def solo(requests, seed):
    """The same requests, one after the other on a node with room for all."""
    if seed not in _solo:
        with Cluster(tiny_model(), mixed=1, node_args=["--page-tokens", str(PAGE)]) as cluster:
            _solo[seed] = [cluster.generate(p, n, **s).key() for p, n, s in requests]
    return _solo[seed]


def same(answers, keys):
    for i, (answer, key) in enumerate(zip(answers, keys)):
        assert answer.key() == key, f"request {i} differs"


def count(process, name, **labels):
    return process.metric(name, **labels)


def preemptions(cluster):
    return {(p.name, way): count(p, "baton_preemptions_total", way=way)
            for p in cluster.nodes() for way in ("swap", "recompute")}


def at_rest(cluster):
    assert not cluster.settled()
    for process in cluster.nodes():
        assert count(process, "baton_swap_pages", state="used") == 0
    assert cluster.router.metric("baton_token_mismatches_total") == 0


def demand(percent, *decode_args):
    requests = mixture(24)
    keys = solo(requests, 1)
    pages = pages_of(requests) * 100 // percent
    with Cluster(tiny_model(), prefill=1, decode=1,
                 node_args=["--page-tokens", str(PAGE), "--kv-pages", str(pages)],
                 args_of={"decode-0": decode_args}) as cluster:
        same(all_at_once(cluster, requests), keys)
        at_rest(cluster)
        return preemptions(cluster), count(cluster.decode_0, "baton_recomputed_tokens_total")


def test_demand_of_105_percent():
    demand(105)


def test_demand_of_150_percent():
    demand(150)


def test_demand_of_300_percent_by_swapping():
    ways, recomputed = demand(300, "--preempt", "swap")
    assert ways["decode-0", "swap"] > 0, ways
    assert ways["decode-0", "recompute"] == 0 and recomputed == 0, (ways, recomputed)


def test_demand_of_300_percent_by_computing_again():
    ways, recomputed = demand(300, "--preempt", "recompute")
    assert ways["decode-0", "recompute"] > 0, ways
    # bounded: every time that one gives way doubles the headroom that it waits for
    assert sum(ways.values()) <= 24 * 7, ways
    print(f"# {int(ways['decode-0', 'recompute'])} gave way, {int(recomputed)} tokens again")


def test_every_ten_tokens_by_both_ways():
    requests = mixture(8, seed=2, answers=(40, 80))
    keys = solo(requests, 2)
    for way in ("swap", "recompute"):
        with Cluster(tiny_model(), prefill=1, decode=1, node_args=["--page-tokens", str(PAGE)],
                     args_of={"decode-0": ["--preempt", way, "--preempt-every", "10"]}) as cluster:
            same(all_at_once(cluster, requests), keys)
            at_rest(cluster)
            ways = preemptions(cluster)
            assert ways["decode-0", way] >= sum((n - 1) // 10 - 1 for _, n, _ in requests), ways


def test_a_decode_node_with_room_for_two_gets_twenty():
    requests = mixture(20, seed=3, prompts=(90, 100), answers=(40, 50))  # up to 10 pages each
    keys = solo(requests, 3)
    with Cluster(tiny_model(), prefill=1, decode=1, node_args=["--page-tokens", str(PAGE)],
                 args_of={"decode-0": ["--kv-pages", "20"]}) as cluster:
        same(all_at_once(cluster, requests), keys)
        at_rest(cluster)


def test_a_prompt_that_prefill_refuses():
    """P's pool cannot hold the prompt at all: the request ends exactly or with a typed error, and no part of an answer comes."""
    prompt = prompt_of(200, 9)
    with Cluster(tiny_model(), mixed=1) as cluster:
        key = cluster.generate(prompt, 20, ignore_eos=True, seed=4).key()
    with Cluster(tiny_model(), prefill=1, decode=1, node_args=["--page-tokens", str(PAGE)],
                 args_of={"prefill-0": ["--kv-pages", "8"]}) as cluster:
        answer = cluster.generate(prompt, 20, ignore_eos=True, seed=4, expect_error=True, timeout=30)
        if answer.error:
            assert answer.error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
            assert not answer.ids
        else:
            assert answer.key() == key
        at_rest(cluster)
        print(f"# {answer.error.code() if answer.error else 'answered'}")


def test_cancelled_while_they_give_way_a_hundred_times():
    with Cluster(tiny_model(), mixed=1, node_args=["--page-tokens", str(PAGE), "--kv-pages", "60",
                                                   "--preempt", "swap", "--preempt-every", "2"]) as cluster:
        node, warm = cluster.mixed_0, 0
        for i in range(50):
            streams = [cluster.stream(request(prompt_of(200, 10 * i + k), 300, ignore_eos=True))
                       for k in range(2)]
            for stream in streams:
                for _ in range(2 + i % 5):
                    next(stream)
            for stream in streams:
                stream.cancel()
            if i == 15:
                at_rest(cluster)
                warm = node.settled_rss_bytes()
        at_rest(cluster)
        assert count(node, "baton_preemptions_total", way="swap") >= 100
        assert node.rss_bytes() - warm < 4 << 20, (warm, node.rss_bytes())


if __name__ == "__main__":
    tap.main(globals())
