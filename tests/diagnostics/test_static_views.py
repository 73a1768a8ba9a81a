"""Reports on pages that only allow some tags and attributes, as GitHub's view of a notebook."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

from .shown import NAMES, shown_outputs

# GitHub's html-pipeline: what is not listed goes, its text stays; of these the text goes too.
TAGS = frozenset(
    "h1 h2 h3 h4 h5 h6 br b i strong em a pre code img tt div ins del sup sub p ol ul table thead"
    " tbody tfoot blockquote dl dt dd kbd q samp var hr ruby rt rp li tr td th s strike summary"
    " details caption figure figcaption abbr bdo cite dfn mark small span time wbr".split()
)
ATTRIBUTES = frozenset(
    "abbr align alt axis border cellpadding cellspacing cols colspan compact dir headers height"
    " href hspace label lang name noshade nowrap open rel rows rowspan rules scope size span src"
    " start summary tabindex title type valign value vspace width".split()
)
EMPTIED = frozenset(("script", "style"))
_BLOCKS = frozenset("div p pre tr table details summary h1 h2 h3 h4 li figure dt dd br hr".split())


class Sanitized(HTMLParser):
    """`html` as it is let through; `text`: what a reader sees, a line for each block."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html, self.text, self._hidden = "", "", 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in EMPTIED
        if tag in TAGS:
            kept = (
                f' {name}="{escape(value or "")}"'
                for name, value in attrs
                if self._has(name, value)
            )
            self.html += f"<{tag}{''.join(kept)}>"
        self.text += "\n" * (tag in _BLOCKS) + "\t" * (tag in ("td", "th"))
        self.text += next((f"[{value}]" for name, value in attrs if name == "alt"), "")

    def _has(self, name: str, value: str | None) -> bool:
        return name in ATTRIBUTES and (name != "src" or (value or "").startswith("http"))

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in EMPTIED
        if tag in TAGS:
            self.html += f"</{tag}>"

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.html += escape(data)
            self.text += data


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    return shown_outputs()


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_are_in_the_same_output(name: str, shown: dict[str, Any]) -> None:
    data, _ = DisplayFormatter().format(shown[name])
    assert "text/html" in data or "image/svg+xml" in data
    plain = data["text/plain"]
    assert len(plain) > 20 and " object at 0x" not in plain and "<svg" not in plain


@pytest.mark.parametrize("name", [name for name in NAMES if name != "picture"])
def test_html_without_styles_keeps_all_words(name: str, shown: dict[str, Any]) -> None:
    html = shown[name]._repr_html_()
    seen = Sanitized(html)
    assert "style" not in re.findall(r"<(\w+)", seen.html) and "{" not in seen.text.split("\n")[0]
    assert words(Sanitized(seen.html).text) == words(seen.text)  # nothing but looks is lost
    if name != "status":  # whose columns are headed by what is counted
        told = re.findall(r"\d+ (?:graphs?|kernels?|variants?|calls?)\b", str(shown[name]))
        assert all(figure in seen.text for figure in told)
    if name == "explain":
        (line,) = [one for one in seen.text.splitlines() if "x = torch.relu(x * y + 2)" in one][:1]
        assert "        x = torch.relu(x * y + 2)" in line  # as it is indented


def test_lines_of_the_source_stand_apart_without_styles(shown: dict[str, Any]) -> None:
    lines = Sanitized(shown["explain"]._repr_html_()).text.splitlines()
    for text in ("for _ in range(2):", "jitmagic.graph_break()", "return x.sum(-1)"):
        assert any(line.rstrip().endswith(text) or f"{text} " in line for line in lines)
