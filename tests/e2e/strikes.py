"""Faults at one chosen moment of a request's life, many times over: each function takes how often and a seed, and returns a report.

Used by test_reports.py with small counts and by soak_all.py with the full ones. Where a moment of a transfer is to be met, the link is
held to a mebibyte a second, so that a transfer takes most of a second, and prompts are new ones, so that no cache shortens it.
"""
import random
import signal
import threading
import time

from cluster import Answer, Cluster, SLACK, grpc, request, tiny_model
from moments import SAMPLED, held, lives, pages, prompt_of, solo, until

SLOW_LINK = dict(node_args=["--kv-rate-max", "1M"], router_args=["--hand-off", "always"])
LONG = 1500  # tokens; most of a mebibyte


def read_until_cancelled(call):
    """Reads a stream that is being cancelled; its ids. Any other end than a whole answer or the cancel is an error."""
    answer = Answer()
    try:
        for reply in call:
            answer.add(reply)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.CANCELLED, (error.code(), error.details())
    return answer


def long_jobs(count, seed, tokens=30):
    return [(prompt_of(LONG, seed * 100_003 + i), tokens, dict(SAMPLED, seed=i)) for i in range(count)]


def in_background(run):
    """Runs it in a thread; the thread and a list that gets its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(run()), daemon=True)
    thread.start()
    return thread, result


def cancel_in_transfer_then_kill(count, seed=1):
    """The client leaves while pages move, and 5 ms later the node that sends them dies: D is free of it at once, and stays."""
    rng = random.Random(seed)
    jobs = [*long_jobs(count + count // 2 + 4, seed), (prompt_of(60), 20, SAMPLED)]
    want = solo(jobs)
    slowest, hits = 0.0, 0
    with Cluster(tiny_model(), prefill=1, decode=1, **SLOW_LINK) as cluster:
        before = lives(cluster)["decode-0"]
        p, d = cluster.prefill_0, cluster.decode_0
        for i, (prompt, tokens, sampling) in enumerate(jobs[:-1]):
            call = cluster.stream(request(prompt, tokens, **dict(sampling)), 60)
            reader, answer = in_background(lambda: read_until_cancelled(call))
            until(lambda: pages(d, "reserved") or answer, 5, "D reserves")
            time.sleep(rng.uniform(0.02, 0.3))
            if not pages(d, "reserved"):  # this process had to wait, and the transfer was over: no blow
                reader.join()
                assert answer and answer[0].ids == want[i][0], (i, answer)
                continue
            call.cancel()
            time.sleep(0.005)
            p.kill()
            slowest = max(slowest, until(lambda: not held(d), 1, "D is free of the dead node's transfer"))
            reader.join()
            assert answer and answer[0].ids == want[i][0][:len(answer[0].ids)], (i, answer)
            p.start().wait_bound()
            cluster.wait_serving(["prefill-0"])
            hits += 1
            if hits % 8 == 0 or hits == count:
                cluster.wait_serving()
                assert cluster.generate(*jobs[-1][:2], 60, **SAMPLED).key() == want[-1], i
            if hits == count:
                break
        assert hits == count, f"only {hits} of {len(jobs) - 1} cancels fell into a transfer"
        assert lives(cluster)["decode-0"] == before, "the survivor was restarted"
        assert not cluster.settled()
    return dict(cancels=count, kills=count, slowest_free_s=round(slowest, 3))


def cancel_before_d_admits(count, seed=1):
    """The prompt is computed and its first token is out; D has not joined yet when the client leaves, 0 to 50 ms later."""
    rng = random.Random(seed)
    jobs = long_jobs(count + count // 2 + 4, seed)
    want = solo(jobs)
    slowest, hits = 0.0, 0
    with Cluster(tiny_model(), prefill=1, decode=1, **SLOW_LINK) as cluster:
        for i, (prompt, tokens, sampling) in enumerate(jobs):
            call = cluster.stream(request(prompt, tokens, **dict(sampling)), 60)
            answer = Answer()
            answer.add(next(call))
            time.sleep(rng.uniform(0, 0.05))
            early = pages(cluster.decode_0, "reserved") > 0  # else this process had to wait, and D has joined
            call.cancel()
            assert answer.ids == want[i][0][:1], i
            slowest = max(slowest, until(lambda: not held(cluster.prefill_0) and not held(cluster.decode_0), 1, "all is free"))
            hits += early
            if hits == count:
                break
        assert hits == count, f"only {hits} of {len(jobs)} cancels came before D had joined"
        assert cluster.generate(*jobs[0][:2], 60, **dict(jobs[0][2])).key() == want[0]
        assert not cluster.settled()
    return dict(cancels=count, slowest_free_s=round(slowest, 3))


def cancel_in_last_chunk(count, seed=1):
    """The client leaves while P computes the end of the prompt: `count` cancels that fell there; when, is found by trying."""
    chunk, came_late, came_early, hits = 128, 0, 0, 0
    jobs = long_jobs(10 * count, seed, 3)
    after_s = 0.05
    with Cluster(tiny_model(), prefill=1, decode=1, node_args=["--chunk-tokens", str(chunk)]) as cluster:
        for i, (prompt, tokens, sampling) in enumerate(jobs):
            before = cluster.prefill_0.metric("baton_tokens_total", kind="prompt")
            call = cluster.stream(request(prompt, tokens, **dict(sampling)), 60)
            timer = threading.Timer(after_s, call.cancel)
            timer.start()
            answer = read_until_cancelled(call)
            timer.join()
            if answer.ids:
                came_late, after_s = came_late + 1, after_s * 0.93
                continue
            until(lambda: not held(cluster.prefill_0), 1, "P is free of it")
            computed = cluster.prefill_0.metric("baton_tokens_total", kind="prompt") - before
            # two steps may be on their way: the last chunk ran, or was about to, and no token of it went out
            if computed >= LONG - LONG % chunk - 2 * chunk:
                hits += 1
                if hits == count:
                    break
            else:
                came_early, after_s = came_early + 1, after_s * 1.05
        assert hits == count, f"only {hits} of {len(jobs)} cancels fell into the last chunk"
        assert not cluster.settled()
        for node in cluster.nodes():
            assert node.metric("baton_cancel_layers_max") <= 1
        want = solo(jobs[:1])[0]
        assert cluster.generate(*jobs[0][:2], 60, **dict(jobs[0][2])).key() == want
    return dict(cancels=count, others=came_late + came_early)


class Load:
    """Clients that ask for ever; each answer is compared with the solo one. What goes wrong is kept in words."""

    def __init__(self, cluster, jobs, want, clients=4, typed=()):
        self.cluster, self.jobs, self.want, self.typed = cluster, jobs, want, typed
        self.ended, self.errors, self.faults, self.lock = 0, 0, [], threading.Lock()
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(clients)]

    def _client(self, number):
        rng = random.Random(number)
        while not self.over.is_set():
            index = rng.randrange(len(self.jobs))
            prompt, tokens, sampling = self.jobs[index]
            answer, fault, error = Answer(), None, None
            try:
                for reply in self.cluster.stream(request(prompt, tokens, **dict(sampling)), 60):
                    answer.add(reply)
            except grpc.RpcError as caught:
                error = caught
                if caught.code() not in self.typed:
                    fault = f"job {index} after {len(answer.ids)} tokens: {caught.code()}: {caught.details()}"
                elif answer.ids != self.want[index][0][:len(answer.ids)]:
                    fault = f"job {index}: {answer.ids} before {caught.code()}"
            except AssertionError as caught:
                fault = f"job {index}: {caught!r}"
            else:
                if answer.key() != self.want[index]:
                    fault = f"job {index}: {answer.key()} instead of {self.want[index]}"
            with self.lock:
                self.ended += 1
                self.errors += error is not None
                if fault:
                    self.faults.append(fault)
            self.over.wait(0.005)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.over.set()
        for thread in self.threads:
            thread.join()
        if kind is None:
            assert not self.faults, (self.ended, self.faults[:3])
            assert self.ended > len(self.threads), self.ended


def mixed_jobs(count, seed=3):
    rng = random.Random(seed)
    return [(prompt_of(rng.choice([5, 60, 300, 800]), 100 + i), rng.choice([2, 30, 120]),
             dict(SAMPLED, seed=i) if i % 2 else dict(temperature=0, ignore_eos=True)) for i in range(count)]


def restarts_on_one_address(count, seed=1):
    """A node is killed and comes back on the very same ports, again and again, under load: it serves again within 5 s as a new life
    that nobody takes for the old one, and nobody else goes down with it."""
    jobs = mixed_jobs(16)
    want = solo(jobs)
    rng = random.Random(seed)
    slowest, registrations = 0.0, 0
    names = "prefill-0", "decode-0", "decode-1"
    base = 20000 + rng.randrange(10000)
    args_of = {name: ["--kv-ports", f"{base + i}-{base + i}"] for i, name in enumerate(names)}
    with Cluster(tiny_model(), prefill=1, decode=2, args_of=args_of) as cluster:
        with Load(cluster, jobs, want) as load:
            for i in range(count):
                name = rng.choice(names)
                node, old = cluster.processes[name], lives(cluster)
                addresses = node.grpc, node.http
                time.sleep(rng.uniform(0, 0.3))
                node.kill()
                began = time.monotonic()
                node.start().wait_bound()
                until(lambda: lives(cluster).get(name, old[name])[1] != old[name][1], 5, f"{name} serves again")
                slowest = max(slowest, time.monotonic() - began)
                assert (node.grpc, node.http) == addresses
                new = lives(cluster)
                registrations += sum(n != name and n in new and new[n] != old[n] for n in old)
                for other in cluster.nodes():
                    assert other.alive(), f"{other.name} went down with {name}: {other.tail()}"
        assert not cluster.settled()
        assert cluster.router.alive() and cluster.router.metric("baton_token_mismatches_total") == 0
    return dict(restarts=count, answers=load.ended, slowest_serving_s=round(slowest, 2),
                survivors_registered_anew=registrations)


def frozen_in_transfer(count, seed=1):
    """D is stopped while pages move, so that all of the transfer lies ready when it wakes, with every deadline long past. Shorter than
    the router's patience: it takes up where it was, and nothing is placed again. Longer: its work has gone elsewhere."""
    jobs = long_jobs(count, seed)
    want = solo(jobs)
    report = dict(short=0, long=0)
    with Cluster(tiny_model(), prefill=1, decode=2, **SLOW_LINK) as cluster:
        for i, (prompt, tokens, sampling) in enumerate(jobs):
            short = i % 2 == 0
            replays = cluster.router.metric("baton_replays_total")
            reader, answer = in_background(lambda: cluster.generate(prompt, tokens, 60, **dict(sampling)))
            until(lambda: any(pages(d, "reserved") for d in (cluster.decode_0, cluster.decode_1)), 5, "D reserves")
            d = next(d for d in (cluster.decode_0, cluster.decode_1) if pages(d, "reserved"))
            d.signal(signal.SIGSTOP)
            time.sleep(1.2 if short else 3.2)
            d.signal(signal.SIGCONT)
            reader.join()
            assert answer and answer[0].key() == want[i], (i, answer and answer[0].key())
            if short:
                assert cluster.router.metric("baton_replays_total") == replays, "what was only late was placed again"
            else:
                assert answer[0].timings.replays, "three seconds of silence and nobody noticed"
            report["short" if short else "long"] += 1
            cluster.wait_serving()
        assert not cluster.settled()
    return report


def frozen_past_the_lease(count, seed=1):
    """D sleeps for longer than P keeps pages for it, with work of every age in its hands, and wakes among others who have taken it
    over: what its requests get is exact."""
    jobs = [*mixed_jobs(12, seed), *long_jobs(12, seed, 60)]
    want = solo(jobs)
    with Cluster(tiny_model(), prefill=1, decode=2, **SLOW_LINK) as cluster:
        with Load(cluster, jobs, want, clients=6) as load:
            for i in range(count):
                d = cluster.processes[f"decode-{i % 2}"]
                until(lambda: held(d), 5, "D has work")
                d.signal(signal.SIGSTOP)
                time.sleep(9.5)
                d.signal(signal.SIGCONT)
                cluster.wait_serving()
                until(lambda: held(d), 5, "D has work again")
        assert not cluster.settled()
        assert cluster.router.metric("baton_token_mismatches_total") == 0
        leases = sum(n.metric("baton_kv_leases_expired_total") for n in cluster.nodes())
    return dict(freezes=count, answers=load.ended, leases_expired=int(leases))


def dies_between_choice_and_dispatch(count, seed=1):
    """A node is chosen and the assignment lies in its socket, unread, when it dies: it goes elsewhere at once."""
    jobs = [(prompt_of(200, i), 20, SAMPLED) for i in range(4)]
    want = solo(jobs)
    rng = random.Random(seed)
    slowest = 0.0
    with Cluster(tiny_model(), prefill=2, decode=2) as cluster:
        for i in range(count):
            role = ("prefill", "decode")[i % 2]
            victims = [cluster.processes[f"{role}-{k}"] for k in range(2)]
            for victim in victims:  # both, so that the choice must fall on one of them
                victim.signal(signal.SIGSTOP)
            index = rng.randrange(4)
            reader, answer = in_background(lambda: cluster.generate(*jobs[index][:2], 60, **SAMPLED))
            time.sleep(0.1)
            assert not answer
            for victim in victims:
                victim.kill()
            began = time.monotonic()
            reader.join()
            slowest = max(slowest, time.monotonic() - began)
            assert answer and answer[0].key() == want[index], i
            for victim in victims:
                victim.start()
            for victim in victims:
                victim.wait_bound()
            cluster.wait_serving()
        assert not cluster.settled()
    assert slowest < 1 * SLACK, slowest
    return dict(deaths=2 * count, slowest_answer_s=round(slowest, 2))


def distinct_prompts(count, seed=1):
    """Sixty-four at a time of so many different prompts, each as alone."""
    rng = random.Random(seed)
    jobs = [([rng.randrange(20, 49000) for _ in range(rng.choice([3, 40, 100, 257, 400]))], rng.choice([1, 8, 24]),
             dict(SAMPLED, seed=i) if i % 2 else dict(temperature=0, logprobs=1, ignore_eos=True)) for i in range(count)]
    want = solo(jobs)
    faults, lock, left = [], threading.Lock(), list(range(count))
    with Cluster(tiny_model(), prefill=2, decode=2, node_args=["--sequences-max", "64"]) as cluster:
        def client():
            while True:
                with lock:
                    if not left:
                        return
                    i = left.pop()
                prompt, tokens, sampling = jobs[i]
                try:
                    key = cluster.generate(prompt, tokens, 120, **dict(sampling)).key()
                except (RuntimeError, AssertionError) as error:
                    key = repr(error)
                if key != want[i]:
                    with lock:
                        faults.append(f"prompt {i}: {key} instead of {want[i]}")
        threads = [threading.Thread(target=client) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults, (len(faults), faults[:2])
        assert not cluster.settled()
    return dict(prompts=count, differing=0)
