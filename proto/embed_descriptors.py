#!/usr/bin/env python3
"""Turns a FileDescriptorSet (protoc --descriptor_set_out --include_imports) into a C table for server reflection.

usage: embed_descriptors.py DESCRIPTOR_SET OUTPUT.c

Reads just enough of descriptor.proto with a few lines of its own, so that the build needs no protobuf package."""
import sys


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """Yields (number, value) of one message; values of length-delimited fields are bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 1:
            value, at = data[at:at + 8], at + 8
        elif wire == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        elif wire == 5:
            value, at = data[at:at + 4], at + 4
        else:
            raise ValueError(f"wire type {wire}")
        yield number, value


def texts(data, number):
    return [value.decode() for n, value in fields(data) if n == number]


def messages(data, number):
    return [value for n, value in fields(data) if n == number]


def name_of(data):
    return texts(data, 1)[0]


def enum_symbols(scope, data):
    yield f"{scope}{name_of(data)}"
    for value in messages(data, 2):  # enum values are siblings of their enum
        yield f"{scope}{name_of(value)}"


def message_symbols(scope, data):
    full = f"{scope}{name_of(data)}"
    yield full
    for field in messages(data, 2) + messages(data, 8):  # fields, oneofs
        yield f"{full}.{name_of(field)}"
    for nested in messages(data, 3):
        yield from message_symbols(f"{full}.", nested)
    for nested in messages(data, 4):
        yield from enum_symbols(f"{full}.", nested)


def file_symbols(data):
    package = (texts(data, 2) or [""])[0]
    scope = f"{package}." if package else ""
    for message in messages(data, 4):
        yield from message_symbols(scope, message)
    for enum in messages(data, 5):
        yield from enum_symbols(scope, enum)
    for service in messages(data, 6):
        full = f"{scope}{name_of(service)}"
        yield full
        for method in messages(service, 2):
            yield f"{full}.{name_of(method)}"


def main():
    source, target = sys.argv[1:]
    with open(source, "rb") as stream:
        files = messages(stream.read(), 1)
    index = {name_of(data): i for i, data in enumerate(files)}
    symbols = {}
    out = ["/* Made by embed_descriptors.py: the descriptors that server reflection answers with. */",
           '#include "proto/rpc/descriptors.h"', ""]
    for i, data in enumerate(files):
        for symbol in file_symbols(data):
            symbols.setdefault(symbol, i)
        out.append(f"static const uint8_t file_{i}[] = {{")
        for at in range(0, len(data), 20):
            out.append("    " + ", ".join(str(byte) for byte in data[at:at + 20]) + ",")
        out.append("};")
        imports = [index[name] for name in texts(data, 3)]
        out.append(f"static const int imports_{i}[] = {{{', '.join(map(str, imports + [-1]))}}};")
    out += ["", "const struct descriptor_file descriptor_files[] = {"]
    for i, data in enumerate(files):
        out.append(f'    {{"{name_of(data)}", file_{i}, sizeof file_{i}, imports_{i}}},')
    out += ["};", f"const size_t descriptor_file_count = {len(files)};", "",
            "const struct descriptor_symbol descriptor_symbols[] = {"]
    for symbol in sorted(symbols):
        out.append(f'    {{"{symbol}", {symbols[symbol]}}},')
    out += ["};", f"const size_t descriptor_symbol_count = {len(symbols)};", ""]
    with open(target, "w") as stream:
        stream.write("\n".join(out))


main()
