"""`baton generate`, `chat` and `drain` against a router made for the purpose: streams that break at a chosen token, servers that
die and come back on the same port, refusals before and after the first token.

    test_stream.py             the tests
    test_stream.py --serve ... that router, as a process of its own, so that it can really be killed
"""
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent import futures

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import grpc
import tap
from cluster import BUILD, SLACK, pb, pb_grpc

BATON = os.path.join(BUILD, "baton")
SEED = 2**64 - 5
WORDS = ["a", "b\u00e4r ", "\U0001f986", "two\n", "x\0y", "\x1b[31m", "", "z "]
IDS = [7 * i for i in range(40)]


def text_of(position):
    return WORDS[position % len(WORDS)]


WHOLE = "".join(text_of(i) for i in range(len(IDS)))


class Generation(pb_grpc.GenerationServicer):
    """Answers with IDS; `die` kills the process before that token, `fail` ends with a status there, `think` waits there."""

    def __init__(self, die, fail, slow, skip, think):
        self.die, self.fail, self.slow, self.skip, self.think = die, fail, slow, skip, think

    def Generate(self, request, context):
        start, whole = 0, []
        # a call that is cancelled while a message is on its way never comes back into this generator
        context.add_callback(lambda: whole or self.fail or print("cancelled", flush=True))
        print("resumed" if request.HasField("resume") else "asked", flush=True)
        if request.HasField("resume"):
            resume = request.resume
            start = len(resume.received.ids)
            sent = "".join(text_of(i) for i in range(start)).encode()
            if (list(resume.received.ids) != IDS[:start] or resume.text_bytes != len(sent) or resume.seed != SEED
                    or resume.index != 0):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"resume: wrong: {resume}")
        if request.text == "what?":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "sampling.temperature: -1 is out of range\n(0 to 2)")
        for position in range(start, len(IDS)):
            if position == self.die:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fail and position == self.fail[0]:
                context.abort(grpc.StatusCode[self.fail[1]], "as asked")
            if self.slow or position == self.think:
                time.sleep(5 if position == self.think else self.slow)
                if not context.is_active():
                    return
            last = position == len(IDS) - 1
            message = pb.GenerateResponse(position=position + (position >= self.skip), text=text_of(position),
                                          token_ids=[IDS[position]])
            if position == start:
                message.seed = SEED
            if last:
                whole.append(True)
                message.finish_reason = pb.GenerateResponse.LENGTH
                message.usage.prompt_tokens = 3
                message.usage.completion_tokens = len(IDS)
                message.timings.ttft_us = 4000
                message.timings.queue_us = 1000
                message.timings.prefill_us = 3000
                message.timings.handoff_us = 500
                message.timings.first_decode_us = 700
                message.timings.total_us = 43000
                message.timings.kv_bytes_moved = 1500000
                message.timings.prefill_node = "p"
                message.timings.decode_node = "d"
            yield message


class Admin(pb_grpc.ClusterServicer):
    drained_at = None

    def GetStatus(self, request, context):
        if self.drained_at and time.monotonic() > self.drained_at + 0.5:
            return pb.ClusterStatus(uptime_s=5)
        return pb.ClusterStatus(uptime_s=5, nodes=[
            pb.NodeStatus(name="d", role="decode", state="draining" if self.drained_at else "serving", transport="tcp",
                          pages_total=10, pages_used=3, incarnation=2**64 - 1, pages_cached=4, sequences_preempted=2,
                          links=[pb.LinkStatus(peer="p", up=True, bytes_per_s=1234567),
                                 pb.LinkStatus(peer="q", up=True, bytes_per_s=25 * 10**9)])], handovers=7)

    def Drain(self, request, context):
        if request.node != "d":
            context.abort(grpc.StatusCode.NOT_FOUND, f"node: {request.node} is not known")
        self.drained_at = time.monotonic()
        return pb.DrainResponse()


def serve(port, die=-1, fail="", slow=0.0, skip=10**6, think=-1):
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[
        ("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 1000)])  # as the router
    fail = (int(fail.split(":")[0]), fail.split(":")[1]) if fail else None
    pb_grpc.add_GenerationServicer_to_server(Generation(int(die), fail, float(slow), int(skip), int(think)), server)
    pb_grpc.add_ClusterServicer_to_server(Admin(), server)
    assert server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("up", flush=True)
    server.wait_for_termination()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Router:
    def __init__(self, port=None, **options):
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        args = [f"{k}={v}" for k, v in options.items()]
        self.child = subprocess.Popen([sys.executable, __file__, "--serve", str(self.port), *args],
                                      stdout=subprocess.PIPE, text=True)
        assert self.child.stdout.readline() == "up\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()


def start(router, *args, **options):
    return subprocess.Popen([BATON, "generate", "-s", router.address, "-p", "x", *args], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def run(router, *args):
    child = start(router, *args)
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err.decode()


def test_text_arrives_byte_for_byte():
    with Router() as router:
        code, out, err = run(router)
        assert (code, out, err) == (0, WHOLE.encode(), ""), (code, out, err)


def test_json_lines_are_the_messages():
    with Router() as router:
        code, out, err = run(router, "--json")
        messages = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and not err and len(messages) == len(IDS)
        assert [m.get("token_ids") for m in messages] == [[i] for i in IDS]
        assert "".join(m.get("text", "") for m in messages) == WHOLE
        assert messages[0]["seed"] == SEED and messages[5]["position"] == 5
        last = messages[-1]
        assert last["finish_reason"] == "LENGTH" and last["usage"]["completion_tokens"] == len(IDS)
        assert last["timings"]["kv_bytes_moved"] == 1500000


def test_stats_add_up():
    with Router() as router:
        code, out, err = run(router, "--stats")
        lines = err.splitlines()
        assert code == 0 and len(lines) == 2, err
        assert lines[0] == ("TTFT 4.0 ms = queue 1.0 + placement 0.0 + prefill 3.0 + send 0.0; "
                            "second token after 1.2 ms = hand-off 0.5 + decode step 0.7"), lines
        assert lines[1] == ("40 tokens, 1000.0 tokens/s after a prompt of 3 (0 cached); "
                            "1.50 MB of KV from p to d over tcp"), lines


def test_a_dead_router_is_survived():
    for k in (1, 2, 7, 39):
        for form in ((), ("--json",)):
            with Router(die=k) as first:
                child = start(first, *form)
                first.child.wait(30)
                time.sleep(0.4)
                with Router(port=first.port):
                    out, err = child.communicate(timeout=60)
            assert child.returncode == 0, (k, err)
            if form:
                ids = [i for line in out.splitlines() for i in json.loads(line).get("token_ids", [])]
                assert ids == IDS, (k, ids)
            else:
                assert out == WHOLE.encode(), (k, out)


def test_two_deaths_are_survived():
    with Router(die=3) as first:
        child = start(first)
        first.child.wait(30)
        with Router(port=first.port, die=11) as second:
            second.child.wait(30)
        with Router(port=first.port):
            out, err = child.communicate(timeout=60)
    assert child.returncode == 0 and out == WHOLE.encode(), (out, err)


def test_a_death_before_the_first_token_asks_again():
    with Router(die=0) as first:
        child = start(first)
        first.child.wait(30)
        with Router(port=first.port):
            out, err = child.communicate(timeout=60)
    assert child.returncode == 0 and out == WHOLE.encode(), (out, err)


def asked_and_reset(listener):
    """The least of a server: takes one connection, reads until a call has begun on it (an HTTP/2 HEADERS frame), and resets it."""
    connection = listener.accept()[0]
    listener.close()
    with connection, connection.makefile("rb") as received:
        connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # SETTINGS, none: without it there is no connection
        assert received.read(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        kind = None
        while kind != 1:
            head = received.read(9)
            kind = head[3]
            received.read(int.from_bytes(head[:3], "big"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_connection_too_short_to_be_seen_was_one():
    """It may be over before the client's loop has looked at the channel: still a server that died, not one that never was."""
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            child = subprocess.Popen([BATON, "generate", "-s", f"127.0.0.1:{port}", "-p", "x", "--resume", "0.3"],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            asked_and_reset(listener)
        out, err = child.communicate(timeout=60)
        assert child.returncode == 5 and b"UNAVAILABLE" in err and not out, (child.returncode, err)


def test_a_router_that_stays_dead_is_exit_5():
    wanted = "".join(text_of(i) for i in range(4)).encode()
    with Router(think=4) as router:
        started = time.monotonic()
        child = start(router, "--deadline", "3")
        out = child.stdout.read(len(wanted))  # it has them all before the router dies
        router.child.kill()
        rest, err = child.communicate(timeout=60)
        code, out, err = child.returncode, out + rest, err.decode()
        assert code == 5 and out == wanted, (code, out, err)
        assert len(err.splitlines()) == 1 and "UNAVAILABLE" in err and time.monotonic() - started < 30, err


def test_a_frozen_router_is_given_up():
    """Nothing breaks its stream: its kernel goes on taking what is sent. Without a deadline the client waits for signs of life."""
    with Router(slow=0.05) as talking, Router(slow=30) as thinking:  # after some tokens, and before the first
        children = [start(router, "--keepalive", "2", "--resume", "3") for router in (talking, thinking)]
        assert children[0].stdout.read(1) == b"a"
        assert thinking.child.stdout.readline() == "asked\n"
        for router in (talking, thinking):
            router.child.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        for child in children:
            out, err = child.communicate(timeout=60)
            seconds = time.monotonic() - frozen
            assert child.returncode == 5 and seconds < (2 * 2 + 3 + 2) * SLACK, (child.returncode, seconds)
            lines = err.decode().splitlines()
            assert len(lines) == 1 and "UNAVAILABLE" in lines[0] and "; tried again for 3 s" in lines[0], lines
            assert ("(after a part of the answer)" in lines[0]) == (child == children[0]), lines


def test_a_router_that_wakes_again_is_resumed():
    with Router(slow=0.05) as router:
        child = start(router, "--keepalive", "2")
        assert child.stdout.read(1) == b"a"
        router.child.send_signal(signal.SIGSTOP)
        time.sleep(5)
        router.child.send_signal(signal.SIGCONT)
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0 and b"a" + out == WHOLE.encode(), (child.returncode, out, err)
        router.child.kill()
        assert "resumed" in router.child.stdout.read().split(), "its stream was kept"


def test_a_router_that_has_nothing_to_say_is_waited_for():
    with Router(think=3) as router:
        code, out, err = run(router, "--keepalive", "2")
        assert code == 0 and out == WHOLE.encode(), (code, out, err)
        router.child.kill()
        assert router.child.stdout.read().split() == ["asked"]


def test_refusals_are_exit_4_and_one_line():
    with Router() as router:
        child = subprocess.run([BATON, "generate", "-s", router.address, "-p", "what?"], capture_output=True, text=True)
        assert child.returncode == 4 and len(child.stderr.splitlines()) == 1, child
        assert "INVALID_ARGUMENT: sampling.temperature" in child.stderr
    for code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "NOT_FOUND", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"):
        with Router(fail=f"0:{code}") as router:
            started = time.monotonic()
            result = run(router)
            assert result[0] == 4 and code in result[2], (code, result)
            assert time.monotonic() - started < 10, "a refusal is believed at once"


def test_a_failure_half_way_is_exit_5():
    with Router(fail="5:INTERNAL") as router:
        code, out, err = run(router)
        assert code == 5 and "INTERNAL: as asked (after a part of the answer)" in err, (code, out, err)


def test_a_gap_is_no_answer():
    with Router(skip=6) as router:
        code, out, err = run(router)
        assert code == 5 and "position 7 where 6 was expected" in err, (code, out, err)


def test_the_deadline_ends_it():
    with Router(slow=0.3) as router:
        started = time.monotonic()
        code, out, err = run(router, "--deadline", "3")  # of which connecting and the first token take a part
        assert code == 5 and "DEADLINE_EXCEEDED" in err and time.monotonic() - started < 20, (code, err)


def test_an_interrupt_cancels():
    with Router(slow=0.1) as router:
        child = start(router)
        assert child.stdout.read(1) == b"a"
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
        assert child.returncode == 130, child.returncode
        assert router.child.stdout.readline() + router.child.stdout.readline() == "asked\ncancelled\n"


def test_an_interrupt_while_resuming():
    with Router(die=2) as router:
        child = start(router)
        router.child.wait(30)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
        assert child.returncode == 130, child.returncode


def on_terminal(*args, feed=()):
    """Runs with a terminal for stdin and stdout; `feed`: (what to wait for after the last typing, what to type)."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(BATON, [BATON, *args])
    seen, since, feed = b"", 0, list(feed)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if feed and feed[0][0] in seen[since:]:
            since = len(seen)
            os.write(fd, feed.pop(0)[1])
        if select.select([fd], [], [], 0.1)[0]:
            try:
                got = os.read(fd, 65536)
            except OSError:
                break
            if not got:
                break
            seen += got
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen


def test_an_answer_cannot_drive_the_terminal():
    with Router() as router:
        code, seen = on_terminal("generate", "-s", router.address, "-p", "x")
        assert code == 0 and b"\x1b[31m" not in seen and b"?[31m" in seen, (code, seen)


def test_chat_keeps_going():
    with Router(slow=0.01) as router:
        prompt = b"\r\n> "
        code, seen = on_terminal("chat", "-s", router.address,
                                 feed=[(b"> ", b"one\n"), (prompt, b"two\n"), (prompt, b"\x03")])
        assert code == 130 and seen.count(b"z ") == 10, (code, seen)
        code, seen = on_terminal("chat", "-s", router.address,
                                 feed=[(b"> ", b"one\n"), (b"two", b"\x03"), (prompt, b"again\n"), (prompt, b"\x04")])
        assert code == 0 and 5 <= seen.count(b"z ") < 10, (code, seen)
        result = subprocess.run([BATON, "chat", "-s", router.address], input="one\n\ntwo\n/reset\nthree", capture_output=True,
                                text=True)
        assert result.returncode == 0 and result.stdout == (WHOLE + "\n") * 3, result


def test_status_and_drain():
    with Router() as router:
        status = json.loads(subprocess.run([BATON, "status", "-s", router.address, "--json"], capture_output=True).stdout)
        assert status["nodes"][0]["incarnation"] == 2**64 - 1 and status["nodes"][0]["pages_used"] == 3
        table = subprocess.run([BATON, "status"], capture_output=True, text=True,
                               env={**os.environ, "BATON_SERVER": router.address}).stdout.splitlines()
        assert table[1].split()[0] == "NODE" and table[2].split()[:5] == ["d", "decode", "serving", "0/0/0", "3/10"], table
        assert table[0].endswith(", 7 handed over by leaving nodes") and "1.2 MB/s to 25 GB/s" in table[2], table
        assert table[2].split()[5:8] == ["4", "2", "tcp"], table
        wrong = subprocess.run([BATON, "drain", "e", "-s", router.address], capture_output=True, text=True)
        assert wrong.returncode == 4 and "NOT_FOUND: node: e is not known" in wrong.stderr, wrong
        started = time.monotonic()
        done = subprocess.run([BATON, "drain", "d", "--wait", "-s", router.address], capture_output=True, text=True)
        assert done.returncode == 0 and time.monotonic() - started >= 0.5, done


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), **dict(a.split("=") for a in sys.argv[3:]))
    else:
        tap.main(globals())
