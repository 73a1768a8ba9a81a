"""User strings stay text: in everything shown as HTML, in C++ and in Triton."""

from __future__ import annotations

import functools
import linecache
import re
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.codegen import render
from jitmagic.devices import Target, find_target
from jitmagic.diagnostics.builds import partitions_of
from jitmagic.diagnostics.checking.passport import Passport
from jitmagic.diagnostics.explanation.explain import explanation_of
from jitmagic.diagnostics.timing import Against, Side, Timing
from jitmagic.loops.lower import lower
from jitmagic.notebook.display import CellPart, DimLine, cell_line
from jitmagic.notice import dim
from jitmagic.options import Options, make_options
from jitmagic.schedule import schedule
from tests.codegen.test_triton_text import H200
from tests.diagnostics.hostile import HOSTILE

TARGETS = (find_target(torch.device("cpu"), make_options(None, cpu_tier="cpp")), H200)

_ALLOWED = set(
    "a b body br code details div em h1 h2 h3 head hr html i img li ol p pre s small span strong "
    "style summary table tbody td th thead title tr u ul meta".split()
)


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def shape(page: str) -> list[str]:
    """The tags of a page; nothing in it runs, and nothing is fetched."""
    tags = _Tags(page)
    assert tags.comments == []
    for tag, attributes in tags.found:
        assert tag in _ALLOWED, tag
        assert not [name for name in attributes if name.startswith("on")]
        fetched = [attributes.get(name) for name in ("src", "href", "data", "srcdoc")]
        assert all(url.startswith(("data:image/svg+xml", "#")) for url in fetched if url)
        assert "url(" not in (attributes.get("style") or "")
    return [tag for tag, _ in tags.found if tag not in ("tr", "td")]  # a row for each stage


class Held(nn.Module):
    """A parameter of any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.key = name
        self.table = {name: 2.0}
        self.__dict__["weights"] = {name: torch.ones(4)}


def written(text: str) -> tuple[Callable[..., Any], Held]:
    """A function whose name, file, lines, keys and errors are that text."""
    source = (
        f"def f(x, held):\n    note = {text!r}\n"
        "    y = torch.tanh(x) * held.weights[held.key] * held.table[held.key]\n"
        "    helper(y)  # " + text.replace("\n", " ").replace("\r", " ").replace("\0", " ") + "\n"
        "    return torch.relu(y).sum(-1)\n"
    )
    filename = "/tmp/" + text.replace("\0", "")[:200] + ".py"
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)

    def helper(y: Tensor) -> None:
        jitmagic.graph_break()

    helper.__name__ = helper.__qualname__ = text
    names: dict[str, Any] = {"__name__": "hostile", "torch": torch, "helper": helper}
    exec(compile(source.encode("utf-8", "replace"), filename, "exec"), names)
    function = names["f"]
    function.__name__ = function.__qualname__ = text
    return function, Held(text)


def pages(text: str) -> list[str]:
    function, held = written(text)

    def backend(gm: Any, _: Any) -> Any:
        return gm.forward

    backend.__name__ = text
    tagged = jitmagic.jit(function, backend=backend)
    tagged(torch.ones(3, 4), held)
    tagged(torch.ones(3, 4, dtype=torch.float64), held)
    card = jitmagic.status(tagged).cards[0]
    part = CellPart(text, _made(tagged), (text,), text, False)
    asked = jitmagic.explain(tagged)
    return [
        explanation_of(tagged)._repr_html_(),
        asked._repr_html_() or "",
        card._repr_html_(),
        jitmagic.status(tagged)._repr_html_(),
        DimLine(text)._repr_html_(),
        dim(text),
        (cell_line([part]) or DimLine(""))._repr_html_(),
        jitmagic.why(tagged)(3, held)._repr_html_(),
        Passport(text, (), (text,), (text,))._repr_html_(),
        Timing(
            (Side(text, 1.0, 1.0, 1.0),) * 2, (Against(text, 0.5, 0.5, 0.5),), 1, (1, 1)
        )._repr_html_(),
    ]


def _made(tagged: Any) -> Any:
    from jitmagic.diagnostics.status import compile_totals

    return compile_totals(jitmagic.api.tagged_handle(tagged))


@functools.cache
def plain_shapes() -> list[list[str]]:
    pages("first")  # the first compile of a process has a stage that no other has
    return [shape(page) for page in pages("plain")]


@pytest.mark.parametrize("text", HOSTILE)
def test_html_has_the_tags_that_it_has_for_a_plain_name(text: str) -> None:
    for plain, page in zip(plain_shapes(), pages(text), strict=True):
        found = shape(page)
        if len(text.splitlines()) == 1:  # else the source has more lines
            assert found == plain


def tokens(text: str, target: Target) -> set[str]:
    """Return a kernel's text with the identifier made from the hostile name replaced."""
    function, held = written(text)
    traced = jitmagic.lower(function)(torch.ones(3, 4), held)
    (forward,) = [parts.forward for record in traced.records for parts in partitions_of(record)][:1]
    _, source = render(schedule(lower(forward, "forward"), target, Options()), target)
    assert source is not None
    code = re.sub(r"\bheld_weights_\w+", "held_weights", source.text, flags=re.ASCII)
    assert code.isascii()
    return set(re.findall(r"\w+|[^\w\s]", code))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.tier)
def test_code_has_the_tokens_that_it_has_for_a_plain_name(target: Target) -> None:
    plain = tokens("plain", target)
    assert "tanh" in plain and "held_weights" in plain
    values = {"auto", "const", "v0", "v1", "v2"}  # a long line is cut in two
    for text in HOSTILE:
        assert tokens(text, target) ^ plain <= values, text


# Python's names that mean something in C++, in Triton, or in the code around them.
WORDS = (
    "int float double char void template namespace operator new delete this struct union switch "
    "case default goto static const volatile register extern auto long short signed unsigned "
    "bool true false xor compl alignas alignof constexpr const_cast decltype noexcept nullptr "
    "static_cast static_assert thread_local wchar_t char16_t typeid typename "
    "int64_t uint8_t size_t errno std main args jm n i0 v0 r0 tl triton libdevice range min é"
).split()


def test_arguments_may_have_any_name() -> None:
    """Argument names that g++ or Triton reserve do not break the generated kernels."""
    for start in range(0, len(WORDS), 32):
        names = WORDS[start : start + 32]
        space: dict[str, Any] = {"torch": torch}
        exec(f"def f({', '.join(names)}): return torch.tanh({' + '.join(names)})", space)
        xs = [torch.randn(4, 8) for _ in names]
        with warnings.catch_warnings():
            warnings.simplefilter("error", jitmagic.FallbackWarning)
            options = {"keep": "compiled", "cpu_tier": "cpp"}
            found = jitmagic.jit(space["f"], options=options)(*xs)
            torch.testing.assert_close(found, space["f"](*xs))
        (parts,) = partitions_of(jitmagic.lower(space["f"])(*xs).records[0])
        _, source = render(schedule(lower(parts.forward, "f"), H200, Options()), H200)
        assert source is not None
        compile(source.text, "<triton>", "exec")
