"""What carries KV: chosen, required and refused; bound to the interface that was named; over shared memory between processes, and
over RDMA where the kernel can pretend to have it."""
import os
import random
import shutil
import subprocess

import tap
from cluster import BUILD, Cluster, pb, tiny_model
import netns

JOBS = [([random.Random(length).randrange(20, 49000) for _ in range(length)], dict(temperature=0.9, seed=length, logprobs=1))
        for length in (7, 200, 500)]
_expected = []
_lo = []


def lo_up():
    """Inside a namespace of our own nothing is up yet, and /sys still shows the devices of the one outside."""
    if not _lo and os.environ.get(netns.REASON) == "":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        netns._call("mount", b"none", b"/sys", b"sysfs", 0, None)
        _lo.append(True)


def expected():
    if not _expected:
        with Cluster(tiny_model(), mixed=1) as cluster:
            _expected.extend(cluster.generate(p, 24, **s).key() for p, s in JOBS)
    return _expected


def log_of(process):
    with open(process._file("log"), errors="replace") as file:
        return file.read()


def serves(words, *args):
    """A cluster with these arguments hands over, exactly, and says so in these words."""
    lo_up()
    want = expected()
    with Cluster(tiny_model(), prefill=1, decode=1, node_args=args) as cluster:
        for (prompt, sampling), key in zip(JOBS, want):
            answer = cluster.generate(prompt, 24, **sampling)
            assert answer.key() == key
        assert answer.timings.kv_bytes_moved > 0
        for process in cluster.nodes():
            assert f"KV over {words}\n" in log_of(process), process.tail()
        assert not cluster.settled()
        yield cluster


def listening(process):
    """{(address, port)} of the process's listening TCP sockets."""
    mine = set()
    for fd in os.listdir(f"/proc/{process.child.pid}/fd"):
        try:
            mine.add(os.readlink(f"/proc/{process.child.pid}/fd/{fd}"))
        except OSError:
            pass
    found = set()
    with open(f"/proc/{process.child.pid}/net/tcp") as table:
        for line in list(table)[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                address, port = fields[1].split(":")
                octets = bytes.fromhex(address)[::-1]
                found.add((".".join(str(b) for b in octets), int(port, 16)))
    return found


def refused(*args):
    """What a node says that cannot start like this."""
    lo_up()
    ended = subprocess.run([os.path.join(BUILD, "baton-decode"), "--model", tiny_model(), "--grpc", "127.0.0.1:0",
                            "--http", "127.0.0.1:0", "--router", "127.0.0.1:1", *args],
                           capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended
    return ended.stderr.strip().splitlines()[-1]


def test_auto_warns_once():
    for cluster in serves("tcp/lo"):
        for process in cluster.nodes():
            assert log_of(process).count("transport: auto chose tcp/lo: the loopback has no RDMA") == 1, process.tail()
            # HTTP and UCX (gRPC listens by IPv6): nothing on another interface
            assert {address for address, _ in listening(process)} == {"127.0.0.1"}, listening(process)
            assert len(listening(process)) == 2, listening(process)


def test_tcp():
    for cluster in serves("tcp/lo", "--transport", "tcp"):
        assert "warn" not in log_of(cluster.decode_0)


def test_shared_memory():
    for cluster in serves("shm/memory", "--transport", "shm"):
        for process in cluster.nodes():
            assert len(listening(process)) == 1, listening(process)  # no listener for KV at all
        first = cluster.admin.GetStatus(pb.GetStatusRequest(), timeout=5)
        assert len(first.nodes) == 2


def test_shared_memory_after_a_death():
    lo_up()
    want = expected()
    with Cluster(tiny_model(), prefill=1, decode=2, node_args=["--transport", "shm"]) as cluster:
        cluster.decode_0.kill()
        for (prompt, sampling), key in zip(JOBS, want):
            assert cluster.generate(prompt, 24, **sampling).key() == key
        cluster.decode_0.start().wait_bound()
        cluster.wait_serving()
        for (prompt, sampling), key in zip(JOBS, want):
            assert cluster.generate(prompt, 24, **sampling).key() == key


def test_what_is_required_and_absent():
    if not os.path.exists("/sys/class/infiniband"):
        assert refused("--transport", "rdma") == (
            "baton-decode: transport: rdma is required, but no RDMA device on this host (/sys/class/infiniband)")
    assert refused("--kv-interface", "nosuch0") == 'baton-decode: kv_interface: no network device "nosuch0"'


def own_network():
    if os.environ.get(netns.REASON):
        raise tap.Skip(os.environ[netns.REASON])
    lo_up()
    if not os.path.exists("/sys/class/net/kv0"):
        subprocess.run(["ip", "link", "add", "kv0", "type", "veth", "peer", "name", "kv1"], check=True)
        assert refused("--transport", "tcp", "--kv-interface", "kv0") == (
            'baton-decode: kv_interface: network device "kv0" is down')
        subprocess.run(["ip", "link", "set", "kv0", "up"], check=True)
        subprocess.run(["ip", "link", "set", "kv1", "up"], check=True)
        subprocess.run(["ip", "-6", "address", "flush", "dev", "kv0"], check=True)
        assert refused("--transport", "tcp", "--kv-interface", "kv0") == (
            'baton-decode: kv_interface: network device "kv0" has no address')
        subprocess.run(["ip", "address", "add", "10.77.0.1/24", "dev", "kv0"], check=True)


def test_the_interface_that_was_named_and_no_other():
    own_network()
    for cluster in serves("tcp/kv0", "--kv-interface", "kv0", "--kv-host", "10.77.0.1"):
        for process in cluster.nodes():
            assert log_of(process).count("transport: auto chose tcp/kv0: no RDMA device") == 1, process.tail()
            others = {a for a, _ in listening(process)} - {"127.0.0.1"}
            assert others == {"10.77.0.1"}, listening(process)
            assert len(listening(process)) == 2


def test_rdma_over_a_software_device():
    """rdma_rxe gives any network device the RDMA verbs, where the kernel has it."""
    own_network()
    if not shutil.which("rdma"):
        raise tap.Skip("the program rdma (iproute2) is not installed")
    made = subprocess.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "kv0"], capture_output=True, text=True)
    if made.returncode != 0:
        reason = (made.stderr.strip() or "refused").splitlines()[-1]
        raise tap.Skip(f"the kernel offers no rdma_rxe here (rdma link add: {reason})")
    try:
        for cluster in serves("rdma/rxe0:1", "--transport", "rdma", "--kv-interface", "rxe0:1", "--kv-host", "10.77.0.1"):
            assert "warn" not in log_of(cluster.decode_0)
    finally:
        subprocess.run(["rdma", "link", "delete", "rxe0"], check=False)


if __name__ == "__main__":
    netns.inside()
    tap.main(globals())
