"""A node that dies or freezes costs its requests time, never tokens."""
import random
import signal
import threading
import time

import tap
from cluster import Answer, Cluster, SLACK, grpc, pb, request, tiny_model

TOKENS = 1200  # enough that the answer is still being made when the client has read the first of it, also one that has to wait


def prompt_of(length, seed=5):
    rng = random.Random(seed)
    return [rng.randrange(20, 49000) for _ in range(length)]


def sampled(i=0):
    return dict(temperature=0.8, seed=77 + i, logprobs=1, ignore_eos=True)


_expected = {}


def expected(prompt, tokens, **sampling):
    """The answer of an undisturbed mixed node."""
    key = (tuple(prompt), tokens, tuple(sorted(sampling.items())))
    if key not in _expected:
        with Cluster(tiny_model(), mixed=1) as cluster:
            _expected[key] = cluster.generate(prompt, tokens, **sampling).key()
    return _expected[key]


def run_and_strike(cluster, message, strike, after_tokens):
    """Reads the stream, calls `strike` once so many tokens have arrived, and reads on."""
    answer, struck = Answer(), False
    for reply in cluster.stream(message, 120):
        answer.add(reply)
        if not struck and len(answer.ids) >= after_tokens:
            struck = True
            strike()
    assert struck, f"only {len(answer.ids)} tokens came"
    return answer


def kill_decode_after(tokens):
    prompt = prompt_of(100)
    want = expected(prompt, TOKENS, **sampled())
    with Cluster(tiny_model(), prefill=1, decode=2) as cluster:
        message = request(prompt, TOKENS, **sampled())
        victims = []

        def strike():
            # the stream's decode node is the one that runs a sequence; before it joined, the one that reserves
            for name in ("decode-0", "decode-1"):
                p = cluster.processes[name]
                if p.metric("baton_kv_pages", state="free") < p.metric("baton_kv_pages", state="total"):
                    victims.append(name)
                    p.kill()

        answer = run_and_strike(cluster, message, strike, tokens)
        assert victims, "no decode node held the request"
        assert answer.key() == want
        assert answer.timings.replays >= 1
        assert cluster.router.metric("baton_replays_total") >= 1
        assert cluster.router.metric("baton_token_mismatches_total") == 0
        assert not cluster.settled()


def test_decode_killed_after_1_token():
    kill_decode_after(1)


def test_decode_killed_after_7_tokens():
    kill_decode_after(7)


def test_decode_killed_after_40_tokens():
    kill_decode_after(40)


def test_prefill_killed_during_a_long_prompt():
    prompt = prompt_of(1500)
    want = expected(prompt, 20, **sampled())
    for delay in (0.02, 0.1, 0.25):
        with Cluster(tiny_model(), prefill=2, decode=1, node_args=["--chunk-tokens", "64"]) as cluster:
            result = []
            thread = threading.Thread(target=lambda: result.append(
                cluster.generate(prompt, 20, 120, **sampled())))
            thread.start()
            time.sleep(delay)
            for name in ("prefill-0", "prefill-1"):
                p = cluster.processes[name]
                if p.metric("baton_kv_pages", state="free") < p.metric("baton_kv_pages", state="total"):
                    p.kill()
                    break
            thread.join()
            assert result and result[0].key() == want


def test_prefill_killed_right_after_its_first_token():
    """The router has the first token; D may or may not have the pages and FIRST: either way the answer goes on."""
    prompt = prompt_of(300)
    want = expected(prompt, 20, **sampled())
    for i in range(6):
        with Cluster(tiny_model(), prefill=2, decode=1) as cluster:
            def strike():
                for name in ("prefill-0", "prefill-1"):
                    p = cluster.processes[name]
                    if p.metric("baton_tokens_total", kind="prompt") > 0:
                        time.sleep(0.001 * i)
                        p.kill()
                        return
            answer = run_and_strike(cluster, request(prompt, 20, **sampled()), strike, 1)
            assert answer.key() == want, i


def test_router_killed_then_resumed():
    prompt = prompt_of(90)
    want = expected(prompt, TOKENS, **sampled())
    with Cluster(tiny_model(), prefill=1, decode=1) as cluster:
        message = request(prompt, TOKENS, **sampled())
        first = Answer()
        try:
            for reply in cluster.stream(message, 60):
                first.add(reply)
                if len(first.ids) >= 9 and cluster.router.alive():
                    cluster.router.kill()
            raise AssertionError("the stream outlived its router")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error.code()
        killed = time.monotonic()
        cluster.router.start().wait_bound()
        cluster.connect()
        cluster.wait_serving()
        assert time.monotonic() - killed < 2 * SLACK, "the nodes were not back in time"
        message.resume.received.ids.extend(first.ids)
        message.resume.text_bytes = len(first.text.encode())
        message.resume.seed = first.seed
        rest = Answer()
        rest.ids, rest.logprobs, rest.text = list(first.ids), list(first.logprobs), first.text
        for reply in cluster.stream(message, 60):
            rest.add(reply)
        assert rest.key() == want
        assert rest.usage.completion_tokens == TOKENS
        assert not cluster.settled()


def test_decode_frozen_and_woken_after_its_requests_were_placed_again():
    prompt = prompt_of(100)
    want = expected(prompt, TOKENS, **sampled())
    with Cluster(tiny_model(), prefill=1, decode=2) as cluster:
        frozen = []

        def strike():
            for name in ("decode-0", "decode-1"):
                p = cluster.processes[name]
                if p.metric("baton_sequences", state="running") > 0:
                    p.signal(signal.SIGSTOP)
                    frozen.append(p)
                    return

        timer = threading.Timer(5.0, lambda: [p.signal(signal.SIGCONT) for p in frozen])
        timer.start()
        answer = run_and_strike(cluster, request(prompt, TOKENS, **sampled()), strike, 5)
        assert frozen, "no decode node ran the sequence"
        assert answer.key() == want
        assert answer.timings.replays >= 1
        timer.join()
        cluster.wait_serving()
        assert not cluster.settled()
        again = cluster.generate(prompt, TOKENS, **sampled())
        assert again.key() == want
        assert cluster.router.metric("baton_token_mismatches_total") == 0


def test_no_node_is_a_typed_error():
    with Cluster(tiny_model(), mixed=1, router_args=["--node-wait-s", "1"]) as cluster:
        cluster.mixed_0.kill()
        answer = cluster.generate(prompt_of(5), 5, 30, expect_error=True)
        assert answer.error and answer.error.code() == grpc.StatusCode.UNAVAILABLE


def test_a_node_restarted_on_the_same_name_serves_again():
    prompt = prompt_of(50)
    want = expected(prompt, 20, **sampled())
    with Cluster(tiny_model(), prefill=1, decode=1) as cluster:
        for name in ("decode-0", "prefill-0", "decode-0"):
            cluster.processes[name].kill()
            cluster.processes[name].start().wait_bound()
            cluster.wait_serving()
            assert cluster.generate(prompt, 20, **sampled()).key() == want


if __name__ == "__main__":
    tap.main(globals())
