"""Programs as they ship can inject no faults: nothing of it is in them. Prints TAP.

    check_faults_absent.py BUILT PROGRAM...   BUILT: yes when these are programs of a build with -Dfaults=true
"""
import os
import re
import subprocess
import sys

# of what injects; `faults_create` and the like are there in every build, where they say that they are not built
INJECTS = re.compile(r"\b(faults_(?:hit|next|flip_bit|random|stall_ns|delay_ns)|fault_send_\w+|held_release|stall_begin)\b")


def symbols(program):
    text = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    assert " main" in text, f"{program}: stripped, or no program"
    return sorted({m.group(0) for m in INJECTS.finditer(text)})


def main(built, programs):
    print(f"1..{len(programs)}")
    for number, program in enumerate(programs, 1):
        found = symbols(program)
        help_text = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
        offered = "--faults" in help_text
        refused = subprocess.run([program, "--faults", "seed=1", "--model", "x"], capture_output=True, text=True)
        if built:
            good = bool(found) and offered
        else:
            good = not found and not offered and refused.returncode == 2 and "faults" in refused.stderr
        print("ok" if good else "not ok", f"{number} - faults_absent.{os.path.basename(program)}")
        if not good:
            print(f"#   {'with' if built else 'without'} -Dfaults=true: symbols {found}, --faults in --help: {offered}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] == "yes", sys.argv[2:]))
