#!/usr/bin/env python3
"""Python's grpcio, its health and its reflection packages against rpc_echo_server (see echo_service.h): real clients of
proto/rpc, with stubs generated from this repository's .proto files.

usage: test_clients.py RPC_ECHO_SERVER [TEST...]

Needs a Python with tests/requirements.txt: this one, or the one that BATON_PYTHON names; else everything is skipped."""
import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

try:
    import grpc
except ImportError:
    other = os.environ.get("BATON_PYTHON")
    if not other or os.environ.get("BATON_PYTHON_TRIED"):
        print("1..1\nok 1 - clients # SKIP no grpcio here, and BATON_PYTHON names no Python with it")
        sys.exit(0)
    os.environ["BATON_PYTHON_TRIED"] = "1"
    os.execv(other, [other] + sys.argv)

sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import tap  # noqa: E402

from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # noqa: E402
    ProtoReflectionDescriptorDatabase)
from grpc_tools import protoc  # noqa: E402

SERVER = sys.argv.pop(1)


def stubs():
    folder = tempfile.mkdtemp(prefix="baton-stubs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    proto = os.path.join(ROOT, "proto")
    code = protoc.main(["", f"-I{proto}", f"--python_out={folder}", f"--grpc_python_out={folder}",
                        f"{proto}/baton/v1/baton.proto"])
    assert code == 0
    sys.path.insert(0, folder)
    from baton.v1 import baton_pb2, baton_pb2_grpc
    return baton_pb2, baton_pb2_grpc


pb, pb_grpc = stubs()


class Echo:
    """A running rpc_echo_server; the exit code must be 0: every call that was opened was closed."""

    def __enter__(self):
        self.process = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.target = f"127.0.0.1:{int(self.process.stdout.readline())}"
        self.channel = grpc.insecure_channel(self.target)
        self.generation = pb_grpc.GenerationStub(self.channel)
        return self

    def say(self, text):
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def __exit__(self, *failure):
        self.channel.close()
        if failure[0]:
            self.process.kill()
            self.process.wait()
            return False
        out, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, (self.process.returncode, out)
        return False


def code_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_unary():
    with Echo() as echo:
        assert list(echo.generation.Tokenize(pb.TokenizeRequest(text="héllo")).ids) == list(
            "héllo".encode())
        assert list(echo.generation.Tokenize(pb.TokenizeRequest()).ids) == []
        assert echo.generation.Detokenize(pb.DetokenizeRequest(ids=b"a\0b")).text == "a\0b"
        value = "x" * 4000
        ids = echo.generation.Tokenize(pb.TokenizeRequest(text="metadata"),
                                       metadata=[("x-test", value)]).ids
        assert bytes(ids).decode() == value


def test_status_details_and_trailers():
    with Echo() as echo:
        try:
            echo.generation.Tokenize(pb.TokenizeRequest(text="fail"))
            raise AssertionError("did not fail")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == 'text: "fail" fails, 100 %'
            assert ("grpc-retry-pushback-ms", "5") in [tuple(m) for m in error.trailing_metadata()]


def test_stream():
    with Echo() as echo:
        request = pb.GenerateRequest(text="é", sampling=pb.SamplingParams(max_tokens=5000))
        responses = list(echo.generation.Generate(request))
        assert [r.position for r in responses] == list(range(5000))
        assert all(r.text == "é" for r in responses)
        assert responses[-1].finish_reason == pb.GenerateResponse.LENGTH
        assert all(not r.finish_reason for r in responses[:-1])


def test_unknown_methods():
    with Echo() as echo:
        for path in ("/baton.v1.Generation/ListModels", "/no.Such/Method", "/x"):
            call = echo.channel.unary_unary(path)
            assert code_of(lambda: call(b"", timeout=5)) == grpc.StatusCode.UNIMPLEMENTED, path


def test_malformed_requests():
    with Echo() as echo:
        call = echo.channel.unary_unary("/baton.v1.Generation/Tokenize")
        for data, field in ((b"\x12\x02\xff\xfe", "text: invalid UTF-8 at byte 0"),
                            (b"\x12\x03a\0b", "text: NUL character at byte 1"),
                            (b"\x12\x09a", "text: the value ends past the end of the message")):
            try:
                call(data, timeout=5)
                raise AssertionError("accepted")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert error.details() == field, error.details()


def test_deadline_and_cancel():
    with Echo() as echo:
        hang = pb.TokenizeRequest(text="hang")
        started = time.monotonic()
        assert code_of(lambda: echo.generation.Tokenize(
            hang, timeout=0.2)) == grpc.StatusCode.DEADLINE_EXCEEDED
        assert 0.19 < time.monotonic() - started < 5
        left_ms = echo.generation.Tokenize(pb.TokenizeRequest(text="deadline"), timeout=3).ids[0]
        assert 1000 < left_ms <= 3100, left_ms
        stream = echo.generation.Generate(pb.GenerateRequest(text="x"))
        for _ in range(100):
            next(stream)
        stream.cancel()
        assert code_of(lambda: list(stream)) == grpc.StatusCode.CANCELLED


def test_slow_client_gets_everything():
    with Echo() as echo:
        request = pb.GenerateRequest(text="t" * 1000, sampling=pb.SamplingParams(max_tokens=2000))
        position = 0
        for response in echo.generation.Generate(request):
            assert response.position == position
            position += 1
            if position % 500 == 0:
                time.sleep(0.2)
        assert position == 2000


def test_bidirectional():
    with Echo() as echo:
        connect = echo.channel.stream_stream("/baton.node.v1.Registry/Connect")
        sent = [bytes([i]) * i * 100 for i in range(100)]
        assert list(connect(iter(sent), timeout=20)) == sent
        assert list(connect(iter([]), timeout=20)) == []


def test_compressed_messages_are_refused():
    with Echo() as echo:
        request = pb.TokenizeRequest(text="a" * 100000)
        assert code_of(lambda: echo.generation.Tokenize(
            request, compression=grpc.Compression.Gzip, timeout=5)) == grpc.StatusCode.UNIMPLEMENTED
        assert len(echo.generation.Tokenize(request).ids) == 100000


def test_oversized_message():
    with Echo() as echo:
        request = pb.TokenizeRequest(text="a" * (5 << 20))
        assert code_of(lambda: echo.generation.Tokenize(
            request, timeout=10)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(echo.generation.Tokenize(pb.TokenizeRequest(text="a")).ids) == 1


def test_client_killed_in_mid_stream():
    with Echo() as echo:
        child = subprocess.Popen([sys.executable, "-c", f"""
import sys
sys.path[:0] = {sys.path!r}
import grpc
from baton.v1 import baton_pb2 as pb, baton_pb2_grpc as pb_grpc
stub = pb_grpc.GenerationStub(grpc.insecure_channel({echo.target!r}))
for response in stub.Generate(pb.GenerateRequest(text="x")):
    if response.position == 100:
        print("streaming", flush=True)
"""], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "streaming\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    # Echo's end drains, which waits for open calls: it would hang if the dead client's were still there


def test_health():
    with Echo() as echo:
        health = health_pb2_grpc.HealthStub(echo.channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        for name in ("", "baton.v1.Generation"):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == serving
        assert code_of(lambda: health.Check(health_pb2.HealthCheckRequest(
            service="nobody"))) == grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service="baton.v1.Generation"))
        assert next(watch).status == serving
        echo.say("0")
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        echo.say("1")
        assert next(watch).status == serving
        watch.cancel()


def test_reflection_v1alpha():
    with Echo() as echo:
        database = ProtoReflectionDescriptorDatabase(echo.channel)
        services = sorted(database.get_services())
        assert services == ["baton.node.v1.Registry", "baton.v1.Generation",
                            "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                            "grpc.reflection.v1alpha.ServerReflection"], services
        pool = descriptor_pool.DescriptorPool(database)
        for name in services:
            assert pool.FindServiceByName(name).full_name == name
        generate = pool.FindServiceByName("baton.v1.Generation").FindMethodByName("Generate")
        assert generate.server_streaming and not generate.client_streaming
        mine = pool.FindMessageTypeByName("baton.v1.SamplingParams")
        fields = {f.name: f.number for f in pb.SamplingParams.DESCRIPTOR.fields}
        assert {f.name: f.number for f in mine.fields} == fields
        assert pool.FindFileByName("baton/v1/baton.proto").package == "baton.v1"


def ask(echo, version, requests):
    """v1 and v1alpha have the same form on the wire, so v1alpha's classes serve for both."""
    call = echo.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
    return list(call(iter(requests), timeout=10))


def test_reflection_of_both_versions():
    request = reflection_pb2.ServerReflectionRequest
    with Echo() as echo:
        for version in ("v1", "v1alpha"):
            symbols = ["baton.v1.Generation", "baton.v1.Generation.Generate",
                       "baton.v1.GenerateResponse.FinishReason", "baton.v1.GenerateResponse.STOP",
                       "baton.v1.GenerateRequest.text", "baton.node.v1.NodeMessage"]
            answers = ask(echo, version, [request(file_containing_symbol=s) for s in symbols])
            for symbol, answer in zip(symbols, answers):
                assert answer.original_request.file_containing_symbol == symbol
                files = [descriptor_pb2.FileDescriptorProto.FromString(f) for f in
                         answer.file_descriptor_response.file_descriptor_proto]
                assert symbol.startswith(files[0].package), (symbol, answer)
            answers = ask(echo, version, [
                request(file_containing_symbol="baton.v1.Nothing"),
                request(file_by_filename="nothing.proto"),
                request(all_extension_numbers_of_type="baton.v1.GenerateRequest"),
                request(),
                request(host="a host", list_services="")])
            codes = [a.error_response.error_code for a in answers]
            assert codes == [5, 5, 5, 3, 0], codes
            assert answers[4].valid_host == "a host"
            assert len(answers[4].list_services_response.service) == 5


def test_server_killed():
    echo = Echo()
    echo.__enter__()
    stream = echo.generation.Generate(pb.GenerateRequest(text="x"))
    next(stream)
    echo.process.kill()
    echo.process.wait()
    assert code_of(lambda: list(stream)) == grpc.StatusCode.UNAVAILABLE
    echo.channel.close()


def test_many_clients_at_once():
    from concurrent.futures import ThreadPoolExecutor

    with Echo() as echo:
        def one(number):
            request = pb.GenerateRequest(text=str(number),
                                         sampling=pb.SamplingParams(max_tokens=50))
            return [(r.position, r.text) for r in echo.generation.Generate(request)]

        with ThreadPoolExecutor(16) as pool:
            for number, got in enumerate(pool.map(one, range(200))):
                assert got == [(i, str(number)) for i in range(50)]


if __name__ == "__main__":
    tap.main(globals())
