"""The RUNPATH of a 64-bit little-endian ELF file, and how it forgets the build tree.

Bazel leads it with a folder of the build tree (_solib_...). What follows is kept in place, so that strings that the linker let share
its tail stay whole; the head is overwritten with zeros.
"""

import struct

DYNAMIC, STRING_TABLE, RUNPATH, RPATH = 2, 5, 29, 15


def sections(data):
    """[(address, offset, size)] of the segments, and those of the dynamic one."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no 64-bit little-endian ELF file")
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    found = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(count)]
    loads = [(address, offset, length) for kind, _, offset, address, _, length in found if kind == 1]
    dynamic = [(offset, length) for kind, _, offset, _, _, length in found if kind == DYNAMIC]
    return loads, dynamic


def runpath(data):
    """(offset of the dynamic entry, offset of the string table, value, text), or None where there is none."""
    loads, dynamic = sections(data)
    entries = [(at, *struct.unpack_from("<QQ", data, at)) for offset, length in dynamic for at in range(offset, offset + length, 16)]
    table = next((value for _, tag, value in entries if tag == STRING_TABLE), None)
    found = next(((at, value) for at, tag, value in entries if tag in (RUNPATH, RPATH)), None)
    if table is None or found is None:
        return None
    base = next(table - address + offset for address, offset, length in loads if address <= table < address + length)
    at, value = found
    return at, base, value, bytes(data[base + value:data.index(b"\0", base + value)]).decode()


def forget_build_tree(path):
    data = bytearray(path.read_bytes())
    found = runpath(data)
    if found is None:
        return
    at, base, value, text = found
    kept = [entry for entry in text.split(":") if "_solib_" not in entry]
    tail = ":".join(kept)
    if not kept or not text.endswith(tail):
        raise ValueError(f"{path}: a folder of the build tree is not at the head of its RUNPATH: {text}")
    cut = len(text) - len(tail)
    data[base + value:base + value + cut] = bytes(cut)
    struct.pack_into("<Q", data, at + 8, value + cut)
    path.write_bytes(data)
