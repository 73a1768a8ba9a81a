"""One IPython shell for all tests of a process: IPython starts no second one."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def shell() -> Any:
    testing = pytest.importorskip("IPython.testing.globalipapp")
    return testing.start_ipython() or testing.get_ipython()


@pytest.fixture
def loaded(shell: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The shell with the extension, and nothing of the test before."""
    # What is tested is not how busy the machine is.
    monkeypatch.setattr("jitmagic.notebook.magics.PATIENCE", 600.0)
    shell.reset(new_session=False)
    shell.run_line_magic("load_ext", "jitmagic")
    yield shell
    shell.run_line_magic("unload_ext", "jitmagic")
    shell.reset(new_session=False)
