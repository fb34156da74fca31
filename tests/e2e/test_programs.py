"""The programs as a user starts them: `baton up`, the command line, exit codes, configuration errors."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

import tap
from cluster import BUILD, SLACK, tiny_model

BATON = os.path.join(BUILD, "baton")


def run(*args, stdin=None, timeout=60, env=None):
    return subprocess.run(args, input=stdin, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})})


class Up:
    """A running `baton up` on free ports."""

    def __init__(self, *args, node_options=()):
        self.run_dir = tempfile.mkdtemp(prefix="baton-up-")
        command = [BATON, "up", "-m", tiny_model(), "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0",
                   "--run-dir", self.run_dir, *args]
        if node_options:
            command += ["--", *node_options]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.child.stdout.readline()
        match = re.fullmatch(r"ready grpc=(\S+) http=(\S+)\n", line)
        if not match:
            self.child.kill()
            raise AssertionError(f"{line!r} {self.child.stderr.read()}")
        self.grpc, self.http = match.groups()

    def __enter__(self):
        return self

    def pid(self, name):
        with open(os.path.join(self.run_dir, f"{name}.pid")) as file:
            return int(file.read())

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        return self.child.wait(30 * SLACK)

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                self.child.kill()
        self.child.stdout.close()
        self.child.stderr.close()


def test_up_generate_status_and_stop():
    with Up() as up:
        pids = [up.pid(n) for n in ("router", "prefill-0", "decode-0")]
        result = run(BATON, "generate", "-s", up.grpc, "--token-ids", "30,40,50", "-n", "5",
                     "--temperature", "0", "--json")
        assert result.returncode == 0, result.stderr
        messages = [json.loads(line) for line in result.stdout.splitlines()]
        ids = [i for m in messages for i in m.get("token_ids", [])]
        assert 1 <= len(ids) <= 5
        assert messages[-1]["finish_reason"] in ("LENGTH", "STOP")
        assert messages[-1]["usage"]["prompt_tokens"] == 3
        status = json.loads(run(BATON, "status", "-s", up.grpc, "--json").stdout)
        assert {n["name"] for n in status["nodes"]} == {"prefill-0", "decode-0"}
        table = run(BATON, "status", "-s", up.grpc)
        assert table.returncode == 0 and "decode-0" in table.stdout and "\x1b" not in table.stdout
        again = run(BATON, "up", "-m", tiny_model(), "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0",
                    "--run-dir", up.run_dir)
        assert again.returncode in (1, 2) and up.run_dir in again.stderr
        assert up.stop() == 0
        for pid in pids:
            assert not os.path.exists(f"/proc/{pid}"), "a child outlived baton up"


def test_up_restarts_a_child_that_dies():
    with Up("--mixed", "1") as up:
        first = up.pid("mixed-0")
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 10 * SLACK
        while up.pid("mixed-0") == first:
            assert time.monotonic() < deadline, "not restarted"
            time.sleep(0.05)
        result = run(BATON, "generate", "-s", up.grpc, "--token-ids", "30,40", "-n", "3", "--temperature", "0")
        assert result.returncode == 0, result.stderr
        assert up.stop() == 0


def test_generate_survives_the_router():
    with Up() as up:
        args = [BATON, "generate", "-s", up.grpc, "--token-ids", "30,40,50", "-n", "400", "--temperature", "0",
                "--json"]
        want = run(*args)
        child = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
        first = child.stdout.readline()
        os.kill(up.pid("router"), signal.SIGKILL)
        rest = child.stdout.read()
        assert child.wait(60 * SLACK) == 0
        ids = lambda text: [i for line in text.splitlines() for i in json.loads(line).get("token_ids", [])]
        assert ids(first + rest) == ids(want.stdout)


def test_generate_exit_codes():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(BATON, "generate", "-s", nobody, "-p", "x", "--deadline", "3")
        assert result.returncode == 3, (result.returncode, result.stderr)
    assert run(BATON, "generate", "--frobnicate").returncode == 2
    assert run(BATON, "nonsense").returncode == 2
    assert run(BATON, "--help").returncode == 0
    for program in ("router", "prefill", "decode"):
        result = run(os.path.join(BUILD, f"baton-{program}"), "--help")
        assert result.returncode == 0 and "--grpc" in result.stdout
        assert run(os.path.join(BUILD, f"baton-{program}"), "--version").returncode == 0
        assert run(os.path.join(BUILD, f"baton-{program}"), "--no-such-flag", "1").returncode == 2


def test_refused_request_is_exit_4():
    with Up("--mixed", "1") as up:
        result = run(BATON, "generate", "-s", up.grpc, "--token-ids", "999999")
        assert result.returncode == 4 and "token_ids" in result.stderr, result
        assert len(result.stderr.splitlines()) == 1, result.stderr


def test_broken_configuration():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cluster.yaml")
        for text, words in (("common:\n  pagetokens: 4\n", ["2", "pagetokens"]),
                            ("decode:\n  threads: many\n", ["threads", "many"]),
                            ("common: [1, 2\n", ["yaml"]),
                            ("decode:\n  page_tokens: 64\n  page_tokens: 32\n", ["page_tokens"]),
                            ("\tcommon:", ["cluster.yaml:1"])):
            with open(path, "w") as file:
                file.write(text)
            result = run(os.path.join(BUILD, "baton-decode"), "--config", path, "--check-config")
            assert result.returncode == 2, (text, result)
            for word in words:
                assert word in result.stderr, (word, result.stderr)
            assert len(result.stderr.splitlines()) == 1, result.stderr


def test_unreadable_model_and_port_in_use():
    with tempfile.TemporaryDirectory() as folder, socket.socket() as taken:
        bad = os.path.join(folder, "bad.gguf")
        with open(bad, "wb") as file:
            file.write(b"GGUF\x03\0\0\0" + b"\xff" * 100)
        for path in (bad, os.path.join(folder, "missing.gguf"), folder):
            for program in ("router", "decode"):
                result = run(os.path.join(BUILD, f"baton-{program}"), "--model", path, "--grpc", "127.0.0.1:0",
                             "--http", "127.0.0.1:0",
                             *(["--node-grpc", "127.0.0.1:0"] if program == "router" else ["--router", "127.0.0.1:1"]))
                assert result.returncode == 1 and path in result.stderr, (program, path, result)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--grpc", "--http", "--node-grpc"):
            flags = {"--grpc": "127.0.0.1:0", "--http": "127.0.0.1:0", "--node-grpc": "127.0.0.1:0", flag: address}
            result = run(os.path.join(BUILD, "baton-router"), "--model", tiny_model(),
                         *[x for pair in flags.items() for x in pair])
            assert result.returncode == 1 and address in result.stderr, (flag, result)


def test_inspect():
    result = run(BATON, "inspect", tiny_model())
    assert result.returncode == 0 and "llama" in result.stdout and "49152" in result.stdout
    sizes = {kind: float(size) for size, kind in re.findall(r"([\d.]+) KB in (\w+)", result.stdout)}
    assert set(sizes) == {"f32", "f16", "int8"} and sizes["int8"] < sizes["f16"] < sizes["f32"], result.stdout


def rates(text, row):
    """[(tokens/s, bound)] of a row of the forecast."""
    line = next(line for line in text.splitlines() if line.startswith(row))
    return [(float(rate), bound) for rate, bound in re.findall(r"([\d.]+) (arithmetic|weights|KV)", line)]


def test_inspect_says_what_a_model_will_need_and_reach():
    with tempfile.TemporaryDirectory() as folder:
        peaks = os.path.join(folder, "new", "peaks")
        # round figures in the file's own line: 8 bits 100 GOP/s, 4 bits 200, attention 50, reading 10 GB/s
        run(BATON, "inspect", tiny_model(), "--peaks", peaks, "--threads", "1")
        with open(peaks) as file:
            version, machine = file.read().split("\t")[:2]
        with open(peaks, "w") as file:
            figures = ["100e9"] * 4 + ["200e9"] * 2 + ["50e9"] * 3 + ["10e9"]
            file.write("\t".join([version, machine, "3", *figures]) + "\n")
        result = run(BATON, "inspect", tiny_model(), "--peaks", peaks, "--threads", "1", "--kv-memory", "1M")
        text = result.stdout
        assert result.returncode == 0 and "reading 10.0 GB/s" in text and "measured before" in text, text
        weights = float(re.search(r"memory +weights ([\d.]+) MB", text).group(1))
        (one, bound), *_ = rates(text, "  batch of 1 ")
        assert bound == "weights" and 0.9 < one / (10e3 / weights) <= 1.0, text
        (many, bound), *_ = rates(text, "  batch of 64")
        assert bound == "arithmetic" and one < many < 64 * one, text
        prefill = rates(text, "  a prompt")
        assert all(bound == "arithmetic" for _, bound in prefill) and prefill[0] > prefill[-1], text
        kilobytes = float(re.search(r"KV ([\d.]+) KB a token in f16: (\d+) tokens in a pool", text).group(1))
        assert abs(float(re.search(r"(\d+) tokens in a pool", text).group(1)) * kilobytes / 1048.576 - 1) < 0.1, text
        half = run(BATON, "inspect", tiny_model(), "--peaks", peaks, "--threads", "1", "--kv-type", "int8").stdout
        assert float(re.search(r"KV ([\d.]+) KB a token in int8", half).group(1)) < 0.7 * kilobytes
        assert "this machine" not in run(BATON, "inspect", tiny_model(), "--peaks", "off").stdout
        refused = run(BATON, "inspect", tiny_model(), "--isa", "x")
        assert refused.returncode == 2 and not refused.stdout and "isa" in refused.stderr, refused


def test_fp8_kv_is_refused():
    for program in ("baton-prefill", "baton-decode"):
        result = run(os.path.join(BUILD, program), "-m", tiny_model(), "--kv-type", "fp8")
        assert result.returncode == 2 and '--kv-type: "fp8" is not built yet' in result.stderr, result


if __name__ == "__main__":
    tap.main(globals())
