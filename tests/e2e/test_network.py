"""A network that breaks between three hosts; what is expected of each fault stands in docs/RELIABILITY.md.

While a fault is on, requests run and come. Every answer is compared with an undisturbed mixed node's. Bounds in time are those
of docs/PROTOCOL.md, section 6, times SLACK.
"""
import netns

netns.inside()

import contextlib
import random
import threading
import time

import tap
from cluster import Answer, Cluster, SLACK, grpc, pb, request, tiny_model

DEAD_S, STOP_S, GIVE_UP_S, BACK_S = 2.5, 2.0, 2.0, 5.0
CLIENTS, KINDS = 4, 24


def kinds():
    rng = random.Random(8)
    for i in range(KINDS):
        prompt = [rng.randrange(20, 49000) for _ in range(rng.choice([5, 70, 300, 700]))]
        sampling = dict(temperature=0) if i % 2 else dict(temperature=0.9, seed=i, repetition_penalty=1.1, stop=["qu"])
        yield prompt, rng.choice([1, 30, 150]), dict(sampling, logprobs=1, ignore_eos=True)


JOBS = list(kinds())


class Load:
    """Clients that ask one request after the other until the end; all that goes wrong is kept in words."""

    def __init__(self, site, clients):
        self.site, self.faults, self.ended, self.longest_s = site, [], 0, 0.0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(i,), daemon=True) for i in range(clients)]

    def client(self, number):
        rng = random.Random(number)
        while not self.over.is_set():
            index = rng.randrange(KINDS)
            prompt, tokens, sampling = JOBS[index]
            began, answer, fault = time.monotonic(), Answer(), None
            try:
                for reply in self.site.cluster.stream(request(prompt, tokens, **dict(sampling)), 60):
                    answer.add(reply)
            except (grpc.RpcError, AssertionError) as error:
                fault = f"kind {index} after {len(answer.ids)} tokens: {error!r}"
            else:
                if answer.key() != self.site.want[index]:
                    fault = f"kind {index}: {answer.key()} instead of {self.site.want[index]}"
            with self.lock:
                self.ended += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                if fault:
                    self.faults.append(fault)
            self.over.wait(0.01)

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
            assert self.ended > len(self.threads) or not self.threads, self.ended


class Site:
    """The three hosts and the cluster on them, kept from test to test as long as all goes well."""
    kept = None

    def __init__(self):
        self.world = netns.World("router", "prefill", "decode")
        with Cluster(tiny_model(), mixed=1) as alone:
            self.want = [alone.generate(p, n, 120, **dict(s)).key() for p, n, s in JOBS]
        self.cluster = None

    def start(self, hand_off):
        hosts = self.world.hosts
        if self.cluster:
            self.cluster.close()
        self.cluster, self.hand_off = None, hand_off
        # where the link's rate decides, all of a prompt's pages are to move each time it is asked, not the last alone
        cached = [] if hand_off == "always" else ["--prefix-cache", "off"]
        cluster = Cluster(tiny_model(), prefill=1, decode=1, router_args=["--hand-off", hand_off], node_args=cached, host_of={
            "router": hosts["router"], "prefill-0": hosts["prefill"], "decode-0": hosts["decode"]})
        self.cluster = cluster.__enter__()

    def status(self):
        return {n.name: n for n in self.cluster.admin.GetStatus(pb.GetStatusRequest(), timeout=5).nodes}

    def lives(self):
        return {name: node.incarnation for name, node in self.status().items()}

    def deaths(self):
        return self.cluster.router.metric("baton_node_deaths_total")

    def until(self, done, seconds, what):
        """Waits for it, at most `seconds` times SLACK; returns how long it took."""
        began = time.monotonic()
        while not done():
            assert time.monotonic() - began < seconds * SLACK, what
            time.sleep(0.05)
        return time.monotonic() - began

    def ask(self, index=0):
        """One request of a kind with a long prompt and more than one token; its timings."""
        index = [i for i, (p, n, _) in enumerate(JOBS) if len(p) >= 300 and n > 1][index]
        prompt, tokens, sampling = JOBS[index]
        answer = self.cluster.generate(prompt, tokens, 60, **dict(sampling))
        assert answer.key() == self.want[index], index
        return answer.timings

    def pages_move(self):
        return self.ask().kv_bytes_moved > 0


@contextlib.contextmanager
def site(hand_off="always", clients=CLIENTS):
    """`hand_off`: auto where it is the test's matter that D computes what a link is too slow for."""
    if not Site.kept:
        Site.kept = Site()
    here, began = Site.kept, time.monotonic()
    if not here.cluster or here.hand_off != hand_off:
        here.start(hand_off)
    try:
        here.until(here.pages_move, BACK_S, "no pages move before the fault")
        with Load(here, clients) as load:
            time.sleep(0.3)
            yield here
            here.world.heal()
        left = here.cluster.settled()
        assert not left, left
        assert here.cluster.router.metric("baton_token_mismatches_total") == 0
        print(f"# {load.ended} requests in {time.monotonic() - began:.1f} s, the longest took {load.longest_s:.1f} s")
    except BaseException:
        here.world.heal()
        here.cluster.__exit__(RuntimeError, None, None)  # and shows what its processes said
        here.cluster = None
        raise


def node_is_cut_off(name, directions):
    other = "decode-0" if name == "prefill-0" else "prefill-0"
    with site() as s:
        victim, lives, deaths = s.cluster.processes[name], s.lives(), s.deaths()
        for source, target in directions:
            s.world.rule(source, target, loss=1)
        dead_s = s.until(lambda: s.deaths() > deaths, DEAD_S, "the router did not notice")
        s.until(lambda: not victim.metric("baton_registered"), STOP_S, "the node did not notice")
        held = ("used", "reserved", "quarantined")
        s.until(lambda: not sum(victim.metric("baton_kv_pages", state=x) for x in held), STOP_S, "its pages are held")
        timings = s.ask()
        assert (timings.prefill_node, timings.decode_node) == (other, other) and not timings.kv_bytes_moved, timings
        s.world.heal()
        back_s = s.until(lambda: s.status()[name].state == "serving" and victim.metric("baton_registered"), BACK_S,
                         "the node did not come back")
        s.until(s.pages_move, BACK_S, "no pages move afterwards")
        after = s.lives()
        assert after[name] != lives[name] and after[other] == lives[other], (lives, after)
        print(f"# {name}: dead after {dead_s:.1f} s, back {back_s:.1f} s after the cure")


def pair_is_cut(directions):
    with site() as s:
        lives, deaths = s.lives(), s.deaths()
        for source, target in directions:
            s.world.rule(source, target, loss=1)
        apart_s = s.until(lambda: not s.ask().kv_bytes_moved, GIVE_UP_S + 2, "transfers are still tried")
        timings = s.ask(1)
        assert timings.prefill_node == timings.decode_node and not timings.replays, timings
        s.world.heal()
        back_s = s.until(s.pages_move, BACK_S + 10, "no pages move afterwards")
        assert s.lives() == lives and s.deaths() == deaths
        print(f"# on one node after {apart_s:.1f} s, pages move {back_s:.1f} s after the cure")


def both(a, b):
    return (a, b), (b, a)


def test_router_and_prefill_cut():
    node_is_cut_off("prefill-0", both("router", "prefill"))


def test_router_and_decode_cut():
    node_is_cut_off("decode-0", both("router", "decode"))


def test_prefill_and_decode_cut():
    pair_is_cut(both("prefill", "decode"))


def test_router_to_prefill_lost():
    node_is_cut_off("prefill-0", [("router", "prefill")])


def test_prefill_to_router_lost():
    node_is_cut_off("prefill-0", [("prefill", "router")])


def test_router_to_decode_lost():
    node_is_cut_off("decode-0", [("router", "decode")])


def test_decode_to_router_lost():
    node_is_cut_off("decode-0", [("decode", "router")])


def test_prefill_to_decode_lost():
    pair_is_cut([("prefill", "decode")])


def test_decode_to_prefill_lost():
    pair_is_cut([("decode", "prefill")])


@contextlib.contextmanager
def only_bad(**how):
    """A network that is only bad: nobody dies, nothing is placed again."""
    with site(**how) as s:
        lives, deaths, replays = s.lives(), s.deaths(), s.cluster.router.metric("baton_replays_total")
        yield s
        assert s.lives() == lives and s.deaths() == deaths
        assert s.cluster.router.metric("baton_replays_total") == replays


def asked_for(s, seconds):
    """Timings of what was asked in so many seconds, two requests at least."""
    ends, timings = time.monotonic() + seconds, []
    while time.monotonic() < ends or len(timings) < 2:
        timings.append(s.ask(len(timings) % 2))
    return timings


def test_delay_200_ms():
    with only_bad() as s:
        for a, b in (("router", "prefill"), ("router", "decode"), ("prefill", "decode")):
            s.world.both(a, b, delay_s=0.2)
        time.sleep(0.5)  # what was under way before does not count
        first_s = [t.ttft_us / 1e6 for t in asked_for(s, 3)]
        assert min(first_s) >= 0.4, first_s
        print(f"# first tokens after {min(first_s):.3f} to {max(first_s):.3f} s")


def test_mtu_1280():
    with only_bad() as s:
        s.world.mtu(1280)
        timings = asked_for(s, 3)
        assert all(t.kv_bytes_moved for t in timings), timings


def test_10_mbit():
    with only_bad(hand_off="auto", clients=0) as s:
        s.world.both("prefill", "decode", bytes_per_s=1250000)
        s.until(lambda: not s.ask().kv_bytes_moved, 5, "the transfers go on")
        timings = asked_for(s, 3)
        local = [t for t in timings if (t.prefill_node, t.decode_node) == ("decode-0", "decode-0")]
        assert len(local) > 0.5 * len(timings), timings  # all of them, on a machine that has time
        print(f"# {len(local)} of {len(timings)} computed by D")


if __name__ == "__main__":
    tap.main(globals())
