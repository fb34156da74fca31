#!/usr/bin/env python3
"""Writes tokenizer.bin and chat.bin: strings of every script with the reference's token ids (README.md has the formats).

    make_tokenizer_golden.py MODEL.gguf OUTPUT_FOLDER [--llama FOLDER_OF_LIBLLAMA]

The reference is transformers with the pre-tokenizer repaired (references.py); `encode_special_tokens` gives the ids of plain
text. With --llama every string is tokenised by llama.cpp as well, and the script fails on a difference that is not one of
the two known ones:

  * numbers that are newer than llama.cpp's Unicode tables;
  * bytes that the vocabulary lacks: both leave them out, but transformers lets their neighbours merge.

Strings are made from a fixed seed.
"""
import argparse
import json
import os
import random
import struct
import sys
import unicodedata

sys.dont_write_bytecode = True
import references  # noqa: E402
import texts  # noqa: E402

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>",
            "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>",
            "<jupyter_code>", "<jupyter_output>", "<jupyter_script>", "<empty_output>"]
NEW_NUMBERS = [(0x10d40, 0x10d49), (0x116d0, 0x116e3), (0x11bf0, 0x11bf9), (0x11de0, 0x11de9), (0x16130, 0x16139),
               (0x16d70, 0x16d79), (0x16ff4, 0x16ff6), (0x1ccf0, 0x1ccf9), (0x1e5f1, 0x1e5fa)]
LACKING_CONTROLS = "\x04\x06\x13\x14\x16\x1d"  # and the lead bytes f1, f2: U+40000 to U+BFFFF


def known_difference(text):
    return any(c in LACKING_CONTROLS or 0x40000 <= ord(c) < 0xc0000 or
               any(a <= ord(c) <= b for a, b in NEW_NUMBERS) for c in text)


HAND_WRITTEN = [
    "", " ", "  ", "\n", "\n\n", "\r\n", "\t", "a", " a", "  a", "a ", "a  ", "7", " 7", "\n\n7", "42", "3.14159", "1,000,000",
    "2026-11-29T17:30:00Z", "x1y22z333", "I'm you're he's we've they'll I'd don't", "I'M YOU'RE HE'S", "'s", " 's", "'sabc",
    "''s", "'re're", "'ll ", "'lx", "'r", "'v", "'", "''", "!'s", "a's b't", "don’t", "it's  it's\n'sit", "it's 5 o'clock",
    "Hello, world!", "hello\0world", "\0", "\0\0\0 \0", "\x7f", "\x1f a", "\ufeffbom", "a\u200bb", "zero\u200dwidth",
    "soft\u00adhyphen", "a\u00a0b", "\u00a0 \u00a0", "\u3000全角　空白", "a\u2028b\u2029c", "a\x85b", "a\x1cb", "\u180e",
    "naïve café", "cafe\u0301", "Z\u0351\u036b\u0343\u032a\u0302\u036b\u033d", "İstanbul ıI", "ǅ ǈ", "ﬁ ﬂ", "ℌℍℕ", "①②③ ⅣⅤ ½ ¾ ²³",
    "٠١٢٣ ०१२३ 〇一二三 𝟘𝟙𝟚", "৳₹€£¥₿", "😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇯🇵", "☎️", "❤️‍🔥", "🤷🏾‍♀️ ok",
    "if (a < b && c > d) { return a->x[i++]; }", "for(;;){}", "a += b; // comment", "\t\tindent\n\t\t\tmore", "    four\n        eight",
    "<div class=\"x\">&amp;</div>", "SELECT * FROM t WHERE x='1';--", "C:\\Users\\x\\n", "http://user:pw@host:80/p?q=1#f",
    "foo@example.com", "snake_case camelCase PascalCase kebab-case", "$$\\int_0^1 x^2\\,dx = \\frac{1}{3}$$", "==== ---- ____ ....",
    "!!!???...", "*** bold **", "a\u0300\u0301\u0302", "\u0301leading", "ก็ที่ น้ำ", "שָׁלוֹם", "مُحَمَّد", "क्षत्रिय", "ＡＢＣ１２３", "\U0001f1e6", "\U0010ffff",
    "\ufffd", "\ufffe\uffff", "=\x04=", "!\x1d\x1d!", "\U00050000", "=\U00050000=", "tab\tand  two", "end  ", "  \n  \n", "\n \n", " \n", "\n ",
    "a\n\nb", "a \n b", "a\r\n\r\nb", "1\n2\n3", "1  2", "a 1  b  2", "$1", "1$", "1a", "a1", " 1a", "-1", "+1", "1+1=2",
]


def random_texts(rng):
    assigned = [c for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    chunks = {}
    for c in assigned:
        wide = 0x3400 <= c < 0xa000 or 0xac00 <= c < 0xd800 or 0x17000 <= c < 0x18d00 or c >= 0x20000
        chunks.setdefault(c // (2048 if wide else 64), []).append(c)
    for chunk in chunks.values():  # every block of every script
        for kind in range(2):
            word = []
            for _ in range(rng.randint(8, 24)):
                word.append(chr(rng.choice(chunk)))
                if rng.random() < 0.2:
                    word.append(rng.choice([" ", "  ", "\n", "1", "a", ".", "'s", "\u0301", " -"]))
            yield "".join(word)
    spaces = [" ", " ", "\t", "\n", "\r", "\u00a0", "\u3000", "\u2009", "\x0b", "\x0c", "\x85", "\u2028"]
    for _ in range(250):
        yield "".join(rng.choice(rng.choice([spaces, spaces, ["a", "The", "1", "23", "!", "'s", "é", "中", "'", "\u0301"]]))
                      for _ in range(rng.randint(2, 14)))
    for _ in range(150):
        yield "".join(rng.choice("'’\" srtvemldSTRE1 \n") for _ in range(rng.randint(2, 16)))
    for _ in range(120):  # anything at all
        yield "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(rng.randint(2, 20)))
                      if not 0xd800 <= c < 0xe000)
    for _ in range(150):  # ASCII, control characters included
        yield "".join(chr(rng.randrange(128)) for _ in range(rng.randint(2, 40)))
    for _ in range(150):
        parts = SPECIALS + ["<|", "|>", "<|im_", "im_start|>", "<", ">", " ", "\n", "user\n", "x", "1", "<|im_start", "<<", ">>"]
        yield "".join(rng.choice(parts) for _ in range(rng.randint(1, 8)))
    emoji = [chr(c) for c in list(range(0x1f300, 0x1f6ff)) + list(range(0x1f900, 0x1f9ff)) + list(range(0x2600, 0x27bf))]
    for _ in range(80):
        yield "".join(rng.choice(emoji) + rng.choice(["", "", "\u200d", "\ufe0f", "\U0001f3fd", " ", "a"])
                      for _ in range(rng.randint(1, 8)))
    lines = [line for _, text in texts.TEXTS for line in text.splitlines() if line.strip()]
    for _ in range(250):  # pieces of real text, cut anywhere and glued
        text = ""
        for _ in range(rng.randint(1, 3)):
            line = rng.choice(lines)
            start = rng.randrange(len(line))
            text += line[start:start + rng.randint(1, 60)]
        yield text
    words = "the The THE of and in ing ingly über straße año être мир слово λόγος 日本語 中文 한국어 שלום سلام हिन्दी ไทย".split()
    for _ in range(250):
        yield "".join(rng.choice([" ", "", "  ", "\n", "-", "_", ".", "/", "1", "00"]) + rng.choice(words)
                      for _ in range(rng.randint(1, 8)))
    for char in ("a", " ", "\n", "=", "1", "é", "中", "😀", "ab", " a", "\n ", "- ", "Aa", "\u0301"):
        yield char * 257


def conversations(rng):
    roles, contents = ["user", "assistant"], [t for t in HAND_WRITTEN if not known_difference(t)]
    contents += [text for _, text in texts.TEXTS] + texts.CHAT_PROMPTS
    # A literal mark in a content is text to Baton, but a mark to transformers: not comparable, tested by hand.
    contents = [c for c in contents if not any(s in c for s in SPECIALS)]
    for content in contents:
        yield [("user", content)], True
    for i in range(150):
        messages = [("system", rng.choice(contents))] if rng.random() < 0.5 else []
        for turn in range(rng.randint(1, 5)):
            messages.append((roles[turn % 2], rng.choice(contents)))
        yield messages, rng.random() < 0.7
    yield [("system", "Only a system prompt.")], False
    yield [("assistant", "I begin.")], True
    yield [("user", "a"), ("user", "b"), ("system", "late")], True


def ids_bytes(ids):
    return struct.pack("<I%dH" % len(ids), len(ids), *ids)


def text_bytes(text):
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--llama")
    args = parser.parse_args()
    tokenizer = references.tokenizer_load(args.model)
    backend = tokenizer.backend_tokenizer
    llama = references.Llama(args.llama, args.model) if args.llama else None
    rng = random.Random(20261129)

    strings = list(dict.fromkeys(HAND_WRITTEN + [t for _, t in texts.TEXTS] + texts.PROMPTS + list(random_texts(rng))))
    out, known, unknown = [], 0, []
    for text in strings:
        found = []
        for parse_special in (False, True):
            backend.encode_special_tokens = not parse_special
            ids = backend.encode(text, add_special_tokens=False).ids
            found.append(ids)
            if llama and llama.tokenize(text, parse_special) != ids:
                if known_difference(text):
                    known += 1
                else:
                    unknown.append(text)
        same = found[0] == found[1]
        out.append(text_bytes(text) + ids_bytes(found[0]) +
                   (struct.pack("<I", 0xffffffff) if same else ids_bytes(found[1])))
    if unknown:
        sys.exit("llama.cpp differs on %d strings, such as %r" % (len(unknown), unknown[:5]))
    with open(os.path.join(args.output, "tokenizer.bin"), "wb") as file:
        file.write(b"BTOK0001" + struct.pack("<I", len(strings)) + b"".join(out))

    backend.encode_special_tokens = False
    out = []
    for messages, prompt in conversations(rng):
        text = tokenizer.apply_chat_template([{"role": r, "content": c} for r, c in messages],
                                             tokenize=False, add_generation_prompt=prompt)
        ids = backend.encode(text, add_special_tokens=False).ids
        if llama and llama.tokenize(text, True) != ids:
            sys.exit("llama.cpp differs on the conversation %r" % messages)
        out.append(struct.pack("<BI", prompt, len(messages)) +
                   b"".join(text_bytes(r) + text_bytes(c) for r, c in messages) + ids_bytes(ids))
    with open(os.path.join(args.output, "chat.bin"), "wb") as file:
        file.write(b"BCHT0001" + struct.pack("<I", len(out)) + b"".join(out))
    summary = {"strings": len(strings), "conversations": len(out), "second_witness": bool(llama),
               "known_differences_to_llama_cpp": known,
               "end_ids": llama.end_ids() if llama else None}
    print(json.dumps(summary))


main()
