"""The full count of the storm; writes what it found into docs/RELIABILITY.md. BATON_SOAK_REQUESTS and BATON_SOAK_SEED change it."""
import datetime
import os
import subprocess

import tap
import storm
from cluster import ROOT

REQUESTS = int(os.environ.get("BATON_SOAK_REQUESTS", "10000"))
SEED = int(os.environ.get("BATON_SOAK_SEED", "1"))
PERIOD_S = 10.0
PAGE = os.path.join(ROOT, "docs", "RELIABILITY.md")
HEAD = """# Reliability, measured

Written by `./dev test soak`. Each row is one run: requests of mixed lengths and samplings, a tenth of them cancelled, on two
prefill and three decode nodes with the tiny model, while every so many seconds one node is killed (-9) and started again, and
another is frozen for up to four seconds. Every answer is compared with the one of an undisturbed mixed node.

| date | commit | seed | requests | every | kills | freezes | replays | lost | changed | pages left | seconds |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def test_storm():
    report, faults = storm.run(REQUESTS, PERIOD_S, SEED)
    print(f"# {report}")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True,
                            text=True).stdout.strip() or "?"
    if not os.path.exists(PAGE):
        with open(PAGE, "w") as page:
            page.write(HEAD)
    with open(PAGE, "a") as page:
        page.write(f"| {datetime.date.today()} | {commit} | {SEED} | {REQUESTS} | {PERIOD_S:g} s | {report['kills']} | "
                   f"{report['freezes']} | {report['replays']} | {report['lost']} | {report['changed']} | "
                   f"{report['pages_left']} | {report['seconds']} |\n")
    storm.check(report, faults)


if __name__ == "__main__":
    tap.main(globals())
