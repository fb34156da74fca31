"""deploy/: cluster.yaml is what the three programs take, the units are what systemd takes; and the programs' keys are one vocabulary."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import tap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("BATON_BUILD", os.path.join(ROOT, "build"))
DEPLOY = os.path.join(ROOT, "deploy")
PROGRAMS = ("baton-router", "baton-prefill", "baton-decode")
SECTIONS = {"baton-router": "router", "baton-prefill": "prefill", "baton-decode": "decode"}


def run(program, *args):
    env = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    return subprocess.run([os.path.join(BUILD, program), *args], capture_output=True, text=True, timeout=60, env=env)


def keys_of(program):
    """{key: default or None} from --help."""
    text = run(program, "--help").stdout
    found = {}
    for flag, rest in re.findall(r"^  (?:-\w, |    )--([a-z0-9-]+)(.*(?:\n {20,}.*)?)", text, re.M):
        default = re.search(r"default ([^()]+)\)", rest)
        found[flag.replace("-", "_")] = default.group(1) if default else None
    for built_in in ("config", "check_config", "version", "help"):
        found.pop(built_in)
    return found


def check(program, text):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return run(program, "--config", file.name, "--check-config")


def test_cluster_yaml_is_valid_for_every_program():
    for program in PROGRAMS:
        result = run(program, "--config", os.path.join(DEPLOY, "cluster.yaml"), "--check-config")
        assert result.returncode == 0, (program, result)


def test_commented_keys_show_the_defaults():
    with open(os.path.join(DEPLOY, "cluster.yaml")) as file:
        text = file.read()
    bare = re.sub(r"^  # (\w+: \S+)(.*)$", r"  \1\2", text, flags=re.M)
    assert bare != text
    section = None
    defaults = {p: keys_of(p) for p in PROGRAMS}
    for line in text.splitlines():
        if re.match(r"\w+:$", line):
            section = line[:-1]
        match = re.match(r"  # (\w+): (\S+)", line)
        for program in PROGRAMS:
            if match and section in ("common", SECTIONS[program]) and match.group(1) in defaults[program]:
                assert defaults[program][match.group(1)] == match.group(2), (program, line, defaults[program])
    for program in PROGRAMS:
        result = check(program, bare)
        assert result.returncode == 0, (program, result)


def test_every_program_knows_the_others_keys():
    with open(os.path.join(ROOT, "base", "config_keys.c")) as file:
        listed = set(re.findall(r'^    \{"(\w+)", ', file.read(), re.M))
    used = set()
    for program in PROGRAMS:
        keys = keys_of(program)
        assert len(keys) > 5, (program, keys)
        assert not set(keys) - listed, f"base/config_keys.c lacks keys of {program}: {sorted(set(keys) - listed)}"
        used |= set(keys)
    # for tests, so not in --help: one that works everywhere, one that only builds with fault injection have
    assert listed - used == {"preempt_every", "faults"}, f"base/config_keys.c lists what no program has: {sorted(listed - used)}"
    for program in PROGRAMS[1:]:
        for value, status in (("1", 0), ("x", 2)):
            result = check(program, f"common:\n  model: x\n{SECTIONS[program]}:\n  preempt_every: {value}\n")
            assert result.returncode == status and ("preempt_every" in result.stderr) == (status == 2), (program, value, result)


def test_a_misspelt_key_of_another_program_is_an_error():
    for program in PROGRAMS:
        result = check(program, "common:\n  model: x\nrouter:\n  nodegrpc: 127.0.0.1:1\n")
        assert result.returncode == 2 and ':4: unknown key "nodegrpc" (did you mean "node_grpc"?)' in result.stderr, result
        result = check(program, "common:\n  model: x\ndecode:\n  pagetokens: 1\n")
        assert result.returncode == 2 and ':4: unknown key "pagetokens" (did you mean "page_tokens"?)' in result.stderr, result


def verify(units):
    """systemd-analyze on copies whose programs exist; what it says."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, text in units.items():
            for program in PROGRAMS:
                text = text.replace(f"/usr/bin/{program}", shutil.which("true"))
            paths.append(os.path.join(folder, name))
            with open(paths[-1], "w") as file:
                file.write(text)
        result = subprocess.run(["systemd-analyze", "--man=no", "verify", *paths], capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout + result.stderr


def test_systemd_units_verify():
    if not shutil.which("systemd-analyze"):
        raise tap.Skip("systemd-analyze is not installed")
    units = {}
    for name in os.listdir(os.path.join(DEPLOY, "systemd")):
        with open(os.path.join(DEPLOY, "systemd", name)) as file:
            units[name] = file.read()
    assert set(units) == {p + ".service" for p in PROGRAMS}
    for name, text in units.items():
        assert "\nLimitMEMLOCK=infinity\n" in text, name
        assert f"/usr/bin/{name.removesuffix('.service')} --config" in text, name
    code, said = verify(units)
    assert code == 0 and not said.strip(), said
    # and it would have said so
    wrong = {n: t.replace("NoNewPrivileges=yes", "NoNewPriviliges=yes") for n, t in units.items()}
    code, said = verify(wrong)
    assert "NoNewPriviliges" in said, said


if __name__ == "__main__":
    tap.main(globals())
