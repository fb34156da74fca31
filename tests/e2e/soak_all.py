"""The full counts of every kind (kinds.py); each writes a row into docs/RELIABILITY.md, also when it fails.

`soak_all.py [test_NAME...]` runs only those. BATON_SOAK_SEED: another seed. BATON_SOAK_SHARE: a part of the counts, 0.01 say; such a row
says how many it were, as every row does.
"""
import datetime
import os
import subprocess
import time

import kinds
import tap
from cluster import ROOT

SEED = int(os.environ.get("BATON_SOAK_SEED", "1"))
SHARE = float(os.environ.get("BATON_SOAK_SHARE", "1"))
PAGE = os.path.join(ROOT, "docs", "RELIABILITY.md")


def commit():
    def git(*args):
        return subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True).stdout.strip()
    changed = any(not line.endswith("docs/RELIABILITY.md") for line in git("status", "--porcelain", "-uno").splitlines())
    return (git("rev-parse", "--short", "HEAD") or "?") + ("+" if changed else "")


def write_row(kind, count, seconds, outcome, figures):
    words = ", ".join(f"{key} {value}" for key, value in figures.items() if key != "seconds").replace("_", " ")
    cells = [str(datetime.date.today()), commit(), kind.name.replace("_", " "), str(SEED), str(count), f"{seconds:.0f}", outcome, words]
    with open(PAGE, "a") as page:
        page.write("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |\n")


def soak(kind):
    options = dict(kind.full)
    options["count"] = max(1, round(options["count"] * SHARE))
    began, figures, outcome = time.monotonic(), {}, "failed"
    try:
        figures = kind.run(seed=SEED, **options)
        outcome = "passed"
        print(f"# {figures}")
    except Exception as error:
        figures = {"why": f"{error}"[:300]}
        raise
    finally:
        write_row(kind, options["count"], time.monotonic() - began, outcome, figures)


if __name__ == "__main__":
    tap.main({f"test_{kind.name}": lambda kind=kind: soak(kind) for kind in kinds.KINDS})
