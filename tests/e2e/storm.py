"""Many requests while nodes, and the router, are killed and frozen at random, or clients leave; every answer is compared with an
undisturbed mixed node's. Each function takes how many and a seed, and returns a report; see kinds.py.
"""
import json
import os
import random
import signal
import subprocess
import threading
import time

from cluster import Answer, BUILD, Cluster, grpc, request, tiny_model
from moments import held, solo as expected, until

KINDS = 120  # different requests; each is asked many times
MEMORY_GROWS_BYTES = 24 << 20  # of a node over a whole soak, beyond what its first tenth took


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


class Striker:
    """Every `period_s`: kill -9 of a random node, which is started again at once, and SIGSTOP of another for a while. With `router`, every
    third blow falls on the router instead.

    Works in the main thread: a process started by a thread is told of its parent's death when that thread ends.
    """

    def __init__(self, cluster, period_s, seed, router=False):
        self.cluster, self.period_s, self.router = cluster, period_s, router
        self.rng = random.Random(seed)
        self.kills = self.freezes = self.router_kills = 0

    def strike(self, process):
        process.kill()
        process.start()

    def run_until(self, over):
        blows = 0
        while not over(self.period_s):
            for process in self.cluster.processes.values():
                assert process.alive(), f"{process.name} died by itself: {process.tail()}"
            blows += 1
            if self.router and blows % 3 == 0:
                self.strike(self.cluster.router)
                self.router_kills += 1
                continue
            victim, other = self.rng.sample(self.cluster.nodes(), 2)
            other.signal(signal.SIGSTOP)
            self.freezes += 1
            self.strike(victim)
            self.kills += 1
            over(self.rng.uniform(0.2, 4))
            other.signal(signal.SIGCONT)


class Crowd:
    """So many clients, each asking one request after the other; what became of each is counted, and the faults are told in words."""

    def __init__(self, count, clients, one, enough=lambda: True):
        """`one(number)` returns an outcome, or raises AssertionError with what is wrong. Goes on beyond `count` until it is `enough`."""
        self.count, self.begun, self.enough, self.one, self.lock = count, 0, enough, one, threading.Lock()
        self.outcomes, self.faults = {}, []
        self.threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _client(self):
        while True:
            with self.lock:
                if self.begun >= self.count and self.enough():
                    return
                number = self.begun
                self.begun += 1
            fault = None
            try:
                outcome = self.one(number)
            except Exception as error:  # whatever it is, it is this request's
                outcome, fault = "wrong", f"request {number}: {error or repr(error)}"
            with self.lock:
                self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
                if fault:
                    self.faults.append(fault)

    def over(self, seconds):
        """Waits so long at most; true when all requests have ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(t.is_alive() for t in self.threads):
            time.sleep(0.02)
        return not any(t.is_alive() for t in self.threads)

    def check(self, cluster):
        if self.faults:
            print("".join(f"# {line}\n" for line in cluster.logs().splitlines()), end="")
        assert not self.faults, f"{len(self.faults)} wrong: {self.faults[:3]}"


def stream_and_compare(cluster, job, want, cancel_after):
    """One request by gRPC; `cancel_after`: leaves after so many tokens; None: stays."""
    prompt, max_tokens, sampling = job
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
        cancelled = cancel_after is not None and error.code() == grpc.StatusCode.CANCELLED
        assert cancelled, f"lost: {error.code()}: {error.details()} after {len(answer.ids)} tokens"
        # what came before the cancel must be right too
        assert answer.ids == want[0][:len(answer.ids)], f"changed: {answer.ids} of {want[0]}"
        return "cancelled"
    assert answer.key() == want, f"changed: {answer.ids} instead of {want[0]}, {answer.finish} instead of {want[3]}"
    return "ended"


def at_rest(cluster):
    cluster.wait_serving()
    left = cluster.settled()
    assert not left, f"pages are left: {left}"


def nodes_killed(count, period_s, seed=1, clients=12, cancel_share=0.1):
    jobs = kinds(seed)
    want = expected(jobs)
    with Cluster(tiny_model(), prefill=2, decode=3) as cluster:
        striker = Striker(cluster, period_s, seed)

        def one(number):
            rng = random.Random(seed * 1_000_003 + number)
            index = rng.randrange(KINDS)
            leaves = rng.randrange(jobs[index][1] + 1) if rng.random() < cancel_share else None
            return stream_and_compare(cluster, jobs[index], want[index], leaves)
        crowd = Crowd(count, clients, one, enough=lambda: striker.kills)
        striker.run_until(crowd.over)
        crowd.check(cluster)
        at_rest(cluster)
        assert cluster.router.alive(), cluster.router.tail()
        mismatches = cluster.router.metric("baton_token_mismatches_total")
        assert not mismatches, mismatches
        return dict(crowd.outcomes, lost=0, changed=0, pages_left=0, kills=striker.kills, freezes=striker.freezes,
                    replays=int(cluster.router.metric("baton_replays_total")))


# --- the same through the command line ---


def client_kinds(seed):
    """What the command line can ask: [(arguments)]."""
    rng = random.Random(seed)
    made = []
    for i in range(KINDS // 3):
        ids = ",".join(str(rng.randrange(20, 49000)) for _ in range(rng.choice([2, 9, 40, 130, 257, 600])))
        args = ["--token-ids", ids, "-n", str(rng.choice([1, 17, 60, 150, 400])), "--ignore-eos"]
        if i % 3 == 0:
            args += ["--temperature", "0", "--logprobs", "1"]
        elif i % 3 == 1:
            args += ["--temperature", "0.9", "--seed", str(i + 1), "--top-p", "0.9"]
        else:
            args += ["--temperature", "1", "--seed", str(i + 1), "--top-k", "40", "--stop", "qu", "--stop", "ing"]
        made.append(args)
    return made


def ask_by_client(cluster, args, leave_s=None):
    """Runs `baton generate`; (exit code, what it printed put together, how often it resumed, its complaint)."""
    child = subprocess.Popen([os.path.join(BUILD, "baton"), "generate", "-s", cluster.router.grpc, "--json", *args],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if leave_s is not None:
        try:
            child.wait(leave_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
    try:
        out, complaint = child.communicate(timeout=180)
    finally:
        child.kill()
    messages = [json.loads(line) for line in out.splitlines()]
    last = messages[-1] if messages else {}
    got = ([i for m in messages for i in m.get("token_ids", [])], [x for m in messages for x in m.get("logprobs", [])],
           "".join(m.get("text", "") for m in messages), last.get("finish_reason"), last.get("stop_match"),
           last.get("usage", {}).get("completion_tokens"))
    return child.returncode, got, max(0, sum("seed" in m for m in messages) - 1), complaint


def router_killed_too(count, period_s, seed=1, clients=8, cancel_share=0.1):
    jobs = client_kinds(seed)
    with Cluster(tiny_model(), mixed=1) as alone:
        want = [ask_by_client(alone, args) for args in jobs]
        assert all(code == 0 for code, *_ in want), want
    resumes, not_reached = [], []
    with Cluster(tiny_model(), prefill=2, decode=3) as cluster:
        striker = Striker(cluster, period_s, seed, router=True)

        def one(number):
            rng = random.Random(seed * 1_000_003 + number)
            index = rng.randrange(len(jobs))
            leaves = rng.uniform(0, 0.4) if rng.random() < cancel_share else None
            began = time.monotonic()
            while True:
                code, got, resumed, complaint = ask_by_client(cluster, jobs[index], leaves)
                if code != 3 or time.monotonic() - began > 60:
                    break
                not_reached.append(number)  # there was no router just then, and nothing had begun
                time.sleep(0.1)
            resumes.append(resumed)
            if code in (130, -signal.SIGINT) and leaves is not None:  # the latter: before it had begun
                assert got[0] == want[index][1][0][:len(got[0])], f"changed: {got[0]}"
                return "cancelled"
            assert code == 0, f"lost: exit {code} after {len(got[0])} tokens: {complaint}"
            assert got == want[index][1], f"changed: {got} instead of {want[index][1]}"
            return "ended"
        crowd = Crowd(count, clients, one, enough=lambda: striker.kills and striker.router_kills)
        striker.run_until(crowd.over)
        crowd.check(cluster)
        cluster.router.wait_bound()
        cluster.connect()
        at_rest(cluster)
        return dict(crowd.outcomes, lost=0, changed=0, pages_left=0, kills=striker.kills, freezes=striker.freezes,
                    router_kills=striker.router_kills, resumed=sum(map(bool, resumes)), asked_again_without_router=len(not_reached))


# --- clients that leave ---


def cancels(count, seed=1, clients=12, round_of=1000):
    """Each leaves at a uniformly random point of its request's life, which is measured on those that stay. After each round all must
    come to rest; one cancel is then watched alone: its pages are free by the end of the running layer and of what is in flight."""
    jobs = kinds(seed)
    want = expected(jobs)
    life_s, lock = [None] * KINDS, threading.Lock()  # by kind, as far as one has been seen to its end
    totals, phases, memory, slowest_s = {}, {}, [], 0.0
    with Cluster(tiny_model(), prefill=1, decode=1, node_args=["--chunk-tokens", "64"]) as cluster:

        def one(number):
            rng = random.Random(seed * 1_000_003 + number)
            index = rng.randrange(KINDS)
            prompt, max_tokens, sampling = jobs[index]
            life = life_s[index]
            stays = life is None or (number % 10 == 0 and rng.random() < 0.5)
            answer, began = Answer(), time.monotonic()
            call = cluster.stream(request(prompt, max_tokens, **dict(sampling)), 120)
            timer = None if stays else threading.Timer(rng.random() * life, call.cancel)
            if timer:
                timer.start()
            try:
                for reply in call:
                    answer.add(reply)
            except grpc.RpcError as error:
                assert not stays and error.code() == grpc.StatusCode.CANCELLED, f"lost: {error.code()}: {error.details()}"
                assert answer.ids == want[index][0][:len(answer.ids)], f"changed: {answer.ids} of {want[index][0]}"
                with lock:
                    phase = "with_tokens" if answer.ids else "before_a_token"
                    phases[phase] = phases.get(phase, 0) + 1
                return "cancelled"
            finally:
                if timer:
                    timer.cancel()
            assert answer.key() == want[index], f"changed: {answer.ids} instead of {want[index][0]}"
            with lock:
                lasted = time.monotonic() - began
                life_s[index] = lasted if life_s[index] is None else life_s[index] + 0.2 * (lasted - life_s[index])
            return "ended"

        left, first = count, 0
        while left > 0:  # until so many have been cancelled: some stay, some end before their time
            begun = first
            crowd = Crowd(min(round_of, left + left // 4 + 8), clients, lambda number: one(begun + number))
            while not crowd.over(60):
                pass
            crowd.check(cluster)
            first += sum(crowd.outcomes.values())
            for outcome, value in crowd.outcomes.items():
                totals[outcome] = totals.get(outcome, 0) + value
            left -= crowd.outcomes.get("cancelled", 0)
            at_rest(cluster)
            memory.append([node.settled_rss_bytes() for node in cluster.nodes()])
            call = cluster.stream(request([7 + first % 1000] * 500, 150, temperature=0, ignore_eos=True), 60)
            time.sleep(random.Random(first).uniform(0, 0.05))
            call.cancel()
            slowest_s = max(slowest_s, until(lambda: not any(map(held, cluster.nodes())), 1, "one cancel's pages are free"))
        for node in cluster.nodes():
            layers = node.metric("baton_cancel_layers_max")
            assert layers <= 1, f"{node.name}: {layers:g} layers ran on after a cancel"
        grown = [now - then for then, now in zip(memory[len(memory) // 10], memory[-1])]
        assert max(grown) < MEMORY_GROWS_BYTES, grown
        return dict(totals, **phases, leaked=0, slowest_free_s=round(slowest_s, 3), grown_kib=max(grown) >> 10)
