"""Runs the test_* functions of a module and prints TAP, so that every end-to-end file is a program of its own.

A test fails by an exception, and is skipped by raising Skip(reason). `python test_x.py NAME...` runs only those tests.
"""
import os
import sys
import time
import traceback


class Skip(Exception):
    """The test cannot run here; the message says why."""


def main(module_globals):
    tests = [(n, f) for n, f in module_globals.items() if n.startswith("test_") and callable(f)]
    wanted = sys.argv[1:]
    if wanted:
        tests = [(n, f) for n, f in tests if n in wanted]
    suite = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    print(f"1..{len(tests)}", flush=True)
    failed = 0
    for number, (name, function) in enumerate(tests, 1):
        started = time.monotonic()
        try:
            function()
        except Skip as skip:
            print(f"ok {number} - {suite}.{name} # SKIP {skip}", flush=True)
            continue
        except BaseException as error:  # a test must never take the others with it
            failed += 1
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
            print(f"not ok {number} - {suite}.{name}", flush=True)
            if isinstance(error, KeyboardInterrupt):
                break
            continue
        print(f"ok {number} - {suite}.{name} # {time.monotonic() - started:.1f} s", flush=True)
    sys.exit(1 if failed or not tests else 0)
