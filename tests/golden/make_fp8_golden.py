#!/usr/bin/env python3
"""Writes fp8.bin: what every E4M3 code stands for, and the codes of floats at and around every boundary (README.md has the
format).

    make_fp8_golden.py OUTPUT

The reference is exact: codes are expanded by the format's own formula as fractions, and a float's code is searched among all
of them by distance. Where torch is installed its float8_e4m3fn must agree on every code and on every float that is not beyond
the format (where torch gives NaN and Baton the largest value).
"""
import random
import struct
import sys
from fractions import Fraction


def code_value(code):
    """None for NaN."""
    sign, exponent, fraction = -1 if code & 0x80 else 1, code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return None
    if exponent == 0:
        return sign * Fraction(fraction, 8) * Fraction(1, 64)
    return sign * (1 + Fraction(fraction, 8)) * Fraction(2) ** (exponent - 7)


def float_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bits_of(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


POSITIVE = [code_value(code) for code in range(0x7f)]


def encode(bits):
    sign, value = bits >> 24 & 0x80, float_of(bits & 0x7fffffff)
    if value != value or value == float("inf"):
        return sign | 0x7f
    exact = Fraction(value)
    # nearest; of two as near the one whose last bit is 0
    return sign | min(range(0x7f), key=lambda code: (abs(POSITIVE[code] - exact), code & 1))


def samples():
    rng = random.Random(8)
    out = {0, 1, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff}
    bounds = POSITIVE + [(a + b) / 2 for a, b in zip(POSITIVE, POSITIVE[1:])] + [Fraction(464), Fraction(480)]
    for bound in bounds:
        at = bits_of(float(bound))  # every one is a float
        assert Fraction(float_of(at)) == bound
        out.update(bits for bits in (at - 1, at, at + 1) if bits >= 0)
    for exponent in range(100, 145):
        out.update(exponent << 23 | rng.getrandbits(23) for _ in range(12))
    return sorted(out | {bits | 0x80000000 for bits in out})


def torch_check(floats):
    try:
        import torch
    except ImportError:
        print("torch is not installed: not cross-checked")
        return
    codes = torch.arange(256, dtype=torch.uint8)
    for code, value in enumerate(codes.view(torch.float8_e4m3fn).float().tolist()):
        want = code_value(code)
        assert (value != value) if want is None else Fraction(value) == want, code
    bits = [b for b in floats if abs(float_of(b)) <= 448 or float_of(b) != float_of(b)]
    words = torch.tensor([b - (1 << 32) if b >> 31 else b for b in bits], dtype=torch.int32)
    got = words.view(torch.float32).to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    for b, code in zip(bits, got):
        assert code == encode(b), (hex(b), code, encode(b))
    print("torch %s agrees on 256 codes and %d floats" % (torch.__version__, len(bits)))


def main():
    floats = samples()
    torch_check(floats)
    with open(sys.argv[1], "wb") as file:
        file.write(b"BFP80001")
        for code in range(256):
            value = code_value(code)
            sign = (code & 0x80) << 24
            file.write(struct.pack("<I", sign | (0x7fc00000 if value is None else bits_of(abs(float(value))))))
        file.write(struct.pack("<I", len(floats)))
        for bits in floats:
            file.write(struct.pack("<IB", bits, encode(bits)))
    print("%d floats" % len(floats))


main()
