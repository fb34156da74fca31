"""Cancels, deadlines and slow clients: pages are free soon after, and nobody else notices."""
import random
import threading
import time

import tap
from cluster import Cluster, SLACK, grpc, pb_grpc, request, tiny_model

REQUESTS = 500


def test_cancel_and_deadline_at_random_points():
    rng = random.Random(3)
    with Cluster(tiny_model(), prefill=1, decode=1, node_args=["--chunk-tokens", "64"]) as cluster:
        bystander_prompt = [rng.randrange(20, 49000) for _ in range(40)]
        want = cluster.generate(bystander_prompt, 30, temperature=0, ignore_eos=True).key()
        outcomes = {}
        lock = threading.Lock()

        def count(what):
            with lock:
                outcomes[what] = outcomes.get(what, 0) + 1

        def one(i, seed):
            r = random.Random(seed)
            prompt = [r.randrange(20, 49000) for _ in range(r.choice([4, 60, 200, 500]))]
            message = request(prompt, 40, temperature=0.7, seed=i + 1, ignore_eos=True)
            by_deadline = r.random() < 0.3
            wait_s = r.random() ** 2 * 0.6
            call = cluster.stream(message, wait_s + 0.001 if by_deadline else 60)
            timer = None
            if not by_deadline:
                timer = threading.Timer(wait_s, call.cancel)
                timer.start()
            try:
                for _ in call:
                    pass
                count("ended")
            except grpc.RpcError as error:
                count(error.code().name)
            finally:
                if timer:
                    timer.cancel()

        work = list(range(REQUESTS))

        def worker():
            while True:
                with lock:
                    if not work:
                        return
                    i = work.pop()
                one(i, 10_000 + i)

        threads = [threading.Thread(target=worker) for _ in range(8)]
        for thread in threads:
            thread.start()
        while any(t.is_alive() for t in threads):
            assert cluster.generate(bystander_prompt, 30, 120, temperature=0, ignore_eos=True).key() == want
        for thread in threads:
            thread.join()
        assert set(outcomes) <= {"ended", "CANCELLED", "DEADLINE_EXCEEDED"}, outcomes
        assert outcomes.get("CANCELLED", 0) > REQUESTS / 10, outcomes
        assert outcomes.get("DEADLINE_EXCEEDED", 0) > REQUESTS / 20, outcomes
        assert not cluster.settled()
        for node in cluster.nodes():
            assert node.metric("baton_cancel_layers_max") <= 1
            assert node.metric("baton_kv_pages", state="free") + node.metric(
                "baton_kv_pages", state="cached") == node.metric("baton_kv_pages", state="total")
        assert cluster.generate(bystander_prompt, 30, temperature=0, ignore_eos=True).key() == want


def test_a_slow_client_slows_nobody_and_ends_as_cancelled():
    with Cluster(tiny_model(), prefill=1, decode=1, router_args=["--client-stall-s", "2"]) as cluster:
        # a client whose transport buffers little, so that "takes nothing" reaches the router
        channel = grpc.insecure_channel(cluster.router.grpc, options=[
            ("grpc.http2.lookahead_bytes", 16384), ("grpc.http2.bdp_probe", 0),
            ("grpc.use_local_subchannel_pool", 1)])
        slow = pb_grpc.GenerationStub(channel).Generate(
            request(list(range(30, 90)), 1900, temperature=0, ignore_eos=True, logprobs=20), timeout=300)
        next(slow)  # and then takes nothing
        other = cluster.generate(list(range(40, 80)), 50, 60, temperature=0, ignore_eos=True)
        assert len(other.ids) == 50
        deadline = time.monotonic() + 20 * SLACK
        while not cluster.router.metrics().get('baton_requests_total{outcome="slow_client"}', 0):
            assert time.monotonic() < deadline, "the slow client was never ended"
            time.sleep(0.1)
        try:
            for _ in slow:
                pass
            raise AssertionError("the slow stream ended well")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED, error
        channel.close()
        assert not cluster.settled()


if __name__ == "__main__":
    tap.main(globals())
