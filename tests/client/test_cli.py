"""The command line by itself, with no server: help, wrong usage, exit codes, errors of one line."""
import os
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import tap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BATON = os.path.join(os.environ.get("BATON_BUILD", os.path.join(ROOT, "build")), "baton")
COMMANDS = ("up", "generate", "chat", "status", "drain", "role", "inspect")
UNBUILT = ("top", "plan", "doctor", "replay", "profile", "scale")


def run(*args, stdin="", env=None, binary=False):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    environment.update(env or {})
    return subprocess.run([BATON, *args], input=stdin, capture_output=True, text=not binary, timeout=60,
                          env=environment)


def refused(code, words, *args, **options):
    result = run(*args, **options)
    assert result.returncode == code, (args, result)
    assert result.stdout == "", result
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and words in lines[0], (args, result.stderr)
    assert lines[0].startswith("baton"), lines


def nobody():
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_help_and_version():
    result = run("--help")
    assert result.returncode == 0 and not result.stderr
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout, command
        own = run(command, "--help")
        assert own.returncode == 0 and own.stdout.startswith(f"baton {command}: ") and "example:" in own.stdout
        assert run(command, "-h").stdout == own.stdout
    for word in UNBUILT:
        assert f"\n  {word} " not in result.stdout, word
    version = run("--version")
    assert version.returncode == 0 and version.stdout.startswith("baton 0.1.0 (") and "gRPC" in version.stdout
    assert run().returncode == 2


def test_what_is_not_built_is_refused():
    for word in UNBUILT:
        refused(2, f"{word} is not built yet", word, "decode-0")


def test_wrong_usage_is_exit_2():
    refused(2, 'unknown command "genrate"', "genrate")
    refused(2, 'did you mean "--temperature"', "generate", "--temprature", "1")
    refused(2, 'unknown option "-z"', "generate", "-z")
    refused(2, 'unexpected argument "x"', "generate", "x")
    refused(2, "exclude each other", "generate", "-p", "x", "--token-ids", "1")
    refused(2, "exclude each other", "generate", "-p", "x", "-f", "/dev/null")
    refused(2, "exclude each other", "generate", "--token-ids", "1", "--chat")
    refused(2, "--system needs --chat", "generate", "-p", "x", "--system", "y")
    refused(2, "--token-ids", "generate", "--token-ids", "1,two")
    refused(2, "--token-ids", "generate", "--token-ids", "1,,2")
    refused(2, "--token-ids", "generate", "--token-ids", "1,2,")
    refused(2, "4294967295", "generate", "--token-ids", "4294967296")
    refused(2, "--seed", "generate", "-p", "x", "--seed", "18446744073709551616")
    refused(2, "--seed", "generate", "-p", "x", "--seed", "-1")
    for value in ("nan", "inf", "-inf", "warm", "", "0x1p3", "1e999"):
        refused(2, "--temperature", "generate", "-p", "x", "--temperature", value)
    refused(2, "--max-tokens", "generate", "-p", "x", "--max-tokens=-1")
    refused(2, "-n: ", "generate", "-p", "x", "-n", "4294967296")
    refused(2, "-n: needs a value", "generate", "-p", "x", "-n")
    refused(2, "--deadline", "generate", "-p", "x", "--deadline", "0")
    refused(2, "HOST:PORT", "generate", "-p", "x", "-s", "nowhere")
    refused(2, "65535", "status", "-s", "a:70000")
    refused(2, "BATON_SERVER", "status", env={"BATON_SERVER": "nonsense"})
    refused(2, "NODE is missing", "drain")
    refused(2, "MODEL is missing", "inspect")
    refused(2, "unexpected argument", "drain", "a", "b")


def test_a_prompt_with_a_nul_is_refused():
    result = run("generate", "-s", nobody(), stdin=b"a\0b", binary=True)
    assert result.returncode == 2 and b"stdin: has a NUL byte at offset 1" in result.stderr, result


def test_no_server_is_exit_3():
    address = nobody()
    for args in (("generate", "-p", "x"), ("generate", "-p", "x", "--deadline", "5"), ("status",), ("drain", "d")):
        refused(3, "no server reached", *args, "-s", address)
        refused(3, address, *args, env={"BATON_SERVER": address})
    result = run("chat", "-s", address, stdin="hello\n")
    assert result.returncode == 3 and "no server reached" in result.stderr, result


def test_files_that_cannot_be_read_are_exit_1():
    refused(1, "/nonexistent: cannot be read", "generate", "-f", "/nonexistent", "-s", nobody())
    refused(1, "/nonexistent.gguf", "inspect", "/nonexistent.gguf")
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(b"GGUF\x03\0\0\0" + b"\xff" * 64)
        file.flush()
        refused(1, file.name, "inspect", file.name)


def test_up_refuses_what_cannot_work():
    refused(2, "no model", "up")
    refused(2, "can never serve", "up", "-m", "x", "--prefill", "2")
    refused(2, "can never serve", "up", "-m", "x", "--decode", "2")
    refused(2, "can never serve", "up", "-m", "x", "--prefill", "0", "--decode", "0", "--mixed", "0")
    refused(2, "--mixed", "up", "-m", "x", "--mixed", "65")
    refused(2, "--backend", "up", "-m", "x", "--backend", "abacus")
    refused(2, "\"cuda\" is not built yet", "up", "-m", "x", "--backend", "cuda")
    refused(2, "--grpc", "up", "-m", "x", "--grpc", "7070")


def test_words_of_hostile_arguments_do_not_reach_the_terminal():
    result = run("generate", "--\x1b[31mred\n", "x")
    assert result.returncode == 2 and "\x1b" not in result.stderr and len(result.stderr.splitlines()) == 1, result
    result = run("\x1b[31m\nred")
    assert result.returncode == 2 and "\x1b" not in result.stderr and len(result.stderr.splitlines()) == 1, result


if __name__ == "__main__":
    tap.main(globals())
