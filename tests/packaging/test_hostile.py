"""Damaged and hostile files are refused, or are right; nothing is run or written."""

from __future__ import annotations

import json
import os
import random
import zipfile

import pytest
import torch

import jitmagic
from jitmagic.errors import ArtifactRefused, CallNotSaved

SEED_COUNT = 400  # of 2,000, which `python -m tests.packaging.test_hostile` tries


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())


X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.jmz"
    made = model()
    with torch.no_grad():
        jitmagic.save(made, path, X)
        return path.read_bytes(), made(X)


def mutated(data: bytes, seed: int) -> bytes:
    """Return the file with bits flipped, bytes removed, added or repeated."""
    rng = random.Random(seed)
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(out))
        match rng.randrange(5):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at : at + rng.choice((1, 4, 1000))]
            case 2:
                out[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
            case 3:
                out[at : at + 4] = rng.choice((b"\xff" * 4, b"\0" * 4, b"../x"))
            case 4:
                del out[at:]
        if not out:
            break
    return bytes(out)


def loads_or_refuses(path, want) -> str:
    try:
        loaded = jitmagic.load(path)
        got = loaded(X)
    except (ArtifactRefused, CallNotSaved):
        return "refused"
    assert torch.allclose(got, want)
    return "right"


def try_seeds(data, want, folder, seeds) -> None:
    path = folder / "in" / "x.jmz"
    path.parent.mkdir()
    before = sorted(os.listdir(folder))
    for seed in seeds:
        path.write_bytes(mutated(data, seed))
        loads_or_refuses(path, want)
    assert sorted(os.listdir(folder)) == before
    assert os.listdir(path.parent) == ["x.jmz"]


def test_mutations(saved, tmp_path):
    try_seeds(*saved, tmp_path, range(SEED_COUNT))


def repacked(path, data: bytes, edit) -> None:
    """Write the archive anew with its files as `edit` has changed them, and right checksums."""
    source = path.with_suffix(".source")
    source.write_bytes(data)
    with zipfile.ZipFile(source) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files.pop("checksums.json")
    source.unlink()
    edit(files)
    from jitmagic.packaging.archive import write_archive  # noqa: PLC0415

    write_archive(path, files)


def with_document(change):
    def edit(files):
        document = json.loads(files["artifact.json"])
        change(document)
        files["artifact.json"] = json.dumps(document).encode()

    return edit


def renamed(name):
    return lambda files: files.update({name: files["tensors/0"]})


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (renamed("../evil"), "as no artifact has"),
        (renamed("/etc/evil"), "as no artifact has"),
        (renamed("kernels/../../x.so"), "as no artifact has"),
        (with_document(lambda d: d.update(torch="9.9.9")), "its torch is 9.9.9"),
        (with_document(lambda d: d.update(python="cpython-299")), "its python is"),
        (with_document(lambda d: d.update(format=99)), "its format is 99"),
        (with_document(lambda d: d.pop("entries")), "malformed"),
        (with_document(lambda d: d["tensors"][0].update(shape=[99, 99])), "was"),
        (lambda files: files.pop("artifact.json"), "malformed"),
        (lambda files: files.update({"artifact.json": b"[" * 100_000}), "malformed"),
    ],
)
def test_false_contents_are_refused(saved, tmp_path, edit, words):
    path = tmp_path / "x.jmz"
    repacked(path, saved[0], edit)
    with pytest.raises(ArtifactRefused, match=words):
        jitmagic.load(path)
    assert os.listdir(tmp_path) == ["x.jmz"]


def test_false_names_of_objects_are_not_called(saved, tmp_path):
    """A name in the file leads to an object that a guard compares, and nothing else."""
    path = tmp_path / "x.jmz"

    def edit(document):
        text = json.dumps(document)
        text = text.replace('"torch.nn.modules.linear"', '"os"').replace('"Linear"', '"system"')
        document.clear()
        document.update(json.loads(text))

    repacked(path, saved[0], with_document(edit))
    assert loads_or_refuses(path, saved[1]) in ("refused", "right")


def test_duplicated_names_are_refused(saved, tmp_path):
    path = tmp_path / "x.jmz"
    path.write_bytes(saved[0])
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("artifact.json", b"{}")
    with pytest.raises(ArtifactRefused, match="two files"):
        jitmagic.load(path)
