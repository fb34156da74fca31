#!/usr/bin/env python3
"""Compares logits that another engine has dumped with the reference's, by script: KL divergence, top-1, greatest error.

    compare_logits.py MODEL.gguf DUMP [--sequences sequences.bin]

The reference is computed here (transformers in float32), sequence by sequence. A dump is little endian:

    "BLGT0001", u32 vocab, then for each sequence until the end of the file:
        u32 tokens, u32 ids[tokens], f32 logits[tokens][vocab]

logits[i] are those after ids[0..i]. A sequence may be any, of any length; where it is a prefix of one in sequences.bin it is
counted under that one's script, else under "other". 12,800 positions of 49,152 are 2.5 GB, so dumps are not kept.
divergence.json has llama.cpp's numbers on the same positions.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True
import references  # noqa: E402
from make_logits_golden import forward, log_softmax, read_sequences  # noqa: E402


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("dump")
    parser.add_argument("--sequences", default=os.path.join(here, "sequences.bin"))
    args = parser.parse_args()
    known = read_sequences(args.sequences)
    model = references.model_load(args.model)
    totals = {}
    with open(args.dump, "rb") as file:
        head = file.read(12)
        if head[:8] != b"BLGT0001":
            sys.exit("%s: not a dump of logits" % args.dump)
        vocab, = struct.unpack("<I", head[8:])
        while True:
            raw = file.read(4)
            if not raw:
                break
            tokens, = struct.unpack("<I", raw)
            ids = np.frombuffer(file.read(4 * tokens), "<u4").tolist()
            other = np.frombuffer(file.read(4 * tokens * vocab), "<f4").reshape(tokens, vocab)
            name = next((n for n, s in known if s[:tokens] == ids), "other")
            reference = forward(model, ids)
            p, q = log_softmax(reference), log_softmax(other)
            kl = (np.exp(p) * (p - q)).sum(-1)
            for key in (name, "all"):
                entry = totals.setdefault(key, {"positions": 0, "kl": 0.0, "top1": 0.0, "error": 0.0})
                entry["positions"] += tokens
                entry["kl"] += float(kl.sum())
                entry["top1"] += float((p.argmax(-1) == q.argmax(-1)).sum())
                entry["error"] = max(entry["error"], float(np.abs(reference - other).max()))
    for entry in totals.values():
        entry["kl"] /= entry["positions"]
        entry["top1"] /= entry["positions"]
    json.dump(totals, sys.stdout, indent=1)
    print()


main()
