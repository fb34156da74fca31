"""One request, one answer: ids and log-probabilities are the same bits however and wherever they are computed."""
import concurrent.futures
import os
import random
import subprocess
import sys
import tempfile

import tap
from cluster import Cluster, ROOT, demo_model, tiny_model
from moments import until


def prompts(count, longest=180):
    rng = random.Random(11)
    return [[rng.randrange(20, 49000) for _ in range(rng.choice([3, 17, 31, 64, 65, 130, longest]))]
            for _ in range(count)]


def samplings(i):
    if i % 2 == 0:
        return dict(temperature=0, logprobs=3)
    return dict(temperature=0.9, top_p=0.95, top_k=50, seed=1000 + i, logprobs=2,
                repetition_penalty=1.1, frequency_penalty=0.2)


def alone(cluster, jobs):
    return [cluster.generate(p, 24, ignore_eos=True, **samplings(i)).key() for i, p in jobs]


def crowded(cluster, jobs):
    """All at once, so that each runs among the others as batch mates."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(cluster.generate, p, 24, 120, ignore_eos=True, **samplings(i))
                   for i, p in jobs]
        return [f.result().key() for f in futures]


JOBS = list(enumerate(prompts(16)))
VARIANTS = {
    "prefill_decode": dict(prefill=1, decode=1),
    "chunk_16": dict(mixed=1, node_args=["--chunk-tokens", "16"]),
    "chunk_64": dict(prefill=1, decode=1, node_args=["--chunk-tokens", "64"]),
    "chunk_512_two_threads": dict(mixed=1, node_args=["--chunk-tokens", "512", "--threads", "2"]),
    "opaque": dict(prefill=1, decode=1, node_args=["--backend", "opaque"]),
    "no_step_in_flight": dict(prefill=1, decode=1, node_args=["--steps-in-flight", "1"]),
    "two_prefill_two_decode": dict(prefill=2, decode=2),
    "page_16": dict(prefill=1, decode=1, node_args=["--page-tokens", "16"]),
    "swapped": dict(prefill=1, decode=1, node_args=["--preempt", "swap", "--preempt-every", "7"]),
    "computed_again": dict(prefill=1, decode=1, node_args=["--preempt", "recompute", "--preempt-every", "7"]),
}
_reference = {}


def reference(compute, kv_type):
    """The answers of one mixed node, one request at a time."""
    key = compute, kv_type
    if key not in _reference:
        with Cluster(tiny_model(), mixed=1, node_args=["--compute", compute, "--kv-type", kv_type]) as c:
            _reference[key] = alone(c, JOBS)
            assert len({tuple(k[0]) for k in _reference[key]}) > 12, "the model's answers hardly vary"
    return _reference[key]


def check(variant, compute="int8", kv_type="f16", run=crowded):
    want = reference(compute, kv_type)
    options = dict(VARIANTS[variant])
    options["node_args"] = [*options.get("node_args", ()), "--compute", compute, "--kv-type", kv_type]
    with Cluster(tiny_model(), **options) as cluster:
        cluster.wait_met()
        got = run(cluster, JOBS)
        if options.get("decode"):
            for node in cluster.nodes():
                if node.name.startswith("decode"):
                    # the nodes copy these counters a few times a second
                    until(lambda: node.metric("baton_kv_received_bytes_total") > 0, 2, f"{node.name} receives pages")
                    if "--preempt" in options["node_args"]:
                        way = options["node_args"][options["node_args"].index("--preempt") + 1]
                        until(lambda: node.metric("baton_preemptions_total", way=way) > 0, 2, f"{node.name} preempts by {way}")
        left = cluster.settled()
    for i, (a, b) in enumerate(zip(want, got)):
        assert a == b, f"request {i} differs under {variant}:\n{a}\n{b}"
    assert not left, left


def test_alone_equals_crowded_on_one_mixed_node():
    want = reference("int8", "f16")
    with Cluster(tiny_model(), mixed=1) as cluster:
        assert crowded(cluster, JOBS) == want


def test_prefill_decode_alone():
    check("prefill_decode", run=alone)


def test_prefill_decode_crowded():
    check("prefill_decode")


def test_chunk_16():
    check("chunk_16")


def test_chunk_64():
    check("chunk_64")


def test_chunk_512_two_threads():
    check("chunk_512_two_threads")


def test_opaque_backend():
    check("opaque")


def test_no_step_in_flight():
    check("no_step_in_flight")


def test_two_prefill_two_decode():
    check("two_prefill_two_decode")


def test_page_16():
    check("page_16")


def test_float_compute_float_kv():
    check("prefill_decode", "f32", "f32")


def test_int8_compute_float_kv():
    check("prefill_decode", "int8", "f32")


def test_int8_kv_alone_equals_crowded():
    want = reference("int8", "int8")
    assert want != reference("int8", "f16"), "the type of the KV cache makes no difference"
    with Cluster(tiny_model(), mixed=1, node_args=["--kv-type", "int8"]) as cluster:
        assert crowded(cluster, JOBS) == want


def test_int8_kv_handed_over():
    check("prefill_decode", kv_type="int8")


def test_int8_kv_chunk_64():
    check("chunk_64", kv_type="int8")


def test_int8_kv_opaque_backend():
    check("opaque", kv_type="int8")


def test_int8_kv_page_16():
    check("page_16", kv_type="int8")


def test_int8_kv_found_in_the_caches():
    want = reference("int8", "int8")
    with Cluster(tiny_model(), prefill=1, decode=1,
                 node_args=["--kv-type", "int8", "--page-tokens", "16", "--prefix-cache", "true"]) as cluster:
        assert crowded(cluster, JOBS) == want
        found = 0
        for i, (prompt, key) in enumerate(zip(prompts(16), want)):
            answer = cluster.generate(prompt, 24, ignore_eos=True, **samplings(i))
            assert answer.key() == key, i
            assert answer.usage.cached_tokens % 16 == 0 and answer.usage.cached_tokens < len(prompt), answer.usage
            found += answer.usage.cached_tokens
        assert found > 0, "nothing was found in a cache"
        assert not cluster.settled()


def test_int8_kv_swapped_out_and_in():
    check("swapped", kv_type="int8")


def test_int8_kv_computed_again():
    check("computed_again", kv_type="int8")


def test_float_compute_int8_kv():
    check("two_prefill_two_decode", "f32", "int8")


def test_every_file_type_in_both_modes():
    """A file of each weight type answers the same on one node and handed over, and float mode tells the types apart."""
    prompt = JOBS[3][1]
    floats = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"):
            path = os.path.join(folder, kind + ".gguf")
            subprocess.run([sys.executable, os.path.join(ROOT, "tests/data/make_tiny_model.py"), "--vocab-from",
                            tiny_model(), "--type", kind, path], check=True)
            for compute in ("int8", "f32"):
                answers = []
                for shape in (dict(mixed=1), dict(prefill=1, decode=1)):
                    with Cluster(path, node_args=["--compute", compute, "--threads", "1"], **shape) as cluster:
                        answers.append(cluster.generate(prompt, 12, temperature=0, logprobs=4, ignore_eos=True).key())
                assert answers[0] == answers[1], (kind, compute)
                if compute == "f32":
                    floats[kind] = answers[0][1]
    first = {kind: logprobs[0][0] for kind, logprobs in floats.items()}
    # one set of floats in three precisions; the quantised files are random blocks of their own
    assert abs(first["f16"] - first["f32"]) < 0.05 and abs(first["bf16"] - first["f32"]) < 0.1, first
    assert len(set(first.values())) == 6, first


def test_demo_model_chat_mixed_equals_disaggregated():
    model = demo_model()
    chat = [("user", "Why is the sky blue?")]
    answers = []
    for options in (dict(mixed=1), dict(prefill=1, decode=1)):
        with Cluster(model, **options) as cluster:
            answers.append(cluster.generate(chat, 32, 120, temperature=0, logprobs=2))
    assert answers[0].key() == answers[1].key()
    assert "light" in answers[0].text or "sky" in answers[0].text, answers[0].text
    assert answers[1].timings.kv_bytes_moved > 0
    assert answers[0].timings.kv_bytes_moved == 0


if __name__ == "__main__":
    tap.main(globals())
