"""The list of which module adds which rows is what the modules add when they are imported."""

from __future__ import annotations

import json
from functools import cache

import pytest

from jitmagic.late_tables import ROWS, VERSION, VERSIONS

from .processes import run_python

Rows = dict[str, dict[str, set[str]]]


@cache
def rows_of_modules() -> Rows:
    out = run_python("from tests.late_rows import print_rows; print_rows()")
    assert not out.returncode, out.stderr
    return as_sets(json.loads(out.stdout))


def as_sets(rows: dict[str, dict[str, list[str]]]) -> Rows:
    return {
        title: {module: set(names) for module, names in modules.items()}
        for title, modules in rows.items()
    }


def listed_rows() -> Rows:
    rows = json.loads(ROWS.read_text())
    return as_sets({t: {m: names.split() for m, names in ms.items()} for t, ms in rows.items()})


def merged(listed: Rows, found: Rows) -> Rows:
    """Add what was found to the rows of modules that still have some."""
    versions = {**listed.get(VERSIONS, {}), VERSION: set[str]()}
    return {VERSIONS: versions} | {
        title: {
            module: names | listed.get(title, {}).get(module, set())
            for module, names in modules.items()
        }
        for title, modules in found.items()
    }


def text_of(rows: Rows) -> str:
    listed = {
        title: {module: " ".join(sorted(names)) for module, names in sorted(modules.items())}
        for title, modules in sorted(rows.items())
    }
    return json.dumps(listed, indent=1) + "\n"


def test_rows_are_listed_by_module(update_golden: bool) -> None:
    """Other versions of torch and Python have other functions: theirs are added to the list."""
    found, listed = rows_of_modules(), listed_rows()
    if update_golden:
        listed = merged(listed, found)
        ROWS.write_text(text_of(listed))
    if VERSION not in listed[VERSIONS]:
        pytest.skip("rows of other versions are loaded at once; pytest --update-golden lists them")
    for title, modules in found.items():
        for module, names in modules.items():
            missing = names - listed.get(title, {}).get(module, set())
            assert not missing, f"{title} of {module}: {missing}; pytest --update-golden adds them"


def test_all_rows_are_loaded_where_the_version_is_not_listed() -> None:
    done = run_python(
        """
        from jitmagic import late_tables
        late_tables._is_listed = False
        import torch, jitmagic
        compiled = jitmagic.jit(lambda x: torch.relu(x * 2 + 1).sum(-1), options={"persist": False})
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), torch.relu(x * 2 + 1).sum(-1))
        import jitmagic.trace.builtins.registry, jitmagic.loops.registry
        assert jitmagic.api.handle_of(compiled).journal.records
        print(jitmagic.api.handle_of(compiled).journal.records[-1].outcome)
        """
    )
    assert done.stdout == "compiled\n", done.stdout + done.stderr
