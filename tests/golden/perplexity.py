#!/usr/bin/env python3
"""Perplexity of a text by the reference: transformers in float32, over the windows of perplexity.h.

    perplexity.py MODEL.gguf TEXT

"""
import math
import os
import sys

sys.dont_write_bytecode = True
import references  # noqa: E402

WINDOW, STRIDE = 1024, 512


def main():
    import torch
    model_path, text_path = sys.argv[1:]
    backend = references.tokenizer_load(model_path).backend_tokenizer
    with open(text_path, encoding="utf-8") as file:
        ids = backend.encode(file.read(), add_special_tokens=False).ids
    model = references.model_load(model_path)
    total, scored, at = 0.0, 0, 0
    while at == 0 or at + STRIDE < len(ids):
        window = torch.tensor(ids[at:at + WINDOW])
        first = WINDOW - STRIDE if at else 1
        with torch.no_grad():
            logits = model(window[None, :]).logits[0, first - 1:-1].double()
        total += torch.nn.functional.cross_entropy(logits, window[first:], reduction="sum").item()
        scored += len(window) - first
        at += STRIDE
    mean = total / scored
    print("transformers float32: %d of %d tokens scored, -ln p %.6f, perplexity %.4f"
          % (scored, len(ids), mean, math.exp(mean)))


main()
