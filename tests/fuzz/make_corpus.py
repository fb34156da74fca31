#!/usr/bin/env python3
"""Writes the first inputs of the corpora for GGUF and the tokenizer: small, valid, and each different in kind.

    make_corpus.py CORPUS_FOLDER
"""
import os
import struct
import subprocess
import sys

folder = sys.argv[1]
maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "make_tiny_model.py")
for name, arguments in (("q4_1", []), ("q8_0", ["--untied"]), ("f32", ["--seed", "2"]), ("f16", []), ("bf16", []),
                        ("q4_0", [])):
    subprocess.run([sys.executable, maker, os.path.join(folder, "gguf", "model-" + name), "--type", name, "--layers", "1",
                    "--hidden", "32", "--heads", "2", "--kv-heads", "1", "--ffn", "32", "--context", "64"] + arguments,
                   check=True)


def text(value):
    return struct.pack("<Q", len(value)) + value


def write(kind, name, data):
    with open(os.path.join(folder, kind, name), "wb") as file:
        file.write(data)


head = b"GGUF" + struct.pack("<I", 2)
write("gguf", "empty", head + struct.pack("<QQ", 0, 0))
write("gguf", "values", head + struct.pack("<QQ", 0, 5) + text(b"a") + struct.pack("<IQ", 8, 1) + b"x" +
      text(b"b") + struct.pack("<IIQ", 9, 8, 2) + text(b"") + text(b"\xff") + text(b"c") + struct.pack("<IIQ", 9, 5, 1) +
      struct.pack("<i", -1) + text(b"d") + struct.pack("<IB", 7, 1) + text(b"general.alignment") + struct.pack("<II", 4, 8))
write("gguf", "tensor", head + struct.pack("<QQ", 1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 8, 0, 0) + bytes(31 + 32))
write("gguf", "counts", head + struct.pack("<QQ", 1 << 63, 1 << 63))

for i, sample in enumerate((
        "", "Hello, world! It's 12:30.", "the the  the\n\n the", "<|im_start|>user\nhi<|im_end|>\n", "a" * 300, " " * 100,
        "naïve Ελληνικά слово 中文 日本語 한국어 ไทย हिन्दी عربى עברית", "😀👨‍👩‍👧🏳️‍🌈", "1234567890 ٣٤٥ ½", "a\0b\x01\x7f", "'s 'll don't '")):
    write("tokenizer", "text-%d" % i, sample.encode())
write("tokenizer", "invalid", b"ok \xe2\x82 \xed\xa0\x80 \xff")
