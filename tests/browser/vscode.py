"""VS Code in Chromium: code-server has its workbench and its own renderers of notebooks' outputs.

Comes in: a notebook whose cells have run. Goes out: a page that shows it, and the frame in which
its outputs are. There is no kernel, as when a notebook is opened that somebody else has run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import child_environment

from .lab import await_server

__all__ = ["Workbench", "executed", "opened_in_code", "serving"]

_PATIENCE = 40_000  # ms
_SETTINGS = {
    "security.workspace.trust.enabled": False,
    "workbench.startupEditor": "none",
    "telemetry.telemetryLevel": "off",
    "notebook.output.scrolling": False,
}
# All outputs are inside the window: those outside are not rendered.
_WINDOW = {"width": 1400, "height": 8000}
_RESOURCES = re.compile(r"https://vscode-remote\+[\w-]+\.vscode-resource\.vscode-cdn\.net/")


@dataclass(eq=False)
class Workbench:
    """The page, the frame of the outputs, what the console said and whom it asked since."""

    page: Any
    frame: Any
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def outside(self) -> list[str]:
        """Requests that leave the machine. Those of its own resources have an address in public,
        which a service worker answers.
        """
        ours = re.compile(r"(https?|wss?)://127\.0\.0\.1[:/]|data:|blob:|vscode-")
        return [url for url in self.asked if not ours.match(url) and not _RESOURCES.match(url)]


def executed(cells: Mapping[str, str], path: Path) -> None:
    """Write a notebook with the outputs of these cells."""
    import nbformat
    from nbclient import NotebookClient

    v4 = nbformat.v4
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = v4.new_notebook(cells=list(map(v4.new_code_cell, cells.values())), metadata=kernel)
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    nbformat.write(notebook, path)


@contextmanager
def serving(command: str, folder: Path, theme: str) -> Iterator[str]:
    """The address of a code-server on that folder."""
    user = folder.with_name(f"{folder.name}-user-{theme.replace(' ', '-')}")
    (user / "User").mkdir(parents=True)
    settings = {**_SETTINGS, "workbench.colorTheme": theme}
    (user / "User" / "settings.json").write_text(json.dumps(settings))
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--auth none --bind-addr 127.0.0.1:{port} --disable-telemetry --disable-update-check"
    places = ["--user-data-dir", user, "--extensions-dir", user / "extensions"]
    with (user / "server.log").open("w") as log:
        server = subprocess.Popen(
            [command, *options.split(), *places, folder],
            **{"stdout": log, "stderr": log, "cwd": folder},
            env=child_environment(HOME=str(user)),
        )
        try:
            await_server(f"http://127.0.0.1:{port}/healthz", server, user / "server.log")
            yield f"http://127.0.0.1:{port}/?folder={folder}"
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def opened_in_code(browser: Any, address: str, notebook: str) -> Iterator[Workbench]:
    """The notebook, all its outputs rendered."""
    page = browser.new_page(viewport=_WINDOW)
    page.set_default_timeout(_PATIENCE)
    page.goto(address)
    # Before the extensions are known, a notebook is a text.
    page.wait_for_selector(".explorer-folders-view .json-lang-file-icon")
    page.locator(".explorer-folders-view").get_by_text(notebook).dblclick()
    bench = Workbench(page, None)
    page.on("console", lambda m: bench.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: bench.errors.append(str(error)))
    page.on("request", lambda request: bench.asked.append(request.url))
    bench.frame = _outputs(page)
    yield bench
    page.close()


def _outputs(page: Any) -> Any:
    """The frame in which VS Code shows outputs, once the last of them is there."""
    end = time.monotonic() + _PATIENCE / 1000
    while time.monotonic() < end:
        for frame in page.frames:
            if frame.locator("#container .output").filter(has_text="all ran").count():
                return frame
        page.wait_for_timeout(200)
    raise RuntimeError(f"no outputs in {[frame.url for frame in page.frames]}")


def command() -> str | None:
    """code-server, where somebody has installed it."""
    return shutil.which("code-server", path=os.environ.get("PATH"))
