"""A JupyterLab server on localhost, and a page of Chromium with a notebook that has run in it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import child_environment

__all__ = ["CELLS", "Lab", "await_server", "opened", "running"]

# Each cell by what it shows; their outputs are what the tests look at.
CELLS = {
    "load": "import torch, jitmagic\n%load_ext jitmagic\nx = torch.ones(8, 64)",
    "compile": (
        "%%compile\ndef step(x, y):\n    z = torch.relu(x * y + 2)\n    return z.sum(-1)\n"
        "step(x, x)"
    ),
    "report": (
        "@jitmagic.jit\ndef broken(x):\n    y = x * 2\n    print('between')\n"
        "    return y.sin().sum()\njitmagic.explain(broken)(x)"
    ),
    "gutter": "%%compile --annotate\ndef costly(x):\n    return (x.exp() + 1).log()\n_ = costly(x)",
    "card": "step",
    "status": "%compile_status",
    "picture": "jitmagic.explain(step)(x, x).picture('graph')",
    "passport": "jitmagic.passport(step)(x, x)",
    "last": "print('all', 'ran')",
}

_PATIENCE = 120_000  # ms, for what takes two seconds on a machine that does nothing else
_SETTINGS = {
    # Cells outside the window are parts of the page too, so that one look finds all of them.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "completer-extension/manager": {"providerTimeout": 60_000},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@dataclass(eq=False)
class Lab:
    """The page, what its console said and whom it asked."""

    page: Any
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def output(self, cell: str) -> Any:
        """Where the outputs of that cell of CELLS are."""
        cells = self.page.locator(".jp-NotebookPanel .jp-CodeCell")
        return cells.nth(list(CELLS).index(cell)).locator(".jp-OutputArea-output")

    def area(self, cell: str) -> Any:
        """All outputs of that cell."""
        cells = self.page.locator(".jp-NotebookPanel .jp-CodeCell")
        return cells.nth(list(CELLS).index(cell)).locator(".jp-Cell-outputArea")

    def set_theme(self, name: str) -> None:
        self._command("apputils:change-theme", {"theme": name})
        light = str(name.endswith("Light")).lower()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")

    def run_all(self) -> None:
        self._command("notebook:run-all-cells", {})
        last = self.output("last").filter(has_text="all ran")
        last.wait_for(timeout=_PATIENCE)

    def _command(self, name: str, arguments: dict[str, str]) -> None:
        self.page.evaluate(
            "([name, given]) => { window.jupyterapp.commands.execute(name, given) }",
            [name, arguments],
        )


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The address of a server that has the notebook, and ends with the block."""
    _write(folder)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "ServerApp.port": port,
        "ServerApp.root_dir": folder,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": "",
        "LabApp.expose_app_in_browser": True,
        "LabApp.user_settings_dir": folder / "settings",
        "LabApp.workspaces_dir": folder / "workspaces",
    }
    told = [f"--{name}={value}" for name, value in options.items()]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", *told],
            **{"stdout": log, "stderr": log, "cwd": folder},
            env=child_environment(JUPYTER_PLATFORM_DIRS="1", HOME=str(folder)),
        )
        try:
            address = f"http://127.0.0.1:{port}"
            await_server(f"{address}/api/status", server, folder / "server.log")
            yield address
        finally:
            server.terminate()
            server.wait(30)


def _write(folder: Path) -> None:
    import nbformat.v4 as v4

    cells = [v4.new_code_cell(source) for source in CELLS.values()]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    (folder / "tour.ipynb").write_text(json.dumps(v4.new_notebook(cells=cells, metadata=kernel)))
    for name, settings in _SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))


def await_server(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Return once it answers; RuntimeError with the end of its log where it does not."""
    end = time.monotonic() + _PATIENCE / 1000
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"nothing at {address}:\n{log.read_text()[-3000:]}")


@contextmanager
def opened(chromium: str, server: str, flags: Sequence[str] = _FLAGS) -> Iterator[Lab]:
    """A page with the notebook, all cells run."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=list(flags))
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(_PATIENCE)
        lab = Lab(page)
        page.on("console", lambda m: lab.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: lab.errors.append(str(error)))
        page.on("request", lambda request: lab.asked.append(request.url))
        page.goto(f"{server}/lab/tree/tour.ipynb?reset")
        page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell")
        # The indicator is idle before there is a kernel: cells run then are not run at all.
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
            " === 'idle'"
        )
        lab.run_all()
        yield lab
        browser.close()


def outside(address: str) -> bool:
    """Whether a request leaves this machine."""
    return not re.match(r"(https?|wss?)://127\.0\.0\.1[:/]|data:|blob:", address)
