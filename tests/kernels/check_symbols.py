"""The kernels' library must not use libm's transcendental functions: glibc picks their variants at run time, so an answer
could differ between machines (docs/NUMERICS.md). fma and fmaf are correctly rounded in every variant and therefore allowed.

usage: check_symbols.py LIBRARY.a"""
import re
import subprocess
import sys

BASES = ("exp exp2 exp10 expm1 log log2 log10 log1p pow sin cos tan sincos asin acos atan atan2 sinh cosh tanh "
         "asinh acosh atanh cbrt hypot erf erfc tgamma lgamma").split()
FORBIDDEN = re.compile(r"^(__)?(%s)(f|l|f16|f32|f64|f128)?(_finite)?$" % "|".join(BASES))


def undefined(path):
    text = subprocess.run(["nm", "-u", path], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in text.splitlines() if line.strip().startswith("U ")}


def main():
    for name in ("expf", "__expf_finite", "powf", "sincosf", "log"):
        assert FORBIDDEN.match(name), name  # the check itself catches what it must
    for name in ("fmaf", "fma", "memcpy", "logger", "sqrtf"):
        assert not FORBIDDEN.match(name), name
    symbols = undefined(sys.argv[1])
    if not symbols:
        sys.exit("no undefined symbols at all: the wrong file?")
    found = sorted(s for s in symbols if FORBIDDEN.match(s))
    if found:
        sys.exit("the kernels use libm's " + ", ".join(found))
    print("%d undefined symbols, no transcendental function among them" % len(symbols))


main()
