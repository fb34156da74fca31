"""Recovery is exact for all that hangs on what came before the fault: stop strings that reach across it, penalties,
log-probabilities, usage."""
import signal
import threading

import tap
from cluster import Answer, Cluster, request, tiny_model
from moments import SAMPLED, held, prompt_of, until

PROMPT = prompt_of(120, 17)
TOKENS = 600  # an answer that is still being made when the blow falls, also if the client has to wait for the processor
SAMPLINGS = {
    "greedy": dict(temperature=0, ignore_eos=True),
    "penalties": dict(temperature=0, repetition_penalty=1.3, presence_penalty=0.6, frequency_penalty=0.4, ignore_eos=True),
    "penalties_drawn": dict(SAMPLED, seed=11, repetition_penalty=1.2, frequency_penalty=0.3, top_p=0.95, logprobs=0),
    "logprobs": dict(temperature=0.9, seed=2**63 + 5, logprobs=5, ignore_eos=True),
}


class Kept(Answer):
    """Also remembers how much text had come with how many tokens: after each message, what a client could resume from."""

    def __init__(self):
        super().__init__()
        self.states = [(0, 0)]

    def add(self, message):
        super().add(message)
        self.states.append((len(self.ids), len(self.text.encode())))


def run(cluster, tokens, **sampling):
    answer = Kept()
    for reply in cluster.stream(request(PROMPT, tokens, **dict(sampling)), 120):
        answer.add(reply)
    return answer


def whole(answer):
    """All of it, usage too."""
    return answer.key(), answer.usage.prompt_tokens, answer.usage.completion_tokens


def find_stop(cluster, count):
    """A stop string for the greedy answer, from the middle of one token's text to the middle of the one `count` further on, that
    comes nowhere earlier; and the first one's position."""
    answer = run(cluster, 100, **SAMPLINGS["greedy"])
    text, ends = answer.text.encode(), dict(answer.states)  # ends: where the text of so many tokens ends
    for first in range(8, 60):
        last = first + count
        if not all(n in ends for n in (first, first + 1, last, last + 1)):
            continue
        begin, end = (ends[first] + ends[first + 1]) // 2, (ends[last] + ends[last + 1] + 1) // 2
        stop = text[begin:end].decode(errors="replace")
        clean = "\ufffd" not in stop and "\0" not in stop
        if clean and end - begin <= 250 and ends[first] < begin and end < ends[last + 1] and text.find(text[begin:end]) == begin:
            return first, stop
    raise AssertionError("this model's text has no usable stop string")


def test_resume_from_every_state():
    """As after a router's death, from every point at which the stream could have broken, a stop string's matches included."""
    with Cluster(tiny_model(), mixed=1) as alone, Cluster(tiny_model(), prefill=1, decode=1) as cluster:
        first, stop = find_stop(alone, 6)
        kinds = dict(SAMPLINGS, stop=dict(SAMPLINGS["greedy"], stop=[stop]))
        for name, sampling in kinds.items():
            want = run(alone, 40, **sampling)
            if name == "stop":
                assert want.finish == "STOP" and want.stop_match == stop and len(want.ids) == first, want.key()
            again = run(cluster, 40, **sampling)
            assert whole(again) == whole(want), name
            states = [s for s in again.states if s[0]][:-1]
            for count, text_bytes in states if name == "stop" else states[::3]:
                message = request(PROMPT, 40, **dict(sampling))
                message.resume.received.ids.extend(want.ids[:count])
                message.resume.text_bytes = text_bytes
                message.resume.seed = again.seed
                rest = Answer()
                rest.ids, rest.logprobs = list(want.ids[:count]), list(want.logprobs[:count])
                rest.text = want.text.encode()[:text_bytes].decode()
                for reply in cluster.stream(message, 60):
                    rest.add(reply)
                assert whole(rest) == whole(want), (name, count)
        assert not cluster.settled()


def struck(cluster, sampling, tokens, after, strike):
    """Reads the stream; `strike` once so many tokens are there."""
    answer, done = Answer(), False
    for reply in cluster.stream(request(PROMPT, tokens, **dict(sampling)), 120):
        answer.add(reply)
        if not done and len(answer.ids) >= after:
            done = True
            strike(answer)
    return answer


def test_decode_killed_with_penalties_and_logprobs():
    with Cluster(tiny_model(), mixed=1) as alone:
        want = {name: run(alone, TOKENS, **sampling) for name, sampling in SAMPLINGS.items()}
    with Cluster(tiny_model(), prefill=1, decode=2) as cluster:
        for name, sampling in SAMPLINGS.items():
            for after in (1, 40):
                def strike(_):
                    for node in (cluster.decode_0, cluster.decode_1):
                        if held(node):
                            node.kill()
                            node.start()
                answer = struck(cluster, sampling, TOKENS, after, strike)
                assert whole(answer) == whole(want[name]), (name, after)
                assert answer.timings.replays, (name, after)
                for node in (cluster.decode_0, cluster.decode_1):
                    node.wait_bound()
                cluster.wait_serving()
        assert not cluster.settled()


def test_killed_inside_a_stop_string():
    """The node that decodes dies when the match has begun and is held back, and the rest of it comes from another."""
    with Cluster(tiny_model(), mixed=1) as alone:
        first, stop = find_stop(alone, 24)
        sampling = dict(SAMPLINGS["greedy"], stop=["never in this text", stop], logprobs=1)
        want = run(alone, TOKENS, **sampling)
        assert want.finish == "STOP" and want.stop_match == stop and len(want.ids) == first, want.key()
    inside = 0
    with Cluster(tiny_model(), prefill=1, decode=2) as cluster:
        for attempt in range(60):  # a blow that falls late counts for nothing
            frozen, delivered = [], []

            def strike(so_far):
                frozen.extend(n for n in (cluster.decode_0, cluster.decode_1) if held(n))
                for node in frozen:
                    node.signal(signal.SIGSTOP)

                def later():
                    count = len(so_far.ids)
                    for node in frozen:
                        node.kill()
                    delivered.append(count)
                threading.Timer(0.3, later).start()
            answer = struck(cluster, sampling, TOKENS, max(1, first - 1 - attempt % 4), strike)
            assert whole(answer) == whole(want), attempt
            until(lambda: delivered, 2, "the blow falls")
            # all before the match was delivered, and the end was not there: so it was held back when its node died
            inside += bool(frozen) and delivered[0] == first and answer.timings.replays > 0
            for node in frozen:
                node.start().wait_bound()
            cluster.wait_serving()
            if inside >= 3:
                break
        assert not cluster.settled()
    assert inside >= 3, f"only {inside} of the blows fell inside the match"


if __name__ == "__main__":
    tap.main(globals())
