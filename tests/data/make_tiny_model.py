#!/usr/bin/env python3
"""Writes a tiny random Llama model as GGUF, for tests that need thousands of requests or hostile variants of a file.

    make_tiny_model.py --vocab-from demo.gguf tiny.gguf [--type q4_1] [--layers 4] [--hidden 64] [--heads 4] [--kv-heads 2]
                       [--head-dim N] [--ffn 128] [--context 2048] [--seed 1] [--untied]

Tokenizer and chat template are taken from the given file as they stand, or, without --vocab-from, made here: the 256 bytes, a
few merges and the special tokens (some 290 tokens: no other file needed). Weights are pseudo-random, the same for the same
arguments on every machine; norms are near 1; scales are chosen so that logits spread and answers depend on the context.
Standard library only, about a second.
"""
import argparse
import array
import hashlib
import math
import struct
import sys

F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
TYPES = {"f32": F32, "f16": F16, "q4_0": Q4_0, "q4_1": Q4_1, "q8_0": Q8_0, "bf16": BF16}
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "bf16": 32}
U32, I32, FLOAT, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def text_bytes(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def kv(key, kind, value):
    head = text_bytes(key) + struct.pack("<I", kind)
    if kind == TEXT:
        return head + text_bytes(value)
    return head + struct.pack({U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}[kind], value)


def kv_array(key, kind, values):
    head = text_bytes(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
    if kind == TEXT:
        return head + b"".join(map(text_bytes, values))
    return head + struct.pack("<%di" % len(values), *values)


def tokenizer_keys_of(path):
    """The raw key-value entries tokenizer.* of a GGUF file and its vocabulary's size."""
    import mmap
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, version, _, count = struct.unpack_from("<4sIQQ", data, 0)
    if magic != b"GGUF" or version not in (2, 3):
        sys.exit("%s: not a GGUF file of version 2 or 3" % path)
    at, entries, vocab = 24, [], 0
    for _ in range(count):
        start = at
        length, = struct.unpack_from("<Q", data, at)
        key = data[at + 8:at + 8 + length].decode()
        at += 8 + length
        kind, = struct.unpack_from("<I", data, at)
        at += 4
        if kind == TEXT:
            at += 8 + struct.unpack_from("<Q", data, at)[0]
        elif kind == ARRAY:
            element, elements = struct.unpack_from("<IQ", data, at)
            at += 12
            if key == "tokenizer.ggml.tokens":
                vocab = elements
            if element == TEXT:
                for _ in range(elements):
                    at += 8 + struct.unpack_from("<Q", data, at)[0]
            else:
                at += elements * SIZES[element]
        else:
            at += SIZES[kind]
        if key.startswith("tokenizer."):
            entries.append(data[start:at])
    return entries, vocab


TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are tiny.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def tokenizer_keys_built_in():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet, extra = {}, 0
    for byte in range(256):
        if 0x21 <= byte <= 0x7e or 0xa1 <= byte <= 0xac or 0xae <= byte:
            alphabet[byte] = chr(byte)
        else:
            alphabet[byte] = chr(256 + extra)
            extra += 1
    tokens = specials + [alphabet[b] for b in range(256)]
    space = alphabet[0x20]
    merges = []
    for pair in ("%s t|h e|%st he|i n|e r|a n|o n|r e|%s a|a t|e n|%s s|%s w|o r|i s|i t|e s|n d|%s c|%s o|in g|%s i|e d|"
                 "%sa nd|a l|a a|aa aa|0 0|l o|l l|e ll|u r|i c|o u|o m|s t|c h|g h|s e|u n|! !"
                 % ((space,) * 9)).split("|"):
        merges.append(pair)
        tokens.append(pair.replace(" ", ""))
    tokens = list(dict.fromkeys(tokens))
    kinds = [3] * len(specials) + [1] * (len(tokens) - len(specials))
    entries = [
        kv("tokenizer.ggml.model", TEXT, "gpt2"), kv("tokenizer.ggml.pre", TEXT, "smollm"),
        kv_array("tokenizer.ggml.tokens", TEXT, tokens),
        kv_array("tokenizer.ggml.token_type", I32, kinds),
        kv_array("tokenizer.ggml.merges", TEXT, merges),
        kv("tokenizer.ggml.bos_token_id", U32, 1), kv("tokenizer.ggml.eos_token_id", U32, 2),
        kv("tokenizer.ggml.add_bos_token", BOOL, False),
        kv("tokenizer.chat_template", TEXT, TEMPLATE)]
    return entries, len(tokens)


class Random:
    """Bytes from SHAKE-256 over (seed, name): the same on every machine and for every order of tensors."""

    def __init__(self, seed, name, count):
        self.bytes = hashlib.shake_256(("%d %s" % (seed, name)).encode()).digest(count)


def half(value):
    return struct.pack("<e", value)


def tensor_data(kind, name, seed, columns, rows, scale):
    """Random weights, about uniform in [-scale, scale], encoded straight into the type."""
    count = columns * rows
    if kind in (F32, BF16, F16):
        raw = Random(seed, name, 2 * count).bytes
        values = array.array("f", [(v - 32767.5) * (scale / 32768)
                                   for v in struct.unpack("<%dH" % count, raw)])
        if kind == F32:
            return values.tobytes()
        if kind == F16:
            return struct.pack("<%de" % count, *values)
        words = array.array("H", values.tobytes())
        return words[1::2].tobytes()
    blocks, out = count // 32, []
    if kind == Q8_0:
        raw = Random(seed, name, 33 * blocks).bytes
        heads = [half(scale / 128 * (0.75 + i / 1024)) for i in range(256)]
        quants = bytes(max(b, 1) ^ 0x80 for b in range(256))  # never -128
        raw_quants = raw[blocks:].translate(quants)
        for i in range(blocks):
            out.append(heads[raw[i]])
            out.append(raw_quants[32 * i:32 * i + 32])
        return b"".join(out)
    raw = Random(seed, name, 17 * blocks).bytes
    if kind == Q4_0:
        heads = [half(scale / 8 * (0.75 + i / 512)) for i in range(256)]
    else:
        heads = [half(scale / 7.5 * (0.75 + i / 512)) + half(-scale * (0.75 + i / 512) * (0.9 + (i % 16) / 80))
                 for i in range(256)]
    for i in range(blocks):
        out.append(heads[raw[i]])
        out.append(raw[blocks + 16 * i:blocks + 16 * i + 16])
    return b"".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--vocab-from", metavar="GGUF", help="take tokenizer and chat template from this file")
    parser.add_argument("--type", choices=TYPES, default="q4_1", help="of the linear weights")
    parser.add_argument("--embedding-type", choices=TYPES, help="default: q8_0, or --type when that is a float type")
    for name, value in (("layers", 4), ("hidden", 64), ("heads", 4), ("kv-heads", 2), ("ffn", 128),
                        ("context", 2048), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--head-dim", type=int, help="default: hidden / heads")
    parser.add_argument("--untied", action="store_true", help="an output.weight of its own")
    args = parser.parse_args()

    entries, vocab = tokenizer_keys_of(args.vocab_from) if args.vocab_from else tokenizer_keys_built_in()
    head_dim = args.head_dim or args.hidden // args.heads
    quantised = args.type not in ("f32", "f16", "bf16")
    linear = TYPES[args.type]
    embedding = TYPES[args.embedding_type or ("q8_0" if quantised else args.type)]
    if quantised and any(size % 32 for size in (args.hidden, args.ffn, args.heads * head_dim)):
        sys.exit("hidden, ffn and heads * head-dim must be multiples of 32 for %s" % args.type)

    keys = [
        kv("general.architecture", TEXT, "llama"), kv("general.type", TEXT, "model"),
        kv("general.name", TEXT, "tiny-%s-%d" % (args.type, args.seed)),
        kv("general.file_type", U32, FILE_TYPES[args.type]), kv("general.alignment", U32, ALIGNMENT),
        kv("llama.block_count", U32, args.layers), kv("llama.context_length", U32, args.context),
        kv("llama.embedding_length", U32, args.hidden), kv("llama.feed_forward_length", U32, args.ffn),
        kv("llama.attention.head_count", U32, args.heads),
        kv("llama.attention.head_count_kv", U32, args.kv_heads),
        kv("llama.attention.key_length", U32, head_dim),
        kv("llama.attention.value_length", U32, head_dim),
        kv("llama.rope.dimension_count", U32, head_dim), kv("llama.rope.freq_base", FLOAT, 10000.0),
        kv("llama.attention.layer_norm_rms_epsilon", FLOAT, 1e-5), kv("llama.vocab_size", U32, vocab),
    ] + entries

    # Uniform in [-s, s] has variance s^2/3: this keeps activations near 1 through a layer, and logits a few units wide.
    def spread(columns, gain):
        return gain * math.sqrt(3 / columns)

    tensors = [("token_embd.weight", embedding, args.hidden, vocab, spread(args.hidden, 3.0))]
    q, kv_width = args.heads * head_dim, args.kv_heads * head_dim
    for i in range(args.layers):
        for name, columns, rows, gain in (
                ("attn_q", args.hidden, q, 1.5), ("attn_k", args.hidden, kv_width, 1.5),
                ("attn_v", args.hidden, kv_width, 1.5), ("attn_output", q, args.hidden, 1.0),
                ("ffn_gate", args.hidden, args.ffn, 1.5), ("ffn_up", args.hidden, args.ffn, 1.5),
                ("ffn_down", args.ffn, args.hidden, 1.0)):
            tensors.append(("blk.%d.%s.weight" % (i, name), linear, columns, rows, spread(columns, gain)))
        tensors.append(("blk.%d.attn_norm.weight" % i, None, args.hidden, 1, 0.2))
        tensors.append(("blk.%d.ffn_norm.weight" % i, None, args.hidden, 1, 0.2))
    tensors.append(("output_norm.weight", None, args.hidden, 1, 0.2))
    if args.untied:
        tensors.append(("output.weight", embedding, args.hidden, vocab, spread(args.hidden, 3.0)))

    infos, data, offset = [], [], 0
    for name, kind, columns, rows, scale in tensors:
        if kind is None:  # a norm: F32 near 1
            values = array.array("f", tensor_data(F32, name, args.seed, columns, 1, scale))
            block = array.array("f", [1 + v for v in values]).tobytes()
            shape, kind = (columns,), F32
        else:
            block = tensor_data(kind, name, args.seed, columns, rows, scale)
            shape = (columns, rows)
        infos.append(text_bytes(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, kind, offset))
        block += bytes(-len(block) % ALIGNMENT)
        data.append(block)
        offset += len(block)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(infos)
    with open(args.output, "wb") as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        file.write(b"".join(data))


main()
