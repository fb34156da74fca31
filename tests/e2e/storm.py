"""Many requests while nodes are killed and frozen at random; every answer is compared with an undisturbed mixed node's.

Used by test_storm.py with small counts and by soak_storm.py with the full ones.
"""
import random
import signal
import threading
import time

from cluster import Answer, Cluster, grpc, request, tiny_model

KINDS = 120  # different requests; each is asked many times


def kinds(seed):
    """[(prompt, max_tokens, sampling)] of mixed lengths and samplings."""
    rng = random.Random(seed)
    made = []
    for i in range(KINDS):
        prompt = [rng.randrange(20, 49000) for _ in range(rng.choice([2, 9, 40, 130, 257, 600]))]
        if i % 3 == 0:
            sampling = dict(temperature=0, logprobs=1)
        elif i % 3 == 1:
            sampling = dict(temperature=0.9, seed=i + 1, top_p=0.9, repetition_penalty=1.2)
        else:
            sampling = dict(temperature=1.0, seed=i + 1, min_p=0.02, stop=["e", "qu"], min_tokens=1)
        made.append((prompt, rng.choice([1, 2, 17, 60, 150]), dict(sampling, ignore_eos=True)))
    return made


def expected(jobs):
    """What one mixed node answers, one request at a time."""
    with Cluster(tiny_model(), mixed=1) as cluster:
        return [cluster.generate(p, n, 120, **dict(s)).key() for p, n, s in jobs]


class Striker:
    """Every `period_s`: kill -9 of a random node, which is started again at once, and SIGSTOP of another for a while.

    Works in the main thread: a process started by a thread is told of its parent's death when that thread ends.
    """

    def __init__(self, cluster, period_s, seed, freeze=True):
        self.cluster, self.period_s, self.freeze = cluster, period_s, freeze
        self.rng = random.Random(seed)
        self.kills = self.freezes = 0

    def run_until(self, over):
        while not over(self.period_s):
            victim, other = self.rng.sample(self.cluster.nodes(), 2)
            if self.freeze:
                other.signal(signal.SIGSTOP)
                self.freezes += 1
            victim.kill()
            victim.start()
            self.kills += 1
            if self.freeze:
                over(self.rng.uniform(0.2, 4))
                other.signal(signal.SIGCONT)


def run(count, period_s, seed=1, prefill=2, decode=3, clients=12, cancel_share=0.1, node_args=(), freeze=True):
    """Returns a report: {requests, ended, cancelled, lost, changed, kills, freezes, replays, ...}; the first few faults in words."""
    jobs = kinds(seed)
    want = expected(jobs)
    report = dict(requests=count, ended=0, cancelled=0, lost=0, changed=0)
    faults, lock = [], threading.Lock()
    started = time.monotonic()
    with Cluster(tiny_model(), prefill=prefill, decode=decode, node_args=node_args) as cluster:
        striker = Striker(cluster, period_s, seed, freeze)
        left = list(range(count))

        def one(number):
            rng = random.Random(seed * 1_000_003 + number)
            index = rng.randrange(KINDS)
            prompt, max_tokens, sampling = jobs[index]
            cancel_after = rng.randrange(max_tokens + 1) if rng.random() < cancel_share else None
            call = cluster.stream(request(prompt, max_tokens, **dict(sampling)), 120)
            answer = Answer()
            try:
                if cancel_after == 0:
                    call.cancel()
                for reply in call:
                    answer.add(reply)
                    if cancel_after is not None and len(answer.ids) >= cancel_after:
                        call.cancel()
            except grpc.RpcError as error:
                if cancel_after is not None and error.code() == grpc.StatusCode.CANCELLED:
                    # what came before the cancel must be right too
                    return "cancelled" if answer.ids == want[index][0][:len(answer.ids)] else "changed"
                with lock:
                    faults.append(f"request {number}: {error.code()}: {error.details()} after {len(answer.ids)} tokens")
                return "lost"
            except AssertionError as error:
                with lock:
                    faults.append(f"request {number}: {error}")
                return "changed"
            if answer.key() != want[index]:
                with lock:
                    faults.append(f"request {number} (kind {index}): {answer.ids} instead of {want[index][0]}, "
                                  f"{answer.finish} instead of {want[index][3]}")
                return "changed"
            return "ended"

        def worker():
            while True:
                with lock:
                    if not left:
                        return
                    number = left.pop()
                outcome = one(number)
                with lock:
                    report[outcome] += 1

        threads = [threading.Thread(target=worker, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()

        def over(seconds):
            """Waits so long at most; true when all requests have ended."""
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and any(t.is_alive() for t in threads):
                time.sleep(0.02)
            return not any(t.is_alive() for t in threads)

        striker.run_until(over)
        cluster.wait_serving()
        report["pages_left"] = len(cluster.settled())
        report["replays"] = int(cluster.router.metric("baton_replays_total"))
        report["token_mismatches"] = int(cluster.router.metric("baton_token_mismatches_total"))
        report["kills"], report["freezes"] = striker.kills, striker.freezes
        report["router_alive"] = cluster.router.alive()
        if faults:
            print("".join(f"# {line}\n" for line in (cluster.logs()).splitlines()), end="")
    report["seconds"] = round(time.monotonic() - started, 1)
    return report, faults


def check(report, faults):
    assert not faults, (report, faults[:5])
    assert report["lost"] == report["changed"] == report["token_mismatches"] == 0, report
    assert report["ended"] + report["cancelled"] == report["requests"], report
    assert report["pages_left"] == 0 and report["router_alive"], report
    assert report["kills"] > 0, report
