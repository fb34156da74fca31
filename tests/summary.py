"""Counts what the tests really did, from their own output, and prints the closing line of `./dev test`.

    summary.py group DIR GROUP SECONDS FILE...   FILE: meson's testlog.json, or TAP of one script (*.tap)
    summary.py close DIR                         last line: "N passed, N failed, N skipped"

Each TAP line is one test. A program that ends with an error, early, or with fewer lines than its plan is a failure of its
own, so that nothing that crashed can pass for "no failures".

Of a failed test everything is printed that it said: the comments before its line (ours), the block behind it (Criterion's),
and what its program wrote to stderr (sanitizers' reports, assertions).
"""
import json
import os
import re
import sys

LINE = re.compile(r"(not )?ok\b\s*(\d+)?\s*(?:-\s*)?(.*)")
PLAN = re.compile(r"1\.\.(\d+)")
STATUS = re.compile(r"# status (\d+)$")
TIME = re.compile(r"\s*(\(\d+\.\d+s\)|# \d+\.\d+ s)\s*$")
SIGNAL = re.compile(r"(\S+) ((?:unexpected signal|timed out).*)")  # how Criterion ends a name
LINES_MAX = 60  # of what one test, or one program, said


def block_reason(block):
    """The first failed check of the block that Criterion writes behind a failed test, in one line."""
    failures = [line.strip() for line in block if line.strip() not in ("---", "...", "failures:")]
    words = [line.removeprefix("- ").removesuffix(" |+") for line in failures if not line.startswith("assertions:")]
    return " ".join(words[:2]) or "ended early, at no check"


def parse_tap(text):
    """Results as (outcome, name, reason, lines that the test said), and the plan's count (None: no plan)."""
    results, plan, reason_before, said, block = [], None, "", [], None
    for line in text.splitlines():
        if block is None and line == "  ---" and results and results[-1][0] == "failed":
            block = []
        if block is not None:
            block.append(line)
            if line == "  ...":
                outcome, name, reason, before = results[-1]
                results[-1] = (outcome, name, block_reason(block), before + block)
                block = None
            continue
        match = PLAN.match(line)
        if match and plan is None:
            plan = int(match.group(1))
            continue
        if line.startswith("# skip: "):
            reason_before = line[len("# skip: "):]
            continue
        match = LINE.match(line)
        if not match:
            said.append(line)
            continue
        name, _, reason = match.group(3).partition("# SKIP")
        skipped = "# SKIP" in match.group(3)
        name = TIME.sub("", name.strip())
        outcome = "failed" if match.group(1) else "skipped" if skipped else "passed"
        if outcome == "failed":
            signal = SIGNAL.fullmatch(name)
            name, why = signal.groups() if signal else (name, said[-1].lstrip("# ") if said else "")
            results.append((outcome, name, why, said))
        else:
            results.append((outcome, name, (reason.strip() or reason_before) if skipped else "", []))
        reason_before, said = "", []
    return results, plan


def judge(program, text, ended_well, how):
    """All results of one program."""
    results, plan = parse_tap(text)
    tail = text.splitlines()[-LINES_MAX:]
    if plan is None:
        if how == "SKIP":
            return [("skipped", program, "the test says so", [])]
        return results + [("passed", program, "", []) if ended_well else ("failed", program, how, tail)]
    if len(results) != plan:
        after = f", the last of them {results[-1][1]}" if results else ""
        results.append(("failed", program, f"{how}: {len(results)} results of {plan} planned{after}", tail))
    elif not ended_well and not any(r[0] == "failed" for r in results):
        results.append(("failed", program, f"all of its tests passed, but it ended with: {how}", tail))
    return results


def read(path):
    with open(path, errors="replace") as file:
        text = file.read()
    if path.endswith(".json"):
        results = []
        for line in text.splitlines():
            entry = json.loads(line)
            how = entry["result"]
            of_program = judge(entry["name"], entry.get("stdout") or "", how in ("OK", "EXPECTEDFAIL"), how)
            errors = (entry.get("stderr") or "").splitlines()
            if errors and of_program and (failed := [i for i, r in enumerate(of_program) if r[0] == "failed"]):
                outcome, name, reason, said = of_program[failed[-1]]
                said = said[-LINES_MAX:] + [f"stderr of {entry['name']}:"] + errors[-LINES_MAX:]
                of_program[failed[-1]] = (outcome, name, reason, said)
            results += of_program
        return results
    name = os.path.basename(path).removesuffix(".tap")
    status = STATUS.search(text.rstrip())
    code = int(status.group(1)) if status else 0
    return judge(name, text, code == 0, f"exit {code}")


def count(results):
    return {k: sum(r[0] == k for r in results) for k in ("passed", "failed", "skipped")}


def group(folder, name, seconds, files):
    results = [r for path in files for r in read(path)]
    with open(os.path.join(folder, name + ".results"), "w") as file:
        json.dump({"group": name, "results": [r[:3] for r in results]}, file)
    numbers = count(results)
    words = "no tests" if not results else "{passed} passed, {failed} failed, {skipped} skipped".format(**numbers)
    print(f"{name}: {words} ({seconds} s)", flush=True)
    for outcome, test, reason, said in results:
        if outcome == "failed":
            print(f"  failed: {test}{': ' + reason if reason else ''}")
            for line in said[-2 * LINES_MAX - 1:]:
                print(f"    {line}")
    sys.stdout.flush()


def close(folder):
    results = []
    for entry in sorted(os.listdir(folder)):
        if entry.endswith(".results"):
            with open(os.path.join(folder, entry)) as file:
                data = json.load(file)
            results += [(o, f"{data['group']}: {n}", r) for o, n, r in data["results"]]
    for outcome, name, reason in results:
        if outcome == "skipped":
            print(f"skipped: {name}: {reason or 'no reason given'}")
    for outcome, name, reason in results:
        if outcome == "failed":
            print(f"failed: {name}{': ' + reason if reason else ''}")
    numbers = count(results)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**numbers), flush=True)
    return 1 if numbers["failed"] or not numbers["passed"] else 0


if __name__ == "__main__":
    if sys.argv[1] == "group":
        group(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    else:
        sys.exit(close(sys.argv[2]))
