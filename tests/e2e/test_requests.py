"""Bad requests get a clear error that names the field and the limit; real clients; mismatched nodes; overlap."""
import os
import random
import subprocess
import sys
import tempfile
import threading

import tap
from cluster import Cluster, ROOT, SANITIZED, SLACK, grpc, pb, request, tiny_model
from moments import until

_cluster = None


def shared():
    """One cluster for all tests of this file that only send requests."""
    global _cluster
    if _cluster is None:
        _cluster = Cluster(tiny_model(), prefill=1, decode=1)
        _cluster.__enter__()
    return _cluster


def refused(code, words, message):
    answer = shared().generate(message, expect_error=True, timeout=60)
    assert answer.error is not None, "accepted"
    assert answer.error.code() == code, (answer.error.code(), answer.error.details())
    details = answer.error.details()
    for word in [words] if isinstance(words, str) else words:
        assert word in details, f"{details!r} does not name {word!r}"


INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


def test_prompt_limits():
    refused(INVALID, "prompt", pb.GenerateRequest())
    refused(INVALID, "text", request("", 5))
    refused(INVALID, "token_ids", pb.GenerateRequest(token_ids=pb.TokenIds(ids=[])))
    refused(INVALID, "chat", pb.GenerateRequest(chat=pb.Chat()))
    refused(INVALID, ["token_ids", "49152"], request([5, 49152], 5))
    refused(INVALID, ["token_ids", "4294967295"], request([4294967295], 5))
    context = next(iter(shared().stub.ListModels(pb.ListModelsRequest()).models)).context_tokens
    refused(INVALID, str(context), request([30] * (context + 1), 1))
    refused(INVALID, str(context), request([30] * context, 1))
    refused(INVALID, ["max_tokens", str(context)], request([30] * (context - 1), 2))
    assert len(shared().generate([30] * (context - 1), 1, temperature=0).ids) == 1


def test_sampling_limits():
    nan, inf = float("nan"), float("inf")
    refused(INVALID, "max_tokens", request([5], 0))
    refused(INVALID, "max_tokens", request([5], 4294967295))
    for field, values in {
            "temperature": [nan, inf, -inf, -0.5],
            "top_p": [nan, inf, -0.1, 1.5],
            "min_p": [nan, inf, -0.1, 1.5],
            "repetition_penalty": [nan, inf, 0, -1],
            "presence_penalty": [nan, inf, -9, 9],
            "frequency_penalty": [nan, inf, -9, 9]}.items():
        for value in values:
            refused(INVALID, field, request([5], 5, **{field: value}))
    refused(INVALID, "logprobs", request([5], 5, logprobs=100000))
    refused(INVALID, "stop_token_ids", request([5], 5, stop_token_ids=[49152]))
    refused(INVALID, "stop", request([5], 5, stop=[""]))
    message = request([5], 5)
    message.sampling.logit_bias.add(token_id=70000, bias=1)
    refused(INVALID, "logit_bias", message)
    message = request([5], 5)
    message.sampling.logit_bias.add(token_id=7, bias=nan)
    refused(INVALID, "logit_bias", message)
    refused(INVALID, "n", request([5], 5, n=0))


def test_labels_and_names():
    message = request([5], 5)
    message.request_id = "x" * 257
    refused(INVALID, ["request_id", "256"], message)
    message = request([5], 5)
    message.model = "nobody"
    refused(grpc.StatusCode.NOT_FOUND, "nobody", message)
    refused(INVALID, "role", request([("wizard", "hello")], 5))


def test_what_is_not_built_is_refused_by_name():
    refused(UNIMPLEMENTED, "n", request([5], 5, n=2))
    message = request([5], 5)
    message.session_id = "abc"
    refused(UNIMPLEMENTED, "session_id", message)


def test_resume_is_checked():
    message = request([5, 6], 5, seed=4)
    message.resume.received.ids.extend([7])
    message.resume.seed = 5
    refused(INVALID, "seed", message)
    message = request([5, 6], 5)
    message.resume.received.ids.extend([49152])
    message.resume.seed = 5
    refused(INVALID, "resume.received", message)
    message = request([5, 6], 2, temperature=0, ignore_eos=True)
    want = shared().generate(message)
    message.resume.received.ids.extend(want.ids)
    message.resume.seed = want.seed
    message.resume.text_bytes = len(want.text.encode())
    replies = list(shared().stream(message))
    assert sum(len(r.token_ids) for r in replies) == 0
    assert replies[-1].finish_reason == pb.GenerateResponse.LENGTH
    assert replies[-1].usage.completion_tokens == 2


def raw_call(data):
    """Sends bytes as they are to Generate: its error, or None once an answer has begun, of which nobody hears more (what is left of a
    cut message may ask for a long one)."""
    call = shared().channel.unary_stream("/baton.v1.Generation/Generate",
                                         request_serializer=lambda b: b,
                                         response_deserializer=pb.GenerateResponse.FromString)
    answer = call(data, timeout=60)
    try:
        next(answer, None)
    except grpc.RpcError as error:
        return error
    answer.cancel()
    return None


def test_bytes_on_the_wire():
    """What no generated client sends: invalid UTF-8, NUL, truncated and random messages, one too large."""
    field_text = b"\x1a"  # field 3, length-delimited
    for text, word in ((b"ab\xffcd", "text"), (b"ab\0cd", "text"), (b"\xed\xa0\x80", "text")):
        error = raw_call(field_text + bytes([len(text)]) + text)
        assert error and error.code() == INVALID and word in error.details(), error
    rng = random.Random(1)
    whole = request("hello there", 4).SerializeToString()
    for cut in range(1, len(whole)):
        error = raw_call(whole[:cut])
        assert error is None or error.code() in (INVALID,), (cut, error.code(), error.details())
    for _ in range(200):
        raw_call(bytes(rng.randrange(256) for _ in range(rng.randrange(40))))
    error = raw_call(field_text + b"\x80\x80\x80\x40" + b"a" * (1 << 27))
    assert error and error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, INVALID), error
    assert len(shared().generate([5, 6], 3, temperature=0, ignore_eos=True).ids) == 3


def test_stop_strings_and_text():
    cluster = shared()
    whole = cluster.generate([40, 50, 60], 40, temperature=0, ignore_eos=True)
    assert whole.text
    for length in (1, 3, 6):
        start = len(whole.text) // 2
        stop = whole.text[start:start + length]
        if not stop.strip() or "\ufffd" in stop:
            continue
        answer = cluster.generate([40, 50, 60], 40, temperature=0, ignore_eos=True, stop=[stop])
        assert answer.finish == "STOP" and answer.stop_match == stop
        assert answer.text == whole.text[:whole.text.index(stop)], (answer.text, whole.text, stop)
        assert answer.ids == whole.ids[:len(answer.ids)]
        assert answer.usage.completion_tokens == len(answer.ids)


def test_timings_add_up():
    t = shared().generate(list(range(50, 150)), 8, temperature=0, ignore_eos=True).timings
    assert t.ttft_us == t.queue_us + t.placement_us + t.prefill_us + t.send_us
    assert t.total_us >= t.ttft_us > 0 and t.prefill_us > 0 and t.first_decode_us > 0
    assert t.prefill_node == "prefill-0" and t.decode_node == "decode-0"
    assert t.kv_bytes_moved > 0


def test_tokenize_and_detokenize():
    stub = shared().stub
    text = "Hello, Wörld 123 \u4f60\u597d"
    ids = stub.Tokenize(pb.TokenizeRequest(text=text)).ids
    assert stub.Detokenize(pb.DetokenizeRequest(ids=ids)).text == text
    special = "<|im_start|>"
    assert len(stub.Tokenize(pb.TokenizeRequest(text=special)).ids) > 1
    assert len(stub.Tokenize(pb.TokenizeRequest(text=special, parse_special=True)).ids) == 1


def test_health_and_reflection_by_their_own_packages():
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
    cluster = shared()
    for process in cluster.processes.values():
        with grpc.insecure_channel(process.grpc) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            serving = health_pb2.HealthCheckResponse.SERVING
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=60).status == serving
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
            assert next(watch).status == serving
            watch.cancel()
            try:
                stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=60)
                raise AssertionError("an unknown service has a health")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND
            database = ProtoReflectionDescriptorDatabase(channel)
            services = set(database.get_services())
            assert "grpc.health.v1.Health" in services, services
            if process.name == "router":
                assert {"baton.v1.Generation", "baton.v1.Cluster"} <= services, services
                pool = DescriptorPool(database)
                service = pool.FindServiceByName("baton.v1.Generation")
                assert "Generate" in service.methods_by_name


def test_unknown_method_is_unimplemented():
    call = shared().channel.unary_unary("/baton.v1.Generation/Dream", request_serializer=lambda b: b,
                                        response_deserializer=lambda b: b)
    try:
        call(b"", timeout=60)
        raise AssertionError("answered")
    except grpc.RpcError as error:
        assert error.code() == UNIMPLEMENTED


def test_http():
    for process in shared().processes.values():
        assert process.get("/healthz")[0] == 200
        assert process.get("/readyz")[0] == 200
        assert process.get("/nothing")[0] == 404
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/models"):
        assert shared().router.get(path)[0] == 501
    metrics = shared().router.metrics()
    assert any(k.startswith("baton_kv_pages{") and 'node="decode-0"' in k for k in metrics)


def overlapped(cluster):
    """Bytes of KV that D had verified when their prompts' computation ended, and of how many."""
    return [cluster.decode_0.metric(f"baton_kv_overlap_verified_{which}total") for which in ("bytes_", "of_bytes_")]


def test_overlap_most_bytes_arrive_before_the_prompt_ends():
    """>= 80 % of a 2,000-token prompt's KV is verified on D before P ends the last layers of the last chunk: of one prompt at least, since
    a prompt takes some 50 ms, and a machine that gives D no processor for half of them says nothing about P."""
    with Cluster(tiny_model(), prefill=1, decode=1, node_args=["--threads", "1"]) as cluster:
        rng = random.Random(2)
        shares, before = [], (0, 0)
        while len(shares) < 20 and max(shares, default=0) < 0.8:
            prompt = [rng.randrange(20, 49000) for _ in range(2000)]
            cluster.generate(prompt, 4, temperature=0, ignore_eos=True)
            until(lambda: overlapped(cluster)[1] > before[1], 5, "the prompt's transfer is counted")
            now = overlapped(cluster)
            shares.append((now[0] - before[0]) / (now[1] - before[1]))
            before = now
        assert max(shares) >= 0.8, shares


def other_model(folder, *flags):
    """A tiny model that is not the cluster's, with the same tokenizer."""
    path = os.path.join(folder, "other.gguf")
    subprocess.run([sys.executable, os.path.join(ROOT, "tests/data/make_tiny_model.py"),
                    "--vocab-from", tiny_model(), *flags, path], check=True)
    return path


def test_mismatched_nodes_are_refused_with_the_field_named():
    with tempfile.TemporaryDirectory() as folder, Cluster(tiny_model(), mixed=1) as cluster:
        cases = [([], other_model(folder, "--seed", "99"), "model_hash"),
                 (["--compute", "f32"], tiny_model(), "arithmetic"),
                 (["--kv-type", "f32"], tiny_model(), "kv_type"),
                 (["--kv-type", "int8"], tiny_model(), "kv_type"),
                 (["--page-tokens", "32"], tiny_model(), "page_tokens")]
        for i, (flags, model, word) in enumerate(cases):
            process = cluster._add(f"odd-{i}", "baton-decode", [
                "--model", model, "--router", cluster.router.node_grpc, *flags])
            process.start()
            assert process.child.wait(20 * SLACK) == 1, process.tail()
            assert word in process.tail(), process.tail()
            assert len(cluster.generate([5, 6], 3, temperature=0, ignore_eos=True).ids) == 3


def test_page_pool_limits():
    """Four pages of 16 hold 64 positions; the last token of an answer takes none."""
    with Cluster(tiny_model(), mixed=1, node_args=["--kv-pages", "4", "--page-tokens", "16"]) as cluster:
        def ask(prompt_tokens, max_tokens):
            return cluster.generate([30] * prompt_tokens, max_tokens, 20, expect_error=True, temperature=0, ignore_eos=True)

        assert len(ask(64, 1).ids) == 1
        assert len(ask(60, 5).ids) == 5
        for prompt_tokens, max_tokens, field in ((65, 1, "token_ids"), (64, 2, "max_tokens"), (60, 6, "max_tokens")):
            error = ask(prompt_tokens, max_tokens).error
            assert error and error.code() == INVALID, (prompt_tokens, max_tokens, error)
            assert field in error.details() and "64" in error.details(), error.details()
        assert len(cluster.generate([30] * 60, None, 20, temperature=0, ignore_eos=True).ids) == 5
        assert not cluster.settled()


def test_roles_change_under_load_and_drop_no_request():
    prompts = [[30 + i, 40, 50 + i] * (3 + i) for i in range(8)]
    with Cluster(tiny_model(), prefill=1, decode=2) as cluster:
        want = [cluster.generate(p, 200, temperature=0, ignore_eos=True).key() for p in prompts]
        over = threading.Event()
        wrong = []

        def worker(i):
            while not over.is_set():
                try:
                    if cluster.generate(prompts[i], 200, 120, temperature=0, ignore_eos=True).key() != want[i]:
                        wrong.append(f"{i} changed")
                except Exception as error:
                    wrong.append(str(error))

        threads = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        pids = [p.child.pid for p in cluster.nodes()]
        for node, role in (("decode-1", "prefill"), ("prefill-0", "decode"), ("decode-0", "mixed"),
                           ("prefill-0", "prefill"), ("decode-0", "decode"), ("decode-1", "decode")):
            cluster.admin.SetRole(pb.SetRoleRequest(node=node, role=role), timeout=10)
            status = cluster.admin.GetStatus(pb.GetStatusRequest(), timeout=10)
            assert {n.name: n.role for n in status.nodes}[node] == role
            over.wait(0.4)
        over.set()
        for thread in threads:
            thread.join()
        assert not wrong, wrong[:3]
        assert pids == [p.child.pid for p in cluster.nodes()] and all(p.alive() for p in cluster.nodes())
        assert cluster.router.metric("baton_replays_total") == 0
        assert not cluster.settled()
        for request_, code in ((pb.SetRoleRequest(node="decode-1", role="king"), INVALID),
                               (pb.SetRoleRequest(node="nobody", role="mixed"), grpc.StatusCode.NOT_FOUND)):
            try:
                cluster.admin.SetRole(request_, timeout=10)
                raise AssertionError("accepted")
            except grpc.RpcError as error:
                assert error.code() == code, error


def test_full_queue_is_resource_exhausted():
    with Cluster(tiny_model(), mixed=1, router_args=["--queue-max", "2"],
                 node_args=["--kv-pages", "8"]) as cluster:
        codes = []

        def one(i):
            answer = cluster.generate([30 + i] * 100, 300, 60, expect_error=True, temperature=0, ignore_eos=True)
            codes.append(answer.error.code() if answer.error else None)
            if answer.error:
                assert any(k == "grpc-retry-pushback-ms" for k, _ in answer.error.trailing_metadata())

        threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes.count(None) >= 2, codes
        assert set(codes) <= {None, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes, codes


def test_no_leak_after_a_thousand_requests():
    with Cluster(tiny_model(), prefill=1, decode=1) as cluster:
        def burst(count):
            rng = random.Random(count)
            lock, left = threading.Lock(), [count]

            def worker():
                while True:
                    with lock:
                        if not left[0]:
                            return
                        left[0] -= 1
                        prompt = [rng.randrange(20, 49000) for _ in range(rng.choice([3, 20, 70]))]
                    cluster.generate(prompt, 4, 60, temperature=0, ignore_eos=True)
            threads = [threading.Thread(target=worker) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        burst(300)
        before = {p.name: (p.settled_rss_bytes(), p.descriptors()) for p in cluster.processes.values()}
        burst(1000)
        assert not cluster.settled()
        for p in cluster.processes.values():
            rss, descriptors = before[p.name]
            assert p.descriptors() <= descriptors + 2, p.name
            if not SANITIZED:  # whose allocator keeps what is freed; it finds leaks at the end by itself
                assert p.rss_bytes() <= rss * 1.05 + (4 << 20), (p.name, rss, p.rss_bytes())


def test_zz_the_shared_cluster_is_clean():
    assert not shared().settled()
    shared().__exit__(None, None, None)


if __name__ == "__main__":
    tap.main(globals())
