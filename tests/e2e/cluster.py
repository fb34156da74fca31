"""A whole cluster of real processes on loopback, for the end-to-end tests.

Environment: BATON_BUILD (folder with the programs), BATON_TINY_MODEL and BATON_MODEL_FILE (GGUF files).
Programs are started directly, not through `baton up`, so that a test can kill, freeze and restart each of them by name.
"""
import atexit
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# The child of a fork would restart gRPC's poller, find its descriptors closed, and abort before it becomes our program.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
import grpc  # noqa: E402

os.environ.setdefault("BATON_KV_MEMORY", "128M")  # every node makes its pool real: many start here, and live for seconds

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("BATON_BUILD", os.path.join(ROOT, "build"))
SANITIZED = "ASAN_OPTIONS" in os.environ  # the programs carry sanitizers
SLACK = float(os.environ.get("BATON_TEST_SLACK", "5"))  # bounds named in time are multiplied by this


def _generated():
    """The client code, generated from the committed .proto into a temporary folder."""
    out = tempfile.mkdtemp(prefix="baton-pb-")
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    from grpc_tools import protoc
    source = os.path.join(ROOT, "proto")
    code = protoc.main(["protoc", f"-I{source}", f"--python_out={out}", f"--grpc_python_out={out}",
                        os.path.join(source, "baton/v1/baton.proto"),
                        os.path.join(source, "baton/node/v1/node.proto")])
    assert code == 0, "protoc failed"
    sys.path.insert(0, out)
    from baton.v1 import baton_pb2, baton_pb2_grpc
    return baton_pb2, baton_pb2_grpc


pb, pb_grpc = _generated()


def tiny_model():
    return os.environ["BATON_TINY_MODEL"]


def demo_model():
    path = os.environ.get("BATON_MODEL_FILE")
    if not path:
        from tap import Skip
        raise Skip("BATON_MODEL_FILE is not set")
    return path


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Loopback:
    """Where a process runs: here. netns.Host is another answer."""
    address = data = "127.0.0.1"  # where the test reaches it, and where the others do

    @staticmethod
    def enter():
        """Called in the forked child before it becomes the program."""


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Process:
    def __init__(self, name, program, args, run_dir, host=Loopback):
        self.name, self.program, self.args, self.run_dir, self.host = name, program, args, run_dir, host
        self.child = None
        self.grpc = self.http = self.node_grpc = None

    def _file(self, kind):
        return os.path.join(self.run_dir, f"{self.name}.{kind}")

    def start(self):
        for kind in ("grpc", "http", "node"):
            if os.path.exists(self._file(kind)):
                os.unlink(self._file(kind))
        command = [os.path.join(BUILD, self.program), "--name", self.name,
                   "--grpc", self.grpc or f"{self.host.address}:0", "--http", self.http or f"{self.host.address}:0",
                   "--grpc-file", self._file("grpc"), "--http-file", self._file("http"), *self.args]
        if self.program == "baton-router":
            command += ["--node-grpc", self.node_grpc or f"{self.host.data}:0",
                        "--node-grpc-file", self._file("node")]
        def enter():
            self.host.enter()
            _die_with_parent()

        log = open(self._file("log"), "ab")
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=enter)
        log.close()
        return self

    def wait_bound(self, seconds=30):
        deadline = time.monotonic() + seconds
        kinds = ["grpc", "http"] + (["node"] if self.program == "baton-router" else [])
        for kind in kinds:
            while not os.path.exists(self._file(kind)):
                if self.child.poll() is not None:
                    raise RuntimeError(f"{self.name} exited with {self.child.returncode}: {self.tail()}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.name}: no {kind} address: {self.tail()}")
                time.sleep(0.01)
            with open(self._file(kind)) as file:
                setattr(self, {"node": "node_grpc"}.get(kind, kind), file.read().strip())
        return self

    def tail(self, lines=15):
        try:
            with open(self._file("log"), errors="replace") as file:
                return "".join(file.readlines()[-lines:])
        except OSError:
            return ""

    def signal(self, number):
        self.child.send_signal(number)

    def kill(self):
        """SIGKILL, and reaps at once: an unreaped zombie hides a death from its peers."""
        if self.child and self.child.poll() is None:
            self.child.kill()
        if self.child:
            self.child.wait()

    def terminate(self, seconds=20):
        if self.child and self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.terminate()
            try:
                self.child.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.child.returncode if self.child else None

    def alive(self):
        return self.child is not None and self.child.poll() is None

    def get(self, path):
        try:
            with _direct.open(f"http://{self.http}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        """{'name{labels}': value} as /metrics prints them."""
        status, text = self.get("/metrics")
        assert status == 200, status
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                values[key] = float(value)
        return values

    def metric(self, name, **labels):
        """The sum over all series of `name` that carry these labels."""
        total, found = 0.0, False
        for key, value in self.metrics().items():
            series, _, rest = key.partition("{")
            if series == name and all(f'{k}="{v}"' in rest for k, v in labels.items()):
                total, found = total + value, True
        assert found, f"{self.name} has no metric {name} {labels}"
        return total

    def rss_bytes(self):
        with open(f"/proc/{self.child.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def settled_rss_bytes(self):
        """Once a node's KV pool has been made real (kernels/cpu/prefault.h)."""
        def names():
            tasks = f"/proc/{self.child.pid}/task"
            for task in os.listdir(tasks):
                with contextlib.suppress(OSError), open(f"{tasks}/{task}/comm") as file:
                    yield file.read().strip()

        deadline = time.monotonic() + 120
        while "prefault" in names():
            assert time.monotonic() < deadline, f"{self.name}: its pool is not real yet"
            time.sleep(0.1)
        return self.rss_bytes()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))


class Answer:
    """What a stream delivered, checked on the way: positions follow each other without a gap."""

    def __init__(self):
        self.ids, self.logprobs, self.text = [], [], ""
        self.finish = self.usage = self.timings = self.seed = None
        self.stop_match = ""
        self.error = None
        self.messages = 0

    def add(self, message):
        self.messages += 1
        if message.token_ids:
            assert message.position == len(self.ids), (
                f"position {message.position} where {len(self.ids)} was expected")
        self.ids += list(message.token_ids)
        self.logprobs += [(t.logprob, tuple((x.token_id, x.logprob) for x in t.top))
                          for t in message.logprobs]
        self.text += message.text
        if message.HasField("seed"):
            self.seed = message.seed
        if message.finish_reason:
            assert self.finish is None, "two last messages"
            self.finish = pb.GenerateResponse.FinishReason.Name(message.finish_reason)
            self.stop_match = message.stop_match
            self.usage, self.timings = message.usage, message.timings

    def key(self):
        """All that must be the same bits, however the answer came about."""
        return self.ids, self.logprobs, self.text, self.finish, self.stop_match


def request(prompt, max_tokens=16, **sampling):
    """`prompt`: text, a list of ids, or a list of (role, content)."""
    message = pb.GenerateRequest()
    if isinstance(prompt, str):
        message.text = prompt
    elif prompt and isinstance(prompt[0], tuple):
        for role, content in prompt:
            message.chat.messages.add(role=role, content=content)
    else:
        message.token_ids.ids.extend(prompt)
    if max_tokens is not None:
        message.sampling.max_tokens = max_tokens
    for name in ("stop", "stop_token_ids"):
        if name in sampling:
            getattr(message.sampling, name).extend(sampling.pop(name))
    for name, value in sampling.items():
        setattr(message.sampling, name, value)
    return message


class Cluster:
    def __init__(self, model, prefill=0, decode=0, mixed=0, node_args=(), router_args=(), args_of=None, host_of=None):
        """`args_of`: {process name: extra arguments}; `host_of`: {process name: netns.Host}."""
        self.run_dir = tempfile.mkdtemp(prefix="baton-e2e-")
        self.model = model
        self.processes = {}
        self.host_of = host_of or {}
        args_of = args_of or {}
        self.router = self._add("router", "baton-router",
                                ["--model", model, *router_args, *args_of.get("router", ())])
        self.router.start().wait_bound()
        for role, program, count in (("prefill", "baton-prefill", prefill),
                                     ("decode", "baton-decode", decode),
                                     ("mixed", "baton-decode", mixed)):
            for i in range(count):
                name = f"{role}-{i}"
                args = ["--model", model, "--router", self.router.node_grpc, *node_args,
                        *args_of.get(name, ())]
                if "--backend" not in args:
                    args += ["--backend", os.environ.get("BATON_TEST_BACKEND", "cpu")]
                if role == "mixed":
                    args += ["--role", "mixed"]
                if name in self.host_of:
                    args += ["--kv-interface", "data0", "--kv-host", self.host_of[name].data]
                self._add(name, program, args).start()
        self.channel = self.stub = self.admin = None

    def _add(self, name, program, args):
        process = Process(name, program, args, self.run_dir, self.host_of.get(name, Loopback))
        self.processes[name] = process
        setattr(self, name.replace("-", "_"), process)
        return process

    def __enter__(self):
        try:
            for process in self.processes.values():
                process.wait_bound()
            self.connect()
            self.wait_serving()
        except BaseException:
            self.close()
            raise
        return self

    def connect(self):
        if self.channel:
            self.channel.close()
        self.channel = grpc.insecure_channel(self.router.grpc, options=[
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 300), ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0)])
        self.stub = pb_grpc.GenerationStub(self.channel)
        self.admin = pb_grpc.ClusterStub(self.channel)

    def wait_serving(self, nodes=None, seconds=60):
        """Until the named nodes (all by default) are serving and the service's health says so."""
        want = set(nodes or (n for n in self.processes if n != "router"))
        deadline = time.monotonic() + seconds
        states = {}
        while time.monotonic() < deadline:
            for name in want:
                if self.processes[name].child.poll() is not None:
                    raise RuntimeError(f"{name} exited: {self.processes[name].tail()}")
            try:
                status = self.admin.GetStatus(pb.GetStatusRequest(), timeout=5)
                states = {n.name: n.state for n in status.nodes}
                if all(states.get(n) == "serving" for n in want) and self.router.get("/readyz")[0] == 200:
                    return
            except grpc.RpcError:
                pass
            time.sleep(0.02)
        raise TimeoutError(f"not serving: {states}; " + "".join(
            f"\n[{n}] {p.tail()}" for n, p in self.processes.items()))

    def wait_met(self, seconds=60):
        """Until each prefill node and each decode node say that they have met."""
        logs = {n: p for n, p in self.processes.items() if n.startswith(("prefill", "decode"))}
        pairs = {(a, b) for a in logs for b in logs if a[:6] != b[:6]}
        deadline = time.monotonic() + seconds
        while pairs:
            assert time.monotonic() < deadline, f"have not met: {pairs}" + self.logs()
            pairs = {(a, b) for a, b in pairs if f"met {b}: " not in logs[a].tail(1000)}
            time.sleep(0.02)

    def stream(self, message, timeout=60, tenant=None):
        return self.stub.Generate(message, timeout=timeout,
                                  metadata=[("authorization", tenant)] if tenant else None)

    def generate(self, prompt, max_tokens=16, timeout=60, expect_error=False, tenant=None, **sampling):
        """Runs one request to its end. With `expect_error`, a failing stream leaves its code in .error. `tenant`: the
        credentials that it comes with."""
        message = prompt if isinstance(prompt, pb.GenerateRequest) else request(
            prompt, max_tokens, **sampling)
        answer = Answer()
        try:
            for reply in self.stream(message, timeout, tenant):
                answer.add(reply)
        except grpc.RpcError as error:
            if not expect_error:
                raise RuntimeError(f"{error.code()}: {error.details()}" + self.logs()) from error
            answer.error = error
        else:
            assert answer.finish, "the stream ended without a last message"
            assert answer.usage.completion_tokens == len(answer.ids), (answer.usage, len(answer.ids))
        return answer

    def logs(self):
        return "".join(f"\n[{n}] {p.tail(6)}" for n, p in self.processes.items())

    def nodes(self):
        return [p for n, p in self.processes.items() if n != "router"]

    def settled(self, seconds=10):
        """Waits until no node holds a page of any request; returns what is left (0: all free)."""
        deadline = time.monotonic() + seconds * SLACK
        left = None
        while time.monotonic() < deadline:
            left = {(p.name, s): p.metric("baton_kv_pages", state=s)
                    for p in self.nodes() if p.alive() for s in ("used", "reserved", "quarantined")}
            left = {k: v for k, v in left.items() if v}
            if not left:
                return {}
            time.sleep(0.05)
        return left

    def close(self):
        if self.channel:
            self.channel.close()
        for process in reversed(list(self.processes.values())):
            if SANITIZED:
                process.terminate()  # an orderly end, at which the leak checker looks
            process.kill()
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def __exit__(self, kind, value, trace):
        if kind is not None and not os.environ.get("BATON_QUIET"):
            for name, process in self.processes.items():
                if not process.alive():
                    print(f"# [{name}] has ended with {process.child.returncode}")
                    print("".join(f"# [{name}] {l}\n" for l in process.tail(60).splitlines()), end="")
                for line in process.tail(12).splitlines():
                    print(f"# [{name}] {line}")
        self.close()
