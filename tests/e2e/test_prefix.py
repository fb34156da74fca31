"""What was computed once is not computed again, whoever has it; and never is a bit of an answer different for it."""
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import tap
from cluster import Answer, Cluster, SLACK, demo_model, grpc, pb, request, tiny_model

PAGE = 16
TURNS = 8
NODE_ARGS = ["--page-tokens", str(PAGE)]
DEMO_PAGE_BYTES = PAGE * 30 * 2 * 3 * 64 * 2  # layers, K and V, heads, dimensions, f16


def ids(rng, count):
    return [rng.randrange(20, 49000) for _ in range(count)]


def sampled(seed=7):
    return dict(temperature=0.8, seed=seed, logprobs=1, ignore_eos=True)


class Prefixes(Cluster):
    def __init__(self, model=None, router_args=("--prefix-fetch", "always"), node_args=(), **kinds):
        # what a link or a prefill is measured at on a busy machine must not decide who reads a prompt
        super().__init__(model or tiny_model(), node_args=[*NODE_ARGS, *node_args],
                         router_args=["--hand-off", "always", *router_args], **kinds)

    def told(self, seconds=10):
        """Waits until the router knows of every page that the idle nodes have cached."""
        assert not self.settled(), "pages are in use"
        deadline = time.monotonic() + seconds * SLACK
        while time.monotonic() < deadline:
            cached = sum(p.metric("baton_kv_pages", state="cached") for p in self.nodes() if p.alive())
            if self.router.metric("baton_cache_index_entries") == cached:
                return cached
            time.sleep(0.05)
        raise AssertionError(f"the nodes have {cached} cached pages, the router knows of "
                             f"{self.router.metric('baton_cache_index_entries')}")


_chat = []


def chat():
    """The prompts of a conversation, and its answers by a node without a cache: [(prompt, new tokens, answer key)]."""
    if not _chat:
        rng = random.Random(3)
        with Prefixes(mixed=1, node_args=["--prefix-cache", "off"]) as cluster:
            history = []
            for turn in range(TURNS):
                new = ids(rng, rng.choice([5, 16, 23, 40]))
                answer = cluster.generate(history + new, 37, **sampled(turn))
                assert answer.usage.cached_tokens == 0
                _chat.append((history + new, len(new), answer.key()))
                history = history + new + answer.ids
    return _chat


def chat_on(cluster):
    """Each turn computes at most what is new, and one page from the first id that differs."""
    for turn, (prompt, new, want) in enumerate(chat()):
        answer = cluster.generate(prompt, 37, **sampled(turn))
        assert answer.key() == want, f"turn {turn}"
        computed = len(prompt) - answer.usage.cached_tokens
        # the last answer token was never a row, so a page that it ends is not whole
        assert computed <= new + PAGE, (
            f"turn {turn}: {computed} of {len(prompt)} tokens were computed, {new} are new")
        assert answer.usage.cached_tokens < len(prompt)
        cluster.told()
    assert cluster.router.metric("baton_token_mismatches_total") == 0


def test_chat_on_one_mixed_node():
    with Prefixes(mixed=1) as cluster:
        chat_on(cluster)
        assert cluster.router.metric("baton_prefix_fetches_total") == 0
        cached = cluster.router.metric("baton_tokens_total", kind="cached")
        assert cached > cluster.router.metric("baton_tokens_total", kind="prompt") / 2, cached


def test_chat_on_prefill_and_decode_fetches_what_d_generated():
    with Prefixes(prefill=1, decode=1) as cluster:
        chat_on(cluster)
        # P has the prompts from its own work; the answers are D's
        assert cluster.router.metric("baton_prefix_fetches_total") >= TURNS - 2
        assert cluster.router.metric("baton_prefix_fetches_refused_total") == 0


def test_chat_on_two_of_each():
    with Prefixes(prefill=2, decode=2) as cluster:
        chat_on(cluster)


def test_chat_on_the_opaque_backend():
    with Prefixes(prefill=1, decode=1, node_args=["--backend", "opaque"]) as cluster:
        chat_on(cluster)
        assert cluster.router.metric("baton_prefix_fetches_total") >= TURNS - 2


def test_without_fetching_only_what_p_read_itself_is_reused():
    with Prefixes(prefill=1, decode=1, router_args=("--prefix-fetch", "off")) as cluster:
        for turn, (prompt, _, want) in enumerate(chat()[:4]):
            answer = cluster.generate(prompt, 37, **sampled(turn))
            assert answer.key() == want
            before = len(chat()[turn - 1][0]) if turn else 0
            assert answer.usage.cached_tokens == before // PAGE * PAGE, (turn, answer.usage)
            cluster.told()
        assert cluster.router.metric("baton_prefix_fetches_total") == 0


def test_tenants_never_share():
    rng = random.Random(9)
    prompt = ids(rng, 100)
    with Prefixes(prefill=1, decode=1) as cluster:
        def cached(tenant):
            answer = cluster.generate(prompt, 8, tenant=tenant, **sampled())
            keys.add((tuple(answer.ids), answer.text))
            cluster.told()
            return answer.usage.cached_tokens

        keys = set()
        assert [cached(t) for t in ("Bearer a", "Bearer b", None, "Bearer b", "Bearer a", None, "Bearer c")] == [
            0, 0, 0, 96, 96, 96, 0]
        assert len(keys) == 1


def test_a_restarted_router_finds_what_is_cached():
    rng = random.Random(10)
    prompt = ids(rng, 100)
    for args in ((), ("--cache-key", "000102030405060708090a0b0c0d0e0f")):
        with Prefixes(prefill=1, decode=1, router_args=args) as cluster:
            want = cluster.generate(prompt, 8, **sampled()).key()
            cluster.generate(prompt, 8, tenant="Bearer a", **sampled())
            pages = cluster.told()
            assert pages >= 24
            cluster.router.kill()
            cluster.router.start().wait_bound()
            cluster.connect()
            cluster.wait_serving()
            assert cluster.told() == pages
            answer = cluster.generate(prompt, 8, **sampled())
            assert answer.key() == want and answer.usage.cached_tokens == 96
            # who can tell whose a tenant's pages are, without the key that they were stored under?
            answer = cluster.generate(prompt, 8, tenant="Bearer a", **sampled())
            assert answer.key() == want and answer.usage.cached_tokens == (96 if args else 0)


def strike_in_the_prompt(cluster, prompt, pages):
    """Kills the prefill node that sends once decode-0 has so many pages of the prompt; returns the answer."""
    answer, failure = Answer(), []

    def run():
        try:
            for reply in cluster.stream(request(prompt, 12, **sampled()), 120):
                answer.add(reply)
        except grpc.RpcError as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 60 * SLACK
    while cluster.decode_0.metric("baton_kv_verified_bytes_total") < pages * DEMO_PAGE_BYTES:
        assert time.monotonic() < deadline and thread.is_alive(), "the transfer never began, or it was too quick"
        time.sleep(0.01)
    senders = [p for p in cluster.nodes() if p.metric("baton_kv_sent_bytes_total")]
    assert len(senders) == 1, [p.name for p in senders]
    senders[0].kill()
    thread.join()
    assert not failure, failure
    return answer


def test_what_d_verified_outlives_p():
    rng = random.Random(12)
    prompt = ids(rng, 500)
    with Prefixes(demo_model(), mixed=1, node_args=["--prefix-cache", "off"]) as cluster:
        want = cluster.generate(prompt, 12, 120, **sampled()).key()
    # alone, D goes on from its own pages; with another P, that one fetches them
    for prefill in (1, 2):
        with Prefixes(demo_model(), prefill=prefill, decode=1, node_args=["--chunk-tokens", "64"]) as cluster:
            answer = strike_in_the_prompt(cluster, prompt, 9)
            assert answer.key() == want
            assert answer.timings.replays == 1
            # of the last pages that came some runs of layers are missing
            assert 4 * PAGE <= answer.usage.cached_tokens < len(prompt), answer.usage
            assert cluster.router.metric("baton_prefix_fetches_total") == prefill - 1
            assert not cluster.settled()


def test_a_leaving_decode_node_hands_its_streams_over():
    rng = random.Random(13)
    jobs = [(ids(rng, 30 + 10 * i), sampled(100 + i)) for i in range(5)]
    tokens = 1500
    with Prefixes(mixed=1, node_args=["--prefix-cache", "off"]) as cluster, ThreadPoolExecutor(len(jobs)) as pool:
        want = [f.result().key() for f in [pool.submit(cluster.generate, p, tokens, 120, **s) for p, s in jobs]]
    with Prefixes(prefill=1, decode=2, node_args=["--grace-s", "1"]) as cluster:
        answers, failures = [Answer() for _ in jobs], []

        def run(i):
            try:
                for reply in cluster.stream(request(jobs[i][0], tokens, **jobs[i][1]), 120):
                    answers[i].add(reply)
            except grpc.RpcError as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20 * SLACK
        while min(len(a.ids) for a in answers) < 100:
            assert time.monotonic() < deadline and not failures, failures
            time.sleep(0.01)
        running = {p: p.metric("baton_sequences", state="running") for p in (cluster.decode_0, cluster.decode_1)}
        leaver = max(running, key=running.get)
        assert running[leaver] >= 2, running
        leaver.signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert [a.key() for a in answers] == want
        assert leaver.child.wait(20 * SLACK) == 0
        assert cluster.router.metric("baton_handovers_total") >= 1
        assert sum(a.timings.handovers for a in answers) == cluster.router.metric("baton_handovers_total")
        assert cluster.router.metric("baton_replays_total") == 0
        assert cluster.router.metric("baton_node_deaths_total") == 0
        assert cluster.router.metric("baton_prefix_fetches_total") >= 1
        status = cluster.admin.GetStatus(pb.GetStatusRequest(), timeout=5)
        assert status.handovers == cluster.router.metric("baton_handovers_total")
        assert not cluster.settled()


def test_status_shows_links_and_caches():
    rng = random.Random(14)
    with Prefixes(prefill=1, decode=1) as cluster:
        for i in range(3):
            cluster.generate(ids(rng, 900), 4, **sampled(i))
        cluster.told()
        deadline = time.monotonic() + 10 * SLACK
        while True:
            nodes = {n.name: n for n in cluster.admin.GetStatus(pb.GetStatusRequest(), timeout=5).nodes}
            # all of it comes with a heartbeat, or when the rate was measured
            cached = min(n.pages_cached for n in nodes.values())
            if cached >= 3 * 56 and nodes["prefill-0"].prefill_tokens_per_s and any(n.links for n in nodes.values()):
                break
            assert time.monotonic() < deadline, nodes
            time.sleep(0.05)
        assert nodes["prefill-0"].transport == "tcp"
        links = [(n.name, l.peer, l.up, l.bytes_per_s) for n in nodes.values() for l in n.links]
        assert links and all(up and rate > 0 and {name, peer} == {"prefill-0", "decode-0"}
                             for name, peer, up, rate in links), links
        assert nodes["prefill-0"].prefill_tokens_per_s > 0
        assert cluster.router.metric("baton_link_bytes_per_second") > 0


if __name__ == "__main__":
    tap.main(globals())
