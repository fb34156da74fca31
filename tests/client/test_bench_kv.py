"""`baton bench kv`: two ends here, two ends that find each other by an address, and what it refuses. Figures are printed, not judged."""
import json
import os
import signal
import socket
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import tap  # noqa: E402

BATON = os.path.join(os.environ.get("BATON_BUILD", os.path.join(ROOT, "build")), "baton")
SMALL = ["--total", "16M", "--runs", "1", "--size", "64K,256K", "--wait"]


def run(*args, seconds=120):
    return subprocess.run([BATON, "bench", "kv", *args], capture_output=True, text=True, timeout=seconds)


def rows_of(done):
    assert done.returncode == 0, (done.returncode, done.stderr)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["piece_bytes"] for row in rows] == [65536, 262144], rows
    for row in rows:
        assert row["bytes_per_s"] > 1e6 and row["total_bytes"] == 16 << 20, row
        assert row["bare_ucx_bytes_per_s"] > 1e6 and row["share"] > 0, row
    print("# " + "; ".join(f"{r['piece_bytes']}: {r['bytes_per_s'] / 1e9:.2f} GB/s, bare UCX {r['bare_ucx_bytes_per_s'] / 1e9:.2f}"
                           for r in rows))
    return rows


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_ends_here():
    rows_of(run(*SMALL, "--json"))


def test_over_shared_memory():
    assert rows_of(run(*SMALL, "--json", "--transport", "shm"))[0]["transport"] == "shm"


def test_the_table():
    done = run("--total", "16M", "--runs", "1", "--size", "256K", "--wait")
    assert done.returncode == 0, done.stderr
    head, row = done.stdout.splitlines()
    assert "hand-off" in head and "bare UCX" in head and "share" in head, head
    assert row.startswith("256K") and row.endswith("%") and row.count("GB/s") == 2, row


def test_two_ends_that_find_each_other():
    port = free_port()
    giver = subprocess.Popen([BATON, "bench", "kv", "--listen", f"127.0.0.1:{port}"], stderr=subprocess.PIPE, text=True)
    try:
        assert "waiting on" in giver.stderr.readline()
        rows_of(run(f"127.0.0.1:{port}", *SMALL, "--json"))
        with socket.create_connection(("127.0.0.1", port)) as stranger:  # says nothing of use, and goes
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\0" * 64)
        rows_of(run(f"127.0.0.1:{port}", *SMALL, "--json"))
        assert giver.poll() is None
    finally:
        giver.send_signal(signal.SIGTERM)
        giver.wait(10)


def test_nobody_there():
    done = run(f"127.0.0.1:{free_port()}", *SMALL)
    assert done.returncode == 3, done
    assert "--listen" in done.stderr, done.stderr


def test_what_it_refuses():
    for args, word in ((["--size", "12"], "--size"), (["--size", "many"], "--size"), (["--runs", "0"], "--runs"),
                       (["--listen", "127.0.0.1:1", "127.0.0.1:2"], "--listen"), (["--transport", "pigeon"], "--transport")):
        done = run(*args)
        assert done.returncode == 2 and word in done.stderr, (args, done)
    if not os.path.exists("/sys/class/infiniband"):
        done = run("--transport", "rdma", *SMALL)
        assert done.returncode == 1 and "no RDMA device" in done.stderr, done
    for args in (["bench"], ["bench", "load"], ["bench", "nothing"]):
        done = subprocess.run([BATON, *args], capture_output=True, text=True)
        assert done.returncode == 2, (args, done)
    assert "baton bench kv --listen" in run("--help").stdout


if __name__ == "__main__":
    tap.main(globals())
