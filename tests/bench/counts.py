#!/usr/bin/env python3
"""What of the kernels' speed is the same on every run: instructions, counted, in a file that a change is reviewed with.

usage: counts.py BUILD FILE

Plain C and AVX2: instructions of each case of count_kernels, by callgrind. AVX-512, which need not run here: the innermost
loops of each function that has vectors in its loop, from the disassembly: instructions, and those of them that move a
vector to or from the stack (spills). Writes FILE and prints what differs from what it held. The numbers belong to a compiler,
which is named.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile


def callgrind(build, isa):
    """Instructions of each case."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(build, "tests/bench/count_kernels")
        result = subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=counted",
                                 "--dump-after=counted", f"--callgrind-out-file={folder}/out", program, isa],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        counts = []
        for number in range(1, len(result.stdout.split()) + 1):
            with open(f"{folder}/out.{number}") as file:
                counts.append(int(re.search(r"^(?:summary|totals): (\d+)", file.read(), re.MULTILINE)[1]))
    return dict(zip(result.stdout.split(), counts, strict=True))


def functions(path):
    """Name and instructions, (address, text), of each function."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    for part in re.split(r"\n\n", text):
        head = re.match(r"[0-9a-f]+ <(.+)>:", part)
        if head:
            yield head[1], [(int(a, 16), rest.strip()) for a, rest in re.findall(r"^ *([0-9a-f]+):\t(.+)$", part, re.MULTILINE)]


def loops(lines):
    """The innermost loops with zmm registers, as [instructions, vectors moved to or from the stack], largest first."""
    spans = []
    for address, text in lines:
        jump = re.match(r"j\w+ +([0-9a-f]+)", text)
        if jump and lines[0][0] <= int(jump[1], 16) <= address:
            spans.append((int(jump[1], 16), address))
    found = []
    for begin, end in spans:
        if any((b, e) != (begin, end) and begin <= b and e <= end for b, e in spans):
            continue
        body = [text for address, text in lines if begin <= address <= end]
        if any("zmm" in text for text in body):
            found.append([len(body), sum("zmm" in text and re.search(r"\(%r[sb]p", text) is not None for text in body)])
    return sorted(found, reverse=True)


def disassembly(build):
    result = {}
    for path in sorted(glob.glob(os.path.join(build, "kernels/libkernels_avx512*.p/*.o"))):
        for name, lines in functions(path):
            found = loops(lines)
            if found:
                result[f"{os.path.basename(path)[4:-4]}:{name}"] = found
    return result


def flat(value, path=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}/{key}")
    else:
        yield path, value


def main():
    build, path = sys.argv[1:]
    compiler = subprocess.run(["cc", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[0]
    counts = {"compiler": compiler, "instructions": {isa: callgrind(build, isa) for isa in ("plain", "avx2")},
              "avx512_loops": disassembly(build)}
    before = {}
    if os.path.exists(path):
        with open(path) as file:
            before = dict(flat(json.load(file)))
    for key, value in flat(counts):
        old = before.get(key)
        if old != value:
            more = f" ({100 * (value / old - 1):+.1f} %)" if isinstance(value, int) and isinstance(old, int) else ""
            print(f"{key}: {old} -> {value}{more}")
    with open(path, "w") as file:
        text = json.dumps(counts, indent=1)
        file.write(re.sub(r"\[[\s\d,\[\]]+\]", lambda lists: " ".join(lists[0].split()), text) + "\n")


main()
