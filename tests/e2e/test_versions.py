"""Old and new programs in one cluster: each pair speaks the newest version that both know, and answers stay the same bits."""
import random

import tap
from cluster import Cluster, grpc, tiny_model

OLDEST, NEWEST = 1, 3


def jobs():
    rng = random.Random(3)
    return [([rng.randrange(20, 49000) for _ in range(length)], dict(temperature=0.8, seed=length, logprobs=1))
            for length in (9, 130, 400)]


_expected = []


def expected():
    if not _expected:
        with Cluster(tiny_model(), mixed=1) as cluster:
            _expected.extend(cluster.generate(prompt, 24, **sampling).key() for prompt, sampling in jobs())
    return _expected


def log_of(process):
    with open(process._file("log"), errors="replace") as file:
        return file.read()


def hand_over(wire, router=(), **args_of):
    """`wire`: what the frames between P and D must carry."""
    want = expected()
    with Cluster(tiny_model(), prefill=1, decode=1, router_args=router,
                 args_of={k.replace("_", "-"): v for k, v in args_of.items()}) as cluster:
        for (prompt, sampling), key in zip(jobs(), want):
            assert cluster.generate(prompt, 24, **sampling).key() == key
        for process in cluster.nodes():
            assert f"frames of version {wire}," in log_of(process), (process.name, process.tail())
            # (a HELLO may come before its link is opened, a FIRST after the router's own word)
            for kind in ("none", "pull", "piece"):
                assert process.metric("baton_stale_frames_total", kind=kind) == 0, (process.name, kind)
        assert cluster.router.metric("baton_replays_total") == 0
        assert not cluster.settled()


def test_all_of_today():
    hand_over(NEWEST)


def test_an_older_prefill_node():
    hand_over(OLDEST, prefill_0=["--wire-max", "1"])


def test_an_older_decode_node():
    hand_over(OLDEST, decode_0=["--wire-max", "1"])


def test_an_older_router():
    hand_over(NEWEST, router=["--wire-max", "1"])


def test_a_decode_node_before_seals():
    hand_over(2, decode_0=["--wire-max", "2"])


def test_a_router_before_seals():
    hand_over(NEWEST, router=["--wire-max", "2"])


def test_a_node_without_a_common_version_is_refused_by_name():
    from baton.node.v1 import node_pb2
    with Cluster(tiny_model(), mixed=1) as cluster:
        with grpc.insecure_channel(cluster.router.node_grpc) as channel:
            connect = channel.stream_stream(
                "/baton.node.v1.Registry/Connect",
                request_serializer=node_pb2.NodeMessage.SerializeToString,
                response_deserializer=node_pb2.RouterMessage.FromString)

            def answer_to(**fields):
                register = node_pb2.Register(name="later", role=node_pb2.ROLE_MIXED, incarnation=1,
                                             pages_total=1, sequences_max=1, **fields)
                messages = iter([node_pb2.NodeMessage(register_=register)])
                return next(iter(connect(messages, timeout=10)))

            refused = answer_to(wire_min=NEWEST + 1, wire_max=NEWEST + 3).refused
            assert refused.field == "wire_min", refused
            assert refused.message == "the node speaks versions 4 to 6, this router 1 to 3", refused
            refused = answer_to(wire_min=0, wire_max=0).refused
            assert refused.field == "wire_max", refused
            refused = answer_to(wire_min=1, wire_max=2, features=1 << 40).refused
            assert refused.field == "features", refused
        assert cluster.mixed_0.alive()


if __name__ == "__main__":
    tap.main(globals())
