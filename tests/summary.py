"""Counts what the tests really did, from their own output, and prints the closing line of `./dev test`.

    summary.py group DIR GROUP SECONDS FILE...   FILE: meson's testlog.json, or TAP of one script (*.tap)
    summary.py close DIR                         last line: "N passed, N failed, N skipped"

Each TAP line is one test. A program that ends with an error, early, or with fewer lines than its plan is a failure of its
own, so that nothing that crashed can pass for "no failures".
"""
import json
import os
import re
import sys

LINE = re.compile(r"(not )?ok\b\s*(\d+)?\s*(?:-\s*)?(.*)")
PLAN = re.compile(r"1\.\.(\d+)")
STATUS = re.compile(r"# status (\d+)$")
TIME = re.compile(r"\s*(\(\d+\.\d+s\)|# \d+\.\d+ s)\s*$")


def parse_tap(text):
    """Results as (outcome, name, reason), and the plan's count (None: no plan)."""
    results, plan, reason_before = [], None, ""
    for line in text.splitlines():
        match = PLAN.match(line)
        if match and plan is None:
            plan = int(match.group(1))
            continue
        if line.startswith("# skip: "):
            reason_before = line[len("# skip: "):]
            continue
        match = LINE.match(line)
        if not match:
            continue
        name, _, reason = match.group(3).partition("# SKIP")
        skipped = "# SKIP" in match.group(3)
        name = TIME.sub("", name.strip())
        outcome = "failed" if match.group(1) else "skipped" if skipped else "passed"
        results.append((outcome, name, (reason.strip() or reason_before) if skipped else ""))
        reason_before = ""
    return results, plan


def judge(program, text, ended_well, how):
    """All results of one program."""
    results, plan = parse_tap(text)
    if plan is None:
        if how == "SKIP":
            return [("skipped", program, "the test says so")]
        return results + [("passed" if ended_well else "failed", program, "" if ended_well else how)]
    if len(results) != plan:
        results.append(("failed", program, f"{len(results)} results of {plan} planned"))
    elif not ended_well and not any(r[0] == "failed" for r in results):
        results.append(("failed", program, f"all of its tests passed, but it ended with: {how}"))
    return results


def read(path):
    with open(path, errors="replace") as file:
        text = file.read()
    if path.endswith(".json"):
        results = []
        for line in text.splitlines():
            entry = json.loads(line)
            how = entry["result"]
            results += judge(entry["name"], entry.get("stdout") or "", how in ("OK", "EXPECTEDFAIL"), how)
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
        json.dump({"group": name, "results": results}, file)
    numbers = count(results)
    words = "no tests" if not results else "{passed} passed, {failed} failed, {skipped} skipped".format(**numbers)
    print(f"{name}: {words} ({seconds} s)", flush=True)
    for outcome, test, reason in results:
        if outcome == "failed":
            print(f"  failed: {test}{': ' + reason if reason else ''}")


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
