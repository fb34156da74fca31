"""Three hosts on one machine: network namespaces, each with a device of its own on one switch (relay.py), where links can be cut,
slowed and delayed, and a second device by which the test reaches every process whatever the switch does.

              data0 10.8.0.1        data0 10.8.0.2        data0 10.8.0.3
      host    router                prefill               decode           the cluster's own traffic: registration, KV
              │                     │                     │
              └──── veth ───────────┴── relay.py ─────────┘
              mgmt0 10.9.1.2        mgmt0 10.9.2.2        mgmt0 10.9.3.2   the test's: requests, /metrics

User namespaces make that possible without root. A test file calls `inside()` first, which runs it again inside a namespace of
its own; where that is not allowed, `World()` raises Skip with the reason.
"""
import atexit
import ctypes
import errno
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys

import tap

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
SIOCETHTOOL = 0x8946
ETHTOOL_OFF = 0x15, 0x17, 0x1f, 0x24, 0x2c  # ETHTOOL_S: RXCSUM, TXCSUM, TSO, GSO, GRO
HERE = os.path.dirname(os.path.abspath(__file__))
REASON = "BATON_NETNS"  # in the environment: "" inside a namespace, else why there is none

libc = ctypes.CDLL(None, use_errno=True)


def _call(name, *args):
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def inside():
    """Runs this program again as root of a new user namespace; returns in there, or where there can be none."""
    if REASON in os.environ:
        return
    reason = "unshare or ip is not installed"
    if shutil.which("unshare") and shutil.which("ip"):
        command = ["unshare", "--user", "--map-root-user", "--net", "--mount", sys.executable]
        probe = subprocess.run([*command, os.path.abspath(__file__)], capture_output=True, text=True,
                               env={**os.environ, REASON: ""})
        if probe.returncode == 0:
            os.environ[REASON] = ""
            os.execvp("unshare", [*command, *sys.argv])
        reason = (probe.stderr.strip().splitlines() or ["unshare failed"])[-1]
    os.environ[REASON] = f"no network namespaces here: {reason}"


def _ip(*args, host=None, fds=()):
    subprocess.run(["ip", *args], check=True, preexec_fn=host and host.enter_net, pass_fds=fds)


def _offloads_off(any_socket, interface):
    """So that a frame is what a wire would carry: not larger than the MTU, and with its checksum. The socket says where."""
    for number in ETHTOOL_OFF:
        value = ctypes.create_string_buffer(struct.pack("II", number, 0))
        request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
        try:
            fcntl.ioctl(any_socket, SIOCETHTOOL, request.ljust(40, b"\0"))
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # nothing that this device could do anyway
                raise


class Host:
    def __init__(self, name, number, hub):
        self.name = name
        self.data, self.address = f"10.8.0.{number}", f"10.9.{number}.2"
        self.port, self.mac = f"sw{number}", f"02:00:00:00:00:{number:02x}"
        _call("unshare", CLONE_NEWNET)  # this thread's; the others and the children never see it
        try:
            self.net = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            in_there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        finally:
            _call("setns", hub, CLONE_NEWNET)
        here = f"/proc/{os.getpid()}/fd/{self.net}"
        _ip("link", "set", "lo", "up", host=self)
        _ip("link", "add", self.port, "type", "veth", "peer", "name", "data0", "address", self.mac, "netns", here)
        _ip("link", "add", f"mg{number}", "type", "veth", "peer", "name", "mgmt0", "netns", here)
        _ip("link", "set", self.port, "up")
        _ip("link", "set", f"mg{number}", "up")
        _ip("address", "add", f"10.9.{number}.1/24", "dev", f"mg{number}")
        for interface, address in (("data0", self.data), ("mgmt0", self.address)):
            _ip("address", "add", f"{address}/24", "dev", interface, host=self)
            _ip("link", "set", interface, "up", host=self)
        _offloads_off(in_there, "data0")
        in_there.close()

    def enter_net(self):
        _call("setns", self.net, CLONE_NEWNET)

    def enter(self):
        """In a forked child: its network, and a /sys that shows its devices (UCX looks there)."""
        self.enter_net()
        _call("unshare", CLONE_NEWNS)
        _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        _call("mount", b"none", b"/sys", b"sysfs", 0, None)


class World:
    """The hosts by name, and the faults between them. A fault is of one direction; `cut` and the like take both."""

    def __init__(self, *names):
        if os.environ.get(REASON):
            raise tap.Skip(os.environ[REASON])
        hub = os.open("/proc/self/ns/net", os.O_RDONLY)
        _ip("link", "set", "lo", "up")
        self.hosts = {name: Host(name, i + 1, hub) for i, name in enumerate(names)}
        os.close(hub)
        self.relay = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "relay.py"), *(f"{h.name}={h.port}={h.mac}" for h in self.hosts.values())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.close)
        self.stats()

    def _order(self, **order):
        self.relay.stdin.write(json.dumps(order) + "\n")
        self.relay.stdin.flush()
        return json.loads(self.relay.stdout.readline())

    def rule(self, source, target, **rule):
        """loss: 0 to 1; delay_s; bytes_per_s."""
        self._order(**{"from": source, "to": target}, **rule)

    def both(self, a, b, **rule):
        self.rule(a, b, **rule)
        self.rule(b, a, **rule)

    def mtu(self, octets):
        self._order(mtu=octets)

    def heal(self):
        self._order(clear=True)

    def stats(self):
        """{"a>b": {frames, bytes, lost}} since the start."""
        return self._order(stats=True)

    def close(self):
        self.relay.stdin.close()
        self.relay.kill()
        self.relay.wait()
        self.relay.stdout.close()


if __name__ == "__main__":  # the probe of `inside`
    subprocess.run(["true"], check=True, preexec_fn=World("probe").hosts["probe"].enter)
