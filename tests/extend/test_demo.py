"""demos/extend_*.py, the worked examples."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.processes import ROOT, run_forked


def test_demo_fuses_attention_with_the_gradients_of_eager(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(ROOT / "demos" / "extend_pass.py"), run_name="__main__")
    printed = capsys.readouterr().out
    first, second = map(float, re.findall(r"0\.\d+", printed.splitlines()[0]))
    assert first == pytest.approx(second, rel=1e-5)
    assert float(re.findall(r"gradient: (\S+)", printed)[0]) < 1e-5
    assert "attention is fused: True" in printed


def test_demo_fuses_operators_of_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "demos" / "extend_operator.py"), run_name="__main__")
    printed = capsys.readouterr().out
    ran = re.findall("library that ran: (.*)", printed)
    assert ran == ["rms_norm, gate", "rms_norm", "none"]
    assert len(re.findall("[①-⑳]", printed)) == 1  # one kernel


def test_demo_follows_calls_in_one_graph(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "demos" / "extend_calls.py"), run_name="__main__")
    assert capsys.readouterr().out == "as eager: True\ngraphs: 1\n"


def test_demo_computes_exp_by_exp2_in_loops(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "demos" / "extend_loops.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("exp2(") == 2  # in the forward and in the backward
    assert "exp(" not in printed
    assert all(float(each) < 1e-5 for each in re.findall(r"difference of a \w+: (\S+)", printed))


def test_demo_trains_on_its_device_by_its_renderer() -> None:
    path = str(ROOT / "demos" / "extend_device.py")
    done = run_forked(
        f"import runpy; runpy.run_path({path!r}, run_name='__main__')", imported="torch"
    )
    assert done.returncode == 0, done.stderr
    first, second = map(float, re.findall(r"0\.\d+|1\.\d+", done.stdout.splitlines()[0]))
    assert first == pytest.approx(second, rel=1e-5)
    assert "graph break" not in done.stdout
    assert len(re.findall("[①-⑳]", done.stdout)) >= 3  # kernels of the device
