"""Fails on an #include that points the wrong way between folders; first it proves that it would. Prints TAP.

    layers.py ROOT
"""
import os
import re
import sys

# folder: what its files may include besides themselves
BELOW = {
    "base": [],
    "proto": ["base"],
    "kernels": ["base"],
    "kvtransfer": ["base"],
    "model": ["base"],
    "sched": ["base"],
    "plan": ["base", "sched"],
    "engine": ["base", "kernels", "model", "sched"],
    "node": ["base", "proto", "kvtransfer", "sched", "model", "engine"],
    "router": ["base", "proto", "model", "sched", "plan"],
}
ROLE = ["base", "proto", "kernels", "kvtransfer", "model", "sched", "engine", "node"]
BELOW["prefill_node"] = ROLE
BELOW["decode_node"] = ROLE
BELOW["client"] = ["base", "proto", "kernels", "kvtransfer", "model", "sched", "plan", "engine", "node"]
# only the two node programs' mains know both roles
BOTH_ROLES = {"prefill_node/main.c", "decode_node/main.c"}
# a library's header: the only place that may include it
HOMES = [
    (re.compile(r"grpc/"), "proto/rpc/"),
    (re.compile(r"microhttpd\.h"), "proto/http/"),
    (re.compile(r"uc[pst]/"), "kvtransfer/"),
    (re.compile(r"(cuda|cublas|nccl)"), "kernels/cuda/"),
    (re.compile(r"yaml\.h"), "base/"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def edges(path, text):
    """Complaints about one file; `path` is relative to the root."""
    folder = path.split("/")[0]
    if folder not in BELOW:
        return []
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        for pattern, home in HOMES:
            if pattern.match(target) and quote == "<" and not path.startswith(home):
                found.append(f"{path}:{number}: <{target}> belongs to {home} alone")
        other = target.split("/")[0]
        if quote != '"' or other == folder:
            continue
        if "/" not in target or other not in BELOW:
            found.append(f'{path}:{number}: "{target}" is not rooted at the repository')
        elif path in BOTH_ROLES and other in ("prefill_node", "decode_node"):
            continue
        elif other not in BELOW[folder]:
            found.append(f'{path}:{number}: {folder} must not include {other} ("{target}")')
    return found


PLANTED = [
    ("base/x.c", '#include "proto/rpc/rpc.h"'),
    ("sched/x.c", '#include "kernels/backend.h"'),
    ("sched/x.c", '#  include "engine/engine.h"'),
    ("router/x.c", '#include "kvtransfer/xfer.h"'),
    ("router/x.h", '#include "node/node.h"'),
    ("client/x.c", '#include "router/router.h"'),
    ("client/x.c", '#include "decode_node/decode.h"'),
    ("prefill_node/x.c", '#include "decode_node/decode.h"'),
    ("engine/x.c", '#include "kvtransfer/xfer.h"'),
    ("engine/x.c", '#include "engine_private.h"'),
    ("proto/http/x.c", "#include <grpc/grpc.h>"),
    ("node/x.c", "#include <ucp/api/ucp.h>"),
    ("proto/rpc/x.c", "#include <microhttpd.h>"),
]
ALLOWED = [
    ("proto/rpc/x.c", "#include <grpc/grpc.h>"),
    ("kvtransfer/ucx.c", "#include <ucp/api/ucp.h>"),
    ("engine/x.c", '#include "kernels/backend.h"'),
    ("prefill_node/main.c", '#include "decode_node/decode.h"'),
    ("node/x.c", '#include "node/node.h"\n#include <stdio.h>'),
]


def main(root):
    print("1..3")
    missed = [p for p in PLANTED if not edges(*p)]
    print("not ok" if missed else "ok", "1 - layers.planted_edges_are_caught")
    for path, text in missed:
        print(f"# not caught: {path}: {text}")
    wrong = [e for p in ALLOWED for e in edges(*p)]
    print("not ok" if wrong else "ok", "2 - layers.right_edges_pass")
    found, count = [], 0
    for folder in BELOW:
        for where, _, files in os.walk(os.path.join(root, folder)):
            for name in files:
                if name.endswith((".c", ".h", ".cu", ".cuh", ".inc")):
                    path = os.path.join(where, name)
                    with open(path, errors="replace") as file:
                        found += edges(os.path.relpath(path, root), file.read())
                    count += 1
    good = not found and count > 0
    print("ok" if good else "not ok", f"3 - layers.all_edges_point_down # {count} files")
    for line in found + wrong:
        print("#", line)
    return 0 if good and not missed and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
