"""Files for a GPU, made and read as far as possible without one.

Nothing here runs on a GPU: kernels are compiled, and handed to a stand-in for the driver.
"""

from __future__ import annotations

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import jitmagic
from jitmagic.bytecode import FrameSnapshot
from jitmagic.compat.tensors import dispatch_keys, dispatch_keys_on
from jitmagic.devices import GPUS
from jitmagic.errors import ArtifactRefused, UsageError
from jitmagic.packaging.loading import _FileReader
from jitmagic.runtime import load, triton_kernels

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
EM_CUDA = 190


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.register_buffer("scale", torch.rand(40))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.gelu(self.linear(x)) * self.scale
        return torch.softmax(y + torch.arange(40, device=x.device), -1)


def saved(path: Path, target: str, dynamic: Any = None) -> dict[str, bytes]:
    with torch.no_grad():
        jitmagic.save(Model(), path, torch.randn(9, 24), dynamic=dynamic, target=target)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("target", GPUS)
def test_a_file_has_the_cubins_of_its_gpu(target: str, tmp_path: Path) -> None:
    files = saved(path := tmp_path / "model.jmz", target)
    document = json.loads(files["artifact.json"])
    assert (document["gpu"], document["instructions"]) == (target, [])
    assert {one["device"] for one in document["tensors"]} == {"cuda:0"}
    cubins = [name for name in files if name.endswith(".cubin")]
    assert cubins
    for name in cubins:
        assert files[name][:4] == b"\x7fELF"
        assert int.from_bytes(files[name][18:20], "little") == EM_CUDA
        assert target.encode() in files[name]
        facts = json.loads(files[name.replace(".cubin", ".json")])
        assert facts.keys() == {"name", "warps", "shared_bytes", "scratch"}
    if not torch.cuda.is_available():
        with pytest.raises(ArtifactRefused, match=f"a GPU with {target}, this machine has none"):
            jitmagic.load(path)


@pytest.mark.parametrize("dynamic", [None, {"x": {0: (2, 64)}}], ids=["constant", "sized"])
def test_kernels_of_a_file_are_loaded_without_triton(
    dynamic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the driver's call: what it is handed are the cubins of the file."""
    files = saved(tmp_path / "model.jmz", "sm_90", dynamic)
    (entry,) = json.loads(files["artifact.json"])["entries"]
    handed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(load, "load_function", lambda *given: handed.append(given) or len(handed))
    monkeypatch.setattr(triton_kernels, "import_triton", lambda: pytest.fail("triton is imported"))
    snapshot = FrameSnapshot(test_kernels_of_a_file_are_loaded_without_triton.__code__,
                             (), (), {}, {}, "model", "model")  # fmt: skip
    reader = _FileReader(entry["shared"], snapshot, files)
    assert callable(reader.read(entry["result"]["run"]))
    images = {data for name, data in files.items() if name.endswith(".cubin")}
    assert handed
    for image, name, shared, device in handed:
        assert image in images
        assert name.encode() in image
        assert (shared >= 0, device) == (True, 0)


def test_dispatch_keys_are_those_of_the_other_device() -> None:
    with FakeTensorMode():
        fake = dispatch_keys(torch.ones(2, device="cuda"))
    for key in ("Python", "PythonTLSSnapshot"):
        fake = fake.remove(torch._C._parse_dispatch_key(key))
    given = dispatch_keys(torch.ones(2))
    assert dispatch_keys_on("cuda", given).raw_repr() == fake.raw_repr()


def test_files_for_gpus_are_for_inference_and_python(tmp_path: Path) -> None:
    path, x = tmp_path / "model.jmz", torch.randn(9, 24)
    with pytest.raises(UsageError, match=r"is for inference.*\n  hint: .*no_grad"):
        jitmagic.save(Model(), path, x, target="sm_90")
    with torch.no_grad(), pytest.raises(UsageError, match="has kernels of the CPU"):
        jitmagic.save(Model(), path, x, target="sm_90", cxx=True)
    assert not path.exists()
