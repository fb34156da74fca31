"""Every kind of soak, in one table: what is done, how often in the ordinary tests, and how often when it counts.

    test_storm.py, test_reports.py ── small counts ──┐
                                                     ├──▶ a function: (count and the like, seed) ──▶ a report {what: how many}
    soak_all.py ── full counts, docs/RELIABILITY.md ─┘    it raises where something is not as it must be

Kinds that are programs of their own (simulations, injected faults) say their figures in lines that begin with "#".
"""
import os
import re
import subprocess

import storm
import strikes
from cluster import BUILD


class Kind:
    def __init__(self, name, group, run, what, small, full):
        self.name, self.group, self.run, self.what, self.small, self.full = name, group, run, what, small, full


def program(path, test, count_name, seed_name=None, figure=r".*"):
    """A test program of the build that takes its count from the environment, and its seed, unless the seeds are what it counts.
    `figure`: what of a line is worth keeping."""
    def run(count, seed=1):
        command = os.path.join(BUILD, "tests", path)
        if not os.path.exists(command):
            subprocess.run(["ninja", "-C", BUILD, f"tests/{path}"], check=True, stdout=subprocess.DEVNULL)
        # not --tap, in which Criterion keeps to itself what a test says
        words = {count_name: str(count)}
        if seed_name:
            words[seed_name] = str(seed)
        done = subprocess.run([command, "--filter", test], capture_output=True, text=True, env={**os.environ, **words})
        said = (done.stdout + done.stderr).splitlines()
        passed = [line for line in said if re.search(r"Tested: ([1-9]\d*) \| Passing: \1 \| Failing: 0 \| Crashing: 0", line)]
        assert done.returncode == 0 and len(passed) == 1, "\n".join(said[-30:])
        figures = [re.match(figure, line.lstrip("# "))[0] for line in said if line.startswith("# ") and re.search(r"\d", line)
                   and not re.match(r"# (Criterion|Running)", line)]
        return {"counts": "; ".join(figures)[:500]}
    return run


KINDS = [
    Kind("storm", "storm", storm.nodes_killed,
         "requests of mixed lengths and samplings, a tenth of them cancelled, on two prefill and three decode nodes; every period one "
         "node is killed (-9) and started again, and another frozen for up to 4 s",
         dict(count=1500, period_s=1.5), dict(count=10000, period_s=10)),
    Kind("storm_of_clients", "storm", storm.router_killed_too,
         "the same through `baton generate`, one process a request, and every third blow kills the router too",
         dict(count=150, period_s=1.5), dict(count=10000, period_s=10)),
    Kind("cancels", "storm", storm.cancels,
         "clients that leave at a uniformly random point of their request's life",
         dict(count=600), dict(count=100000)),
    Kind("cancel_then_kill", "reports", strikes.cancel_in_transfer_then_kill,
         "cancels in the middle of a transfer, and 5 ms later the death of the node that sends",
         dict(count=12), dict(count=500)),
    Kind("cancel_before_d_admits", "reports", strikes.cancel_before_d_admits,
         "cancels 0 to 50 ms after the prefill, before the decode node has all",
         dict(count=20), dict(count=500)),
    Kind("cancel_in_the_last_chunk", "reports", strikes.cancel_in_last_chunk,
         "cancels while the last chunk of a prompt is computed",
         dict(count=20), dict(count=500)),
    Kind("frozen_in_transfer", "reports", strikes.frozen_in_transfer,
         "decode nodes stopped while a transfer to them completes, for 1.2 s and 3.2 s in turn",
         dict(count=2), dict(count=60)),
    Kind("frozen_past_the_lease", "reports", strikes.frozen_past_the_lease,
         "decode nodes under load stopped for 9.5 s, longer than their sources keep pages",
         dict(count=1), dict(count=40)),
    Kind("dies_before_dispatch", "reports", strikes.dies_between_choice_and_dispatch,
         "nodes that die with an unread assignment in their socket",
         dict(count=4), dict(count=200)),
    Kind("restarts", "reports", strikes.restarts_on_one_address,
         "nodes killed under load and started again on the same ports",
         dict(count=10), dict(count=200)),
    Kind("distinct_prompts", "reports", strikes.distinct_prompts,
         "different prompts, 64 at a time, each compared with its answer alone",
         dict(count=200), dict(count=2000)),
    Kind("transfer_faults", "programs",
         program("test_kv_faults", "faults/a_hundred_thousand_change_no_byte_and_are_counted_exactly",
                 "BATON_FAULTS_COUNT", "BATON_FAULTS_SEED"),
         "faults of every kind in the hand-off between two nodes, pages at rest too (the small count runs in the unit tests)",
         dict(count=100000), dict(count=1000000)),
    Kind("simulation", "programs",
         program("test_cluster", "cluster/every_request_ends_right_and_nothing_is_left", "SIM_SEEDS"),
         "seeds of the whole cluster on a virtual clock, from 1 on, on all cores (the small count runs in the group sim)",
         dict(count=10000), dict(count=1000000)),
    Kind("interleavings", "programs", program("test_explore", "explore/*", "SIM_SOAK", figure=r"\w+: \d+ states|.*"),
         "every interleaving of small clusters with one fault or two, those that take a minute or more included (the quick ones run in the group sim)",
         dict(count=1), dict(count=1)),
]


def tests(group):
    """What tap.main wants: the small counts of a group."""
    def test(kind):
        return lambda: print(f"# {kind.run(**kind.small)}")
    return {f"test_{kind.name}": test(kind) for kind in KINDS if kind.group == group}
