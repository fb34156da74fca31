"""`baton up` with programs made for the purpose: addresses, restarts, five deaths, stopping, nobody left behind.

    test_up.py                                  the tests
    baton-router|baton-prefill|baton-decode ... a stand-in (this file by another name): binds, writes its files, serves health
"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent import futures

NAME = os.path.basename(sys.argv[0])
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))


def stand_in():
    """Flags as the real programs take them; BEHAVIOUR_<name> (dashes as underscores) says how to misbehave."""
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    name = flags["--name"]
    how = os.environ.get("BEHAVIOUR_" + name.replace("-", "_"), "")
    print(f"{name} starts with {' '.join(sys.argv[1:])}", flush=True)
    if how.startswith("exit"):
        print(f"{NAME}: model.gguf: nothing but trouble\n", flush=True)
        sys.exit(int(how[4:]))
    if how == "crash":
        print(f"{NAME}: about to crash", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "slow":
        time.sleep(3)
    stop = []
    signal.signal(signal.SIGTERM, (lambda *_: None) if how == "deaf" else (lambda *_: stop.append(1)))
    listeners = []
    for flag in ("--grpc", "--http", "--node-grpc"):
        if flag not in flags or (flag == "--grpc" and NAME == "baton-router"):
            continue
        host, port = flags[flag].rsplit(":", 1)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen()
        listeners.append(listener)
        publish(flags[flag + "-file"], f"{host}:{listener.getsockname()[1]}")
    if NAME == "baton-router":
        serve_router(flags)
    else:
        # what a node does at its router: it is known there while it lives
        with open(os.path.join(os.path.dirname(flags["--grpc-file"]), name + ".registered"), "w") as file:
            file.write(flags["--router"])
    while not stop:
        time.sleep(0.02)
    print(f"{name} stops", flush=True)
    sys.exit(7 if how == "badly" else 0)


def publish(path, text):
    with open(path + ".new", "w") as file:
        file.write(text + "\n")
    os.rename(path + ".new", path)


def serve_router(flags):
    import grpc
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from cluster import pb, pb_grpc
    folder = os.path.dirname(flags["--grpc-file"])

    def nodes():
        return [n.removesuffix(".registered") for n in os.listdir(folder) if n.endswith(".registered")]

    class Health(health.HealthServicer):
        def Check(self, request, context):
            assert request.service == "baton.v1.Generation"
            serving = health_pb2.HealthCheckResponse
            return serving(status=serving.SERVING if nodes() else serving.NOT_SERVING)

    class Admin(pb_grpc.ClusterServicer):
        def GetStatus(self, request, context):
            return pb.ClusterStatus(nodes=[pb.NodeStatus(name=n, state="serving") for n in nodes()])

    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
    pb_grpc.add_ClusterServicer_to_server(Admin(), server)
    host, _ = flags["--grpc"].rsplit(":", 1)
    port = server.add_insecure_port(flags["--grpc"])
    server.start()
    publish(flags["--grpc-file"], f"{host}:{port}")
    serve_router.server = server


if NAME.startswith("baton-"):
    stand_in()

import tap
from cluster import BUILD


class Up:
    """`baton` beside stand-ins, in a folder of its own."""

    def __init__(self, *args, ready=True, behaviour=None, run_dir=None):
        self.folder = tempfile.mkdtemp(prefix="baton-up-")
        self.run_dir = run_dir or os.path.join(self.folder, "deep", "run")
        shutil.copy(os.path.join(BUILD, "baton"), self.folder)
        for program in ("baton-router", "baton-prefill", "baton-decode"):
            path = os.path.join(self.folder, program)
            with open(path, "w") as file:
                # the name of argv[0] decides what this file is
                here = os.path.realpath(__file__)
                file.write(f"#!{sys.executable}\nexec(compile(open({here!r}).read(), {here!r}, 'exec'), "
                           f"{{'__name__': '__main__', '__file__': {here!r}}})\n")
            os.chmod(path, 0o755)
        env = {k: v for k, v in os.environ.items() if not k.startswith("BATON_") or k == "BATON_BUILD"}
        env.update({f"BEHAVIOUR_{k}": v for k, v in (behaviour or {}).items()})
        self.child = subprocess.Popen([os.path.join(self.folder, "baton"), "up", "-m", "m.gguf", "--grpc", "127.0.0.1:0",
                                       "--http", "127.0.0.1:0", "--run-dir", self.run_dir, *args],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.ready = self.child.stdout.readline() if ready else ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.child.stdout.close()
        self.child.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def read(self, name):
        with open(os.path.join(self.run_dir, name)) as file:
            return file.read().strip()

    def pid(self, name):
        return int(self.read(name + ".pid"))

    def wait(self, seconds=60):
        code = self.child.wait(seconds)
        return code, self.child.stderr.read()

    def kill(self, name):
        """Kills a child and waits until it lives again; its new pid."""
        old = self.pid(name)
        os.kill(old, signal.SIGKILL)
        until(lambda: self.pid(name) != old)
        until(lambda: os.path.exists(os.path.join(self.run_dir, name + ".http")))
        return self.pid(name)


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_ready_files_and_stop():
    with Up("--prefill", "1", "--decode", "2", "--", "--threads", "1") as up:
        router = {k: up.read(f"router.{k}") for k in ("grpc", "http", "node-grpc")}
        assert up.ready == f"ready grpc={router['grpc']} http={router['http']}\n", up.ready
        names = ("router", "prefill-0", "decode-0", "decode-1")
        pids = [up.pid(n) for n in names]
        assert all(alive(p) for p in pids)
        for name in names[1:]:
            assert up.read(f"{name}.grpc").startswith("127.0.0.1:") and up.read(f"{name}.http").startswith("127.0.0.1:")
            assert up.read(f"{name}.registered") == router["node-grpc"]
            assert "--threads 1" in up.read(f"{name}.log") and "--model m.gguf" in up.read(f"{name}.log")
        assert "--threads" not in up.read("router.log")
        again = subprocess.run([os.path.join(BUILD, "baton"), "up", "-m", "x", "--run-dir", up.run_dir], capture_output=True,
                               text=True)
        assert again.returncode in (1, 2), again
        up.child.send_signal(signal.SIGTERM)
        code, err = up.wait()
        said = [line for line in err.splitlines() if not line.startswith("baton up: waiting for ")]  # of a slow start
        assert code == 0 and not said, (code, err)
        assert not any(alive(p) for p in pids)
        left = sorted(os.listdir(up.run_dir))
        assert not [n for n in left if n.endswith((".pid", ".grpc", ".http"))] and "router.log" in left, left


def test_run_dir_in_use_is_refused():
    with Up("--mixed", "1") as up:
        with Up("--mixed", "1", ready=False, run_dir=up.run_dir) as other:
            code, err = other.wait()
            assert code == 1 and up.run_dir in err and "in use" in err and len(err.splitlines()) == 1, (code, err)
        assert alive(up.pid("router"))


def test_mixed_nodes_are_decode_programs_with_the_role():
    with Up("--mixed", "2") as up:
        assert "--role mixed" in up.read("mixed-1.log") and not os.path.exists(os.path.join(up.run_dir, "prefill-0.pid"))


def test_the_dead_come_back_where_they_were():
    with Up() as up:
        before = {n: (up.read(f"{n}.http"), up.read(f"{n}.grpc")) for n in ("router", "decode-0")}
        node_grpc = up.read("router.node-grpc")
        for name in ("decode-0", "router"):
            up.kill(name)
            until(lambda: os.path.exists(os.path.join(up.run_dir, f"{name}.grpc")))
            assert (up.read(f"{name}.http"), up.read(f"{name}.grpc")) == before[name]
        assert up.read("router.node-grpc") == node_grpc
        up.child.send_signal(signal.SIGINT)
        code, err = up.wait()
        assert code == 0 and "decode-0: died (killed by signal 9 (Killed)); starting it again" in err, (code, err)


def test_the_dead_are_reaped_at_once():
    with Up() as up:
        pid = up.pid("prefill-0")
        os.kill(pid, signal.SIGKILL)
        until(lambda: not os.path.exists(f"/proc/{pid}"), 2)


def test_five_deaths_end_it():
    with Up() as up:
        for _ in range(4):
            up.kill("decode-0")
        os.kill(up.pid("decode-0"), signal.SIGKILL)
        code, err = up.wait()
        assert code == 5 and "decode-0: died five times in 30 s" in err.splitlines()[-1], (code, err)
        assert "decode-0 starts with" in err.splitlines()[-1], err


def test_a_crash_at_start_is_five_deaths():
    with Up(ready=False, behaviour={"prefill_0": "crash"}) as up:
        code, err = up.wait()
        assert code == 5 and "baton-prefill: about to crash" in err.splitlines()[-1], (code, err)


def test_who_cannot_run_ends_it_with_its_own_word():
    for code in (1, 2):
        for name in ("router", "decode_0"):
            with Up(ready=False, behaviour={name: f"exit{code}"}) as up:
                got, err = up.wait()
                assert got == code and "model.gguf: nothing but trouble" in err and len(err.splitlines()) == 1, (got, err)


def test_stopping_one_that_has_only_just_begun_is_no_fault():
    with Up(ready=False, behaviour={"prefill_0": "slow", "decode_0": "exit1"}) as up:
        code, err = up.wait()
        assert code == 1 and "model.gguf: nothing but trouble" in err and len(err.splitlines()) == 1, (code, err)


def test_nobody_outlives_a_killed_parent():
    with Up() as up:
        pids = [up.pid(n) for n in ("router", "prefill-0", "decode-0")]
        up.child.kill()
        up.child.wait()
        until(lambda: not any(alive(p) for p in pids), 5)


def test_a_second_interrupt_kills_what_is_deaf():
    with Up(behaviour={"decode_0": "deaf"}) as up:
        pids = [up.pid(n) for n in ("router", "prefill-0", "decode-0")]
        up.child.send_signal(signal.SIGINT)
        until(lambda: not alive(pids[0]) and not alive(pids[1]))
        assert alive(pids[2])
        up.child.send_signal(signal.SIGINT)
        code, err = up.wait()
        assert code == 130 and not alive(pids[2]), (code, err)


def test_who_stops_badly_is_named():
    with Up(behaviour={"decode_0": "badly"}) as up:
        up.child.send_signal(signal.SIGTERM)
        code, err = up.wait()
        assert code == 5 and "decode-0: stopped badly (exit 7)" in err, (code, err)


def test_programs_that_are_not_there():
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(BUILD, "baton"), folder)
        result = subprocess.run([os.path.join(folder, "baton"), "up", "-m", "x", "--run-dir", os.path.join(folder, "run")],
                                capture_output=True, text=True)
        assert result.returncode == 1 and f"{folder}/baton-router: cannot be run" in result.stderr, result


if __name__ == "__main__":
    tap.main(globals())
