"""The counting itself: a crash, a short plan and an empty run must never look like success. Prints TAP."""
import io
import json
import os
import tempfile
from contextlib import redirect_stdout

import summary

CASES = [
    # meson's result, stdout, (passed, failed, skipped)
    ("OK", "1..2\nok - a::b  (0.00s)\nok - a::c\n", (2, 0, 0)),
    ("OK", "1..2\nok 1 - a.b\nok 2 - a.c # SKIP no device\n", (1, 0, 1)),
    ("FAIL", "1..2\nok - a::b\nnot ok - a::c unexpected signal\n", (1, 1, 0)),
    ("ERROR", "1..2\nok - a::b\n", (1, 1, 0)),
    ("OK", "1..2\nok - a::b\n", (1, 1, 0)),
    ("TIMEOUT", "", (0, 1, 0)),
    ("FAIL", "1..1\nok 1 - a.b\n", (1, 1, 0)),
    ("OK", "no TAP at all\n", (1, 0, 0)),
    ("SKIP", "", (0, 0, 1)),
    ("OK", "1..0\n", (0, 0, 0)),
]

# what a failed test said is seen: stdout, stderr, and what the last lines must say
SAID = [
    ("1..1\n# a.c:7: x is 3, expected 4\nnot ok 1 - a.b\n", "", "failed: g: a.b: a.c:7: x is 3, expected 4"),
    ("TAP version 13\n1..1\nnot ok - a::b  (0.00s)\n  ---\n  assertions: 1\n  failures:\n  - a.c:7: |+\n      Assertion failed: x is 3\n"
     "  ...\n", "", "failed: g: a::b: a.c:7: Assertion failed: x is 3"),
    ("1..1\nnot ok - a::b unexpected signal after a.c:7\n", "a.c:9: assertion\n", "failed: g: a::b: unexpected signal after a.c:7"),
    ("1..2\nok 1 - a.b\n", "", "failed: g: t0: FAIL: 1 results of 2 planned, the last of them a.b"),
]


def counted(cases, stderr=""):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log.json")
        with open(path, "w") as file:
            for i, (result, stdout) in enumerate(cases):
                file.write(json.dumps({"name": f"t{i}", "result": result, "stdout": stdout, "stderr": stderr}) + "\n")
        out = io.StringIO()
        with redirect_stdout(out):
            summary.group(folder, "g", "1.0", [path])
            code = summary.close(folder)
        return code, out.getvalue().splitlines()


def main():
    print(f"1..{len(CASES) + len(SAID) + 4}")
    number = 0

    def report(good, name):
        nonlocal number
        number += 1
        print(f"{'ok' if good else 'not ok'} {number} - summary.{name}")
        return good

    all_good = True
    for i, (result, stdout, want) in enumerate(CASES):
        code, lines = counted([(result, stdout)])
        good = lines[-1] == "%d passed, %d failed, %d skipped" % want and code == (1 if want[1] or not want[0] else 0)
        all_good &= report(good, f"case_{i}_{result.lower()}")
    code, lines = counted([])
    all_good &= report(code == 1 and lines[-1] == "0 passed, 0 failed, 0 skipped", "nothing_ran_is_a_failure")
    code, lines = counted([("OK", "1..2\n# skip: no device\nok 1 - a.b # SKIP\nok 2 - a.c\n")])
    all_good &= report("skipped: g: a.b: no device" in lines, "skips_keep_their_reason")
    for i, (stdout, stderr, want) in enumerate(SAID):
        code, lines = counted([("FAIL", stdout)], stderr)
        all_good &= report(want in lines and all("    " + line in lines for line in stderr.splitlines()), f"what_was_said_{i}")
    code, lines = counted([("FAIL", "1..2\n# of the first\nok 1 - a.b\n# of the second\n# at last\nnot ok 2 - a.c\n")])
    all_good &= report("    # of the second" in lines and "    # of the first" not in lines and "failed: g: a.c: at last" in lines,
                       "comments_belong_to_the_result_behind_them")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.tap")
        with open(path, "w") as file:
            file.write("1..3\nok 1 - a\n# status 137\n")
        results = summary.read(path)
        all_good &= report([r[0] for r in results] == ["passed", "failed"], "a_killed_script_fails")
    return 0 if all_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
