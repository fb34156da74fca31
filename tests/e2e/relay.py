"""A switch between hosts that loses, delays, slows and cuts what crosses it, each direction of each pair by a rule of its own.

    relay.py NAME=INTERFACE=MAC...      commands as JSON lines on stdin, an answer to each on stdout

        host a ── veth ──┐                                        {"from": "a", "to": "b", "loss": 1.0}
        host b ── veth ──┤ this process: AF_PACKET, one queue     {"from": "a", "to": "b", "delay_s": 0.2}
        host c ── veth ──┘ by time of departure                   {"from": "b", "to": "a", "bytes_per_s": 1250000}
                                                                  {"mtu": 1280}  {"clear": true}  {"stats": true}

A frame goes to the host that has its destination address, a broadcast to all others. What is larger than `mtu` is answered with
ICMP "fragmentation needed", as a router before a tunnel does. Kernels without netem have nothing of the kind, hence this.
Offloads of the hosts' devices must be off: a frame is then what a wire would carry.
"""
import errno
import heapq
import json
import random
import select
import socket
import struct
import sys
import time

ETH_P_ALL, SOL_PACKET, PACKET_IGNORE_OUTGOING = 3, 263, 23
QUEUE_BYTES = 128 << 10  # of a slow direction; what finds it full is lost
GATEWAY_MAC, GATEWAY_IP = bytes.fromhex("0200000000fe"), socket.inet_aton("10.8.0.254")
NO_RULE = {"loss": 0.0, "delay_s": 0.0, "bytes_per_s": 0}


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def fragmentation_needed(frame, mtu):
    """The answer to an IPv4 frame that is too large; None where none is due (another protocol, an ICMP, may be fragmented)."""
    packet = frame[14:]
    if frame[12:14] != b"\x08\x00" or packet[9] == socket.IPPROTO_ICMP or not packet[6] & 0x40:
        return None
    quoted = packet[:(packet[0] & 15) * 4 + 8]
    quoted += b"\0" * (len(quoted) % 2)
    body = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + quoted
    body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 64, socket.IPPROTO_ICMP, 0) + GATEWAY_IP + packet[12:16]
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return frame[6:12] + GATEWAY_MAC + b"\x08\x00" + head + body


class Relay:
    def __init__(self, ports):
        self.ports = {}  # name -> socket
        self.by_mac = {}
        self.by_fd = {}
        for name, interface, mac in ports:
            port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            port.bind((interface, 0))
            port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            port.setblocking(False)
            self.ports[name] = port
            self.by_mac[bytes.fromhex(mac.replace(":", ""))] = name
            self.by_fd[port.fileno()] = name
        self.random = random.Random(1)
        self.waiting, self.order = [], 0  # (when, order, socket, frame)
        self.clear()
        self.stats = {}

    def clear(self):
        self.rules, self.mtu = {}, 0
        self.free_at = {}  # direction -> when its last frame has left, for those with a rate

    def count(self, source, target, what, value):
        of = self.stats.setdefault(f"{source}>{target}", {"frames": 0, "bytes": 0, "lost": 0})
        of[what] += value

    def send(self, port, frame):
        try:
            port.send(frame)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.ENETDOWN):
                raise

    def forward(self, source, target, frame, now):
        rule = self.rules.get((source, target), NO_RULE)
        leaves = now
        if rule["bytes_per_s"]:
            begins = max(now, self.free_at.get((source, target), 0))
            if (begins - now) * rule["bytes_per_s"] > QUEUE_BYTES:
                self.count(source, target, "lost", 1)
                return
            leaves = self.free_at[source, target] = begins + len(frame) / rule["bytes_per_s"]
        if rule["loss"] and self.random.random() < rule["loss"]:
            self.count(source, target, "lost", 1)
            return
        self.count(source, target, "frames", 1)
        self.count(source, target, "bytes", len(frame))
        leaves += rule["delay_s"]
        if leaves <= now:
            self.send(self.ports[target], frame)
        else:
            self.order += 1
            heapq.heappush(self.waiting, (leaves, self.order, self.ports[target], frame))

    def take(self, source, frame):
        if self.mtu and len(frame) - 14 > self.mtu:
            answer = fragmentation_needed(frame, self.mtu)
            if answer:
                self.send(self.ports[source], answer)
            return
        now = time.monotonic()
        target = self.by_mac.get(frame[:6])
        if target:
            if target != source:
                self.forward(source, target, frame, now)
        elif frame[0] & 1:
            for name in self.ports:
                if name != source:
                    self.forward(source, name, frame, now)

    def command(self, line):
        order = json.loads(line)
        if order.pop("clear", False):
            self.clear()
        if order.pop("stats", False):
            return self.stats
        self.mtu = order.pop("mtu", self.mtu)
        if order:
            direction = order.pop("from"), order.pop("to")
            self.rules[direction] = {**self.rules.get(direction, NO_RULE), **order}
        return {}

    def run(self):
        poll = select.epoll()
        for port in self.ports.values():
            poll.register(port, select.EPOLLIN)
        poll.register(0, select.EPOLLIN)
        while True:
            wait = max(self.waiting[0][0] - time.monotonic(), 0) if self.waiting else -1
            for fd, _ in poll.poll(wait):
                if fd == 0:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    print(json.dumps(self.command(line)), flush=True)
                    continue
                name = self.by_fd[fd]
                for _ in range(64):
                    try:
                        frame = self.ports[name].recv(65536)
                    except OSError:  # EAGAIN, or the device is down
                        break
                    self.take(name, frame)
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, port, frame = heapq.heappop(self.waiting)
                self.send(port, frame)


if __name__ == "__main__":
    Relay([port.split("=") for port in sys.argv[1:]]).run()
