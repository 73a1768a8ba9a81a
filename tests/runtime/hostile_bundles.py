"""Mutations of a bundle: each returns the bytes of a file that is no bundle, is a damaged one, or
is still the same.
"""

from __future__ import annotations

import io
import json
import random
import stat
import zipfile
from collections.abc import Callable
from typing import Any

__all__ = ["bomb", "mutated"]

Members = list[tuple[str, bytes]]

_NAMES = (
    "../{}", "../../../../tmp/{}", "/tmp/{}", "/{}", "a/{}", "{}/", "..\\{}", "C:\\{}", "{}\0.so",
    "./{}", "{}.so", "{} ", "\u202e{}", "usage", "build-x/lock", "lock", "", ".", "..", "~/{}",
    "manifest.json", "MANIFEST.JSON", "{}.exe", "{}.gch", "{}.pkl", "-1{}", "{}-1.so",
)  # fmt: skip
_VALUES: tuple[object, ...] = (
    None, True, -1, 0, 1.5, 10**12, 10**30, "", "x" * 70, "../x", [], {}, [1], {"size": 3},
    float("nan"), "0" * 64, 2, "linux aarch64", "2.11.0", ["avx9"],
)  # fmt: skip


def mutated(bundle: bytes, seed: int) -> bytes:
    """Return the mutation of that number."""
    draw = random.Random(seed)
    kind = _KINDS[seed % len(_KINDS)]
    return kind(bundle, draw)


def _flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 8, 64))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _flip_directory(data: bytes, draw: random.Random) -> bytes:
    """In the records that zipfile believes."""
    changed = bytearray(data)
    at = data.index(b"PK\x01\x02")
    for _ in range(draw.choice((1, 2, 4))):
        changed[draw.randrange(at, len(changed))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, 0x2E))
    return bytes(changed)


def _cut(data: bytes, draw: random.Random) -> bytes:
    start, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return draw.choice((data[:start], data[start:], data[:start] + data[end:]))


def _insert(data: bytes, draw: random.Random) -> bytes:
    at, start = draw.randrange(len(data) + 1), draw.randrange(len(data))
    new = draw.choice((bytes(draw.randrange(1, 5000)), data[start : start + 300], b"PK\x05\x06"))
    return data[:at] + new + data[at:]


# ---------------------------------------------------------------------------- well-formed zips


def _members(bundle: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(bundle)) as found:
        return [(name, found.read(name)) for name in found.namelist()]


def _packed(
    members: Members,
    change: Callable[[zipfile.ZipInfo], None] = lambda info: None,
    at: int = -1,
    compression: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as bundle:
        for number, (name, data) in enumerate(members):
            info = zipfile.ZipInfo(name.replace("\0", "%") or "empty")
            info.filename = name
            info.compress_type = compression
            if number == at:
                change(info)
            bundle.writestr(info, data)
    return out.getvalue()


def _renamed(data: bytes, draw: random.Random) -> bytes:
    """In the zip, and in half of the cases in the manifest too."""
    (_, manifest), *files = _members(data)
    at = draw.randrange(len(files))
    old, new = files[at][0], draw.choice(_NAMES).format(files[at][0])
    files[at] = new, files[at][1]
    if draw.random() < 0.5:
        facts = json.loads(manifest)
        facts["files"][new] = facts["files"].pop(old)
        manifest = json.dumps(facts).encode()
    return _packed([("manifest.json", manifest), *files])


def _other_manifest(data: bytes, draw: random.Random) -> bytes:
    (_, manifest), *files = _members(data)
    facts = json.loads(manifest)
    for _ in range(draw.choice((1, 1, 2))):
        _change_a_value(facts, draw)
    return _packed([("manifest.json", json.dumps(facts).encode()), *files])


def _change_a_value(facts: dict[str, Any], draw: random.Random) -> None:
    within: Any = facts
    while isinstance(within, dict) and within:
        key = draw.choice(sorted(within))
        if not isinstance(within[key], dict) or draw.random() < 0.2:
            if draw.random() < 0.2:
                del within[key]
            else:
                within[key] = draw.choice(_VALUES)
            return
        within = within[key]


def _text_for_manifest(data: bytes, draw: random.Random) -> bytes:
    _, *files = _members(data)
    texts = (b"", b"\xff", b"[" * 10**6, b'{"a":' * 10**5, b"9" * 10**5, b"null", b"[]", b'"x"')
    return _packed([("manifest.json", draw.choice(texts)), *files])


def _bomb(data: bytes, draw: random.Random) -> bytes:
    """Decompresses to more than it says, or says much."""
    (_, manifest), *files = _members(data)
    large, facts = bytes(40 << 20), json.loads(manifest)
    kind = draw.randrange(4)
    if kind == 0:
        files[0] = files[0][0], large
    elif kind == 1:
        return _packed([("manifest.json", large), *files])
    else:
        name = next(iter(facts["files"]))
        facts["files"][name]["size"] = draw.choice((256 << 20, 1 << 40, 40 << 20))
        files[0] = name, large if kind == 2 else files[0][1]
    return _packed([("manifest.json", json.dumps(facts).encode()), *files])


def _other_members(data: bytes, draw: random.Random) -> bytes:
    """Some twice, missing, more, or in another order."""
    members = _members(data)
    a, b = draw.sample(range(len(members)), 2)
    kind = draw.randrange(5)
    if kind == 0:
        members.append((members[a][0], members[b][1]))
    elif kind == 1:
        del members[a]
    elif kind == 2:
        members.insert(a, (f"{draw.getrandbits(256):064x}.so", b"more"))
    elif kind == 3:
        members[a], members[b] = (members[a][0], members[b][1]), (members[b][0], members[a][1])
    else:
        members[a], members[b] = members[b], members[a]
    return _packed(members)


def _other_kind(data: bytes, draw: random.Random) -> bytes:
    """A link, a device, a folder; encrypted; another compression."""
    members = _members(data)
    at = draw.randrange(len(members))

    def change(info: zipfile.ZipInfo) -> None:
        kinds = (stat.S_IFLNK, stat.S_IFDIR, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFREG)
        info.external_attr = (draw.choice(kinds) | 0o777) << 16

    if draw.random() < 0.3:
        members[at] = members[at][0], b"/etc/passwd"
    kind = draw.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    made = bytearray(_packed(members, change, at, kind))
    if draw.random() < 0.2:
        made[made.index(b"PK\x01\x02") + 8] |= 1  # encrypted, says the directory
    return bytes(made)


_KINDS = (
    _flip, _flip_directory, _cut, _insert, _renamed, _other_manifest, _other_manifest,
    _other_members, _other_kind, _renamed, _flip, _flip_directory, _text_for_manifest,
)  # fmt: skip


def bomb(bundle: bytes, seed: int) -> bytes:
    """Return a zip that takes much memory or disk if it is believed."""
    return _bomb(bundle, random.Random(seed))
