"""A million faults in the hand-off between two nodes (tests/kvtransfer/test_faults.c), and real processes with faults by several
seeds; writes what it found into docs/RELIABILITY.md. BATON_SOAK_FAULTS and BATON_SOAK_SEED change count and seed."""
import datetime
import os
import re
import subprocess
import time

import tap
from cluster import BUILD, ROOT

COUNT = int(os.environ.get("BATON_SOAK_FAULTS", "1000000"))
SEED = int(os.environ.get("BATON_SOAK_SEED", "1"))
PAGE = os.path.join(ROOT, "docs", "RELIABILITY.md")
TITLE = "## Faults in the hand-off"


def row_add(title, row):
    """Puts `row` behind the last row of the table below `title`."""
    with open(PAGE) as page:
        lines = page.read().split("\n")
    at = lines.index(title)
    last = max(i for i in range(at, len(lines)) if lines[i].startswith("|") and
               not any(line.startswith("## ") for line in lines[at + 1:i]))
    lines.insert(last + 1, row)
    with open(PAGE, "w") as page:
        page.write("\n".join(lines))


def test_a_million_faults():
    started = time.monotonic()
    program = os.path.join(BUILD, "tests", "test_kv_faults")
    environment = dict(os.environ, BATON_FAULTS_COUNT=str(COUNT), BATON_FAULTS_SEED=str(SEED))
    ended = subprocess.run([program, "--filter", "faults/a_hundred*"], env=environment, capture_output=True, text=True)
    seconds = round(time.monotonic() - started, 1)
    text = ended.stdout + ended.stderr
    found = re.search(r"# (\d+) faults, (\d+) transfers, (\d+) complete, (\d+) pieces refused \((\d+) hit in flight, "
                      r"(\d+) at rest\), (\d+) hit too late to matter", text)
    print("".join(f"# {line}\n" for line in text.splitlines() if line.startswith("#")), end="")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True,
                            text=True).stdout.strip() or "?"
    outcome = "held" if ended.returncode == 0 and found else "FAILED"
    counts = [int(n) for n in found.groups()] if found else [0] * 7
    row_add(TITLE, f"| {datetime.date.today()} | {commit} | {SEED} | {counts[0]} | {counts[1]} | {counts[2]} | {counts[3]} | "
                   f"{counts[4]} | {counts[5]} | {outcome} | {seconds} |")
    assert ended.returncode == 0 and found and counts[0] >= COUNT, text[-2000:]


if __name__ == "__main__":
    tap.main(globals())
