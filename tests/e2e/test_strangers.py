"""Strangers: whoever connects to any port on which a prefill or decode node listens, and sends what he likes, changes nothing. Answers
stay equal, nobody dies or registers anew, and no descriptor stays behind.

KV's listener takes SYNs only from a peer's address and only while the two connect. So on loopback the strangers come when that is over
(test_on_loopback), or from an address that is nobody's (127.0.0.2), while peers may.
Within that moment a process at a peer's own address can still connect; that is a node's death (kvtransfer/ucx_filter.h)."""
import os
import random
import select
import socket
import threading
import time

import tap
from cluster import SLACK, Cluster, tiny_model

UCX_MAGIC = (0xCAFEBABE12345678).to_bytes(8, "little")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
CONNECTIONS = 10000


def words():
    """What strangers say: (name, bytes)."""
    rng = random.Random(7)
    frame = b"BTKV" + (2).to_bytes(2, "little") + (78).to_bytes(2, "little") + (6).to_bytes(2, "little")
    return [
        ("nothing", b""),
        ("one byte", b"\0"),
        ("garbage", rng.randbytes(65536)),
        ("UCX's magic", UCX_MAGIC),
        ("UCX's magic and five bytes ff", UCX_MAGIC + b"\xff" * 5),
        ("UCX's magic and garbage", UCX_MAGIC + rng.randbytes(4096)),
        ("half a frame", frame),
        ("gRPC's preface", PREFACE),
        ("gRPC's preface and settings", PREFACE + SETTINGS),
        ("gRPC's preface and garbage", PREFACE + rng.randbytes(4096)),
        ("a frame header of 16 MB", PREFACE + SETTINGS + b"\xff\xff\xff\x01\x25\x00\x00\x00\x01"),
        ("half an HTTP request", b"GET /metr"),
        ("an endless header", b"GET / HTTP/1.1\r\nX: " + b"y" * 200000),
        ("NULs", b"\0" * 10000),
    ]


def listening(process):
    """Ports on which the process listens."""
    mine, ports = set(), set()
    for fd in os.listdir(f"/proc/{process.child.pid}/fd"):
        try:
            mine.add(os.readlink(f"/proc/{process.child.pid}/fd/{fd}"))
        except OSError:
            pass
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{process.child.pid}/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                    ports.add(int(fields[1].split(":")[1], 16))
    return sorted(ports)


class Asker:
    """Asks all the while, from before the strangers come until after they have gone, and compares."""

    def __init__(self, cluster, want, jobs):
        self.cluster, self.want, self.jobs = cluster, want, jobs
        self.asked, self.wrong, self.over = 0, [], False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.over:
            index = self.asked % len(self.jobs)
            prompt, sampling = self.jobs[index]
            try:
                if self.cluster.generate(prompt, 16, 60, **sampling).key() != self.want[index]:
                    self.wrong.append(f"request {self.asked} differs")
            except Exception as error:  # whatever it is, a stranger was the cause
                self.wrong.append(f"request {self.asked}: {error}".splitlines()[0])
            self.asked += 1

    def stop(self):
        self.over = True
        self.thread.join()
        assert not self.wrong, self.wrong[:5]
        assert self.asked > 3


JOBS = [([random.Random(length).randrange(20, 49000) for _ in range(length)], dict(temperature=0.9, seed=length, logprobs=1))
        for length in (5, 130, 300, 450)]
_want = []


def want():
    if not _want:
        with Cluster(tiny_model(), mixed=1) as cluster:
            _want.extend(cluster.generate(p, 16, **s).key() for p, s in JOBS)
    return _want


def say(address, data, source=None, wait=0.05):
    """Connects, says it, listens for a moment and goes. True when somebody took the connection."""
    with socket.socket() as stranger:
        stranger.settimeout(wait)
        try:
            if source:
                stranger.bind((source, 0))
            stranger.connect(address)
            if data:
                stranger.sendall(data)
            stranger.recv(4096)
        except socket.timeout:
            try:
                stranger.getpeername()
                return True
            except OSError:
                return False
        except OSError:
            return True  # refused its words, having taken the connection
        return True


def crowd(addresses, count, source=None, at_once=400):
    """So many connections, as many at once as this process may hold; each says a little."""
    rng = random.Random(11)
    pending = []
    for number in range(count):
        stranger = socket.socket()
        stranger.setblocking(False)
        if source:
            stranger.bind((source, 0))
        stranger.connect_ex(addresses[number % len(addresses)])
        pending.append(stranger)
        if len(pending) == at_once or number == count - 1:
            _, ready, _ = select.select([], pending, [], 0.05)
            for one in ready:
                try:
                    one.send(rng.choice((b"", b"x", PREFACE, b"GET / HTTP/1.1\r\n", UCX_MAGIC)))
                except OSError:
                    pass
            for one in pending:
                one.close()
            pending = []


def http_answers(process, seconds=5):
    """A crowd keeps nobody out: a new connection ends the one that has waited longest."""
    began = time.monotonic()
    while True:
        try:
            if process.get("/healthz")[0] == 200:
                return time.monotonic() - began
        except OSError:
            pass
        assert time.monotonic() - began < seconds * SLACK, f"{process.name}: no answer on its HTTP port after {seconds} s"
        time.sleep(0.2)


def nothing_came_of_it(cluster, before):
    """Nobody died or registered anew, nothing stays behind."""
    waited = {process.name: http_answers(process) for process in cluster.nodes()}
    print("# HTTP ports free again after " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in waited.items()))
    for process in cluster.processes.values():
        assert process.alive(), process.tail(30)
        with open(process._file("log"), errors="replace") as log:
            assert log.read().count("registered") == before["registered"][process.name], process.tail(30)
    assert cluster.router.metric("baton_replays_total") == 0
    assert not cluster.settled()
    deadline = time.monotonic() + 10 * SLACK
    while True:
        left = {p.name: p.descriptors() - before["descriptors"][p.name] for p in cluster.nodes()}
        if all(n <= 0 for n in left.values()):
            return
        assert time.monotonic() < deadline, f"descriptors left behind: {left}"
        time.sleep(0.1)


def state(cluster):
    logs = {}
    for process in cluster.processes.values():
        with open(process._file("log"), errors="replace") as log:
            logs[process.name] = log.read().count("registered")
    return {"descriptors": {p.name: p.descriptors() for p in cluster.nodes()}, "registered": logs}


def visit(cluster, address_of, source=None, count=CONNECTIONS):
    """Every word to every port of both nodes, then the crowd. Returns how many words each node's KV port took."""
    addresses = []
    for process in cluster.nodes():
        ports = listening(process)
        assert len(ports) == 3, (process.name, ports)  # gRPC, HTTP, KV
        addresses += [(process.name, address_of(process, port), port) for port in ports]
    known = {int(a.rsplit(":", 1)[1]) for p in cluster.nodes() for a in (p.grpc, p.http)}
    taken = {}
    for name, address, port in addresses:
        for word, data in words():
            took = say(address, data, source)
            if port not in known:
                taken[name] = taken.get(name, 0) + took
    crowd([address for _, address, _ in addresses], count, source)
    assert len(taken) == len(cluster.nodes())
    return taken


def steady(cluster):
    """One round of requests, so that what is opened for good is open; then the moment in which peers may connect passes."""
    for (prompt, sampling), key in zip(JOBS, want()):
        assert cluster.generate(prompt, 16, **sampling).key() == key
    time.sleep(4)


def test_on_loopback():
    with Cluster(tiny_model(), prefill=1, decode=1) as cluster:
        steady(cluster)
        before = state(cluster)
        asker = Asker(cluster, want(), JOBS)
        taken = visit(cluster, lambda process, port: ("127.0.0.1", port))
        asker.stop()
        assert not any(taken.values()), f"KV ports took strangers: {taken}"
        nothing_came_of_it(cluster, before)
        print(f"# {asker.asked} requests meanwhile, all equal")


def test_from_an_address_that_is_nobodys():
    """Also while peers may connect: a third node comes and goes, so the windows are open for 127.0.0.1."""
    with Cluster(tiny_model(), prefill=1, decode=2) as cluster:
        steady(cluster)
        cluster.decode_1.kill()
        time.sleep(0.2)
        cluster.decode_1.start().wait_bound()
        cluster.wait_serving()
        for process in cluster.nodes():
            known = {int(a.rsplit(":", 1)[1]) for a in (process.grpc, process.http)}
            kv = [port for port in listening(process) if port not in known]
            assert len(kv) == 1, (process.name, kv)
            for word, data in words():
                assert not say(("127.0.0.1", kv[0]), data, source="127.0.0.2"), (process.name, word)
            assert process.alive()
        for (prompt, sampling), key in zip(JOBS, want()):
            assert cluster.generate(prompt, 16, **sampling).key() == key
        assert all(p.alive() for p in cluster.nodes())


class Flood:
    """Strangers who come all the while and stay: five times as many as a program's HTTP port has room for."""

    def __init__(self, address):
        self.address, self.came, self.over = address, 0, False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        here = []
        while not self.over:
            stranger = socket.socket()
            stranger.settimeout(1)
            try:
                stranger.connect(self.address)
                stranger.sendall((b"", b"G", b"GET /metr", PREFACE)[self.came % 4])
            except OSError:
                pass
            here.append(stranger)
            self.came += 1
            if len(here) > 320:
                here.pop(0).close()
            time.sleep(0.001)
        for stranger in here:
            stranger.close()

    def stop(self):
        self.over = True
        self.thread.join()


def test_probes_are_answered_during_a_flood():
    """A liveness probe has a second or so, and none of them may be lost: else a flood would have healthy nodes restarted."""
    with Cluster(tiny_model(), mixed=1) as cluster:
        for process in (cluster.mixed_0, cluster.router):
            host, port = process.http.rsplit(":", 1)
            flood = Flood((host, int(port)))
            while flood.came < 400:
                time.sleep(0.01)
            slowest = 0
            for _ in range(30):
                began = time.monotonic()
                assert process.get("/healthz")[0] == 200
                slowest = max(slowest, time.monotonic() - began)
                time.sleep(0.03)
            flood.stop()
            print(f"# {process.name}: {flood.came} strangers, 30 probes, the slowest {1000 * slowest:.0f} ms")
            assert slowest < 1 * SLACK, slowest
        assert cluster.generate(JOBS[0][0], 16, **JOBS[0][1]).key() == want()[0]


def test_without_the_filter_the_magic_kills():
    """So the tests above can fail, and `kv_filter` is what keeps them from it."""
    with Cluster(tiny_model(), mixed=1, node_args=["--kv-filter", "false"]) as cluster:
        known = {int(a.rsplit(":", 1)[1]) for a in (cluster.mixed_0.grpc, cluster.mixed_0.http)}
        port, = (p for p in listening(cluster.mixed_0) if p not in known)
        deadline = time.monotonic() + 5 * SLACK
        while cluster.mixed_0.alive() and time.monotonic() < deadline:
            say(("127.0.0.1", port), UCX_MAGIC + b"\xff" * 5)
        assert not cluster.mixed_0.alive()


if __name__ == "__main__":
    tap.main(globals())
