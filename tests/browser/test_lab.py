"""What people see in JupyterLab: rendered, folding, copied, free of errors and of a network."""

from __future__ import annotations

import pytest

from tests.browser.lab import CELLS, Lab, outside

SHOWN = {
    "compile": "compiled step as part of this cell in",
    "report": "broken is not measured yet",
    "gutter": "is not measured yet",
    "card": "step",
    "status": "step",
    "passport": "bitwise",
}


@pytest.mark.parametrize("cell", SHOWN)
def test_a_cell_shows_its_report(lab: Lab, cell: str) -> None:
    text = "\n".join(lab.output(cell).all_inner_texts())
    assert SHOWN[cell] in text


def test_no_cell_has_a_red_box(lab: Lab) -> None:
    red = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type$='stderr']"
    assert lab.page.locator(".jp-CodeCell").count() >= len(CELLS)
    assert lab.page.locator(f".jp-NotebookPanel :is({red})").all_inner_texts() == []


def test_nothing_is_asked_outside_and_nothing_is_complained_of(lab: Lab) -> None:
    assert lab.asked
    assert [address for address in lab.asked if outside(address)] == []
    assert lab.errors == []


def test_a_picture_is_drawn_and_named(lab: Lab) -> None:
    picture = lab.page.get_by_role("img", name="step")
    box = picture.bounding_box()
    assert box is not None
    assert box["width"] > 50 < box["height"]


def test_a_picture_is_legible_in_every_theme(themed: Lab) -> None:
    """Its paper is painted with it: most of what is seen is white, whatever lies behind."""
    picture = themed.page.get_by_role("img", name="step").element_handle()
    assert picture is not None
    drawn = picture.evaluate(
        """image => {
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const found = context.getImageData(0, 0, image.width, image.height).data;
            let white = 0;
            for (let i = 0; i < found.length; i += 4)
                white += Math.min(...found.subarray(i, i + 4)) > 250;
            return white / (found.length / 4);
        }"""
    )
    assert drawn > 0.5


@pytest.mark.parametrize("key", ["click", "Enter", "Space"])
def test_a_fold_opens_and_closes(lab: Lab, key: str) -> None:
    summary = lab.output("report").locator("details:not([open]) > summary").first
    fold = summary.locator("..").element_handle()
    assert fold is not None
    for is_open in (True, False):
        top = fold.query_selector(":scope > summary")
        assert top is not None
        if key == "click":
            top.click()
        else:
            top.press(key)
        assert fold.evaluate("fold => fold.open") is is_open


def test_copied_source_has_no_line_numbers(lab: Lab) -> None:
    numbers = lab.output("report").locator(".source .no")
    assert numbers.count() > 1
    assert numbers.first.evaluate("number => getComputedStyle(number).userSelect") == "none"
    copied = lab.page.evaluate(
        "source => { getSelection().selectAllChildren(source); return getSelection().toString() }",
        lab.output("report").locator(".source").first.element_handle(),
    )
    assert "    y = x * 2" in copied


@pytest.mark.parametrize(
    "cell", ["compile", "report", "gutter", "card", "status", "picture", "passport"]
)
def test_axe_finds_nothing_serious(themed: Lab, cell: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    mark = "(outputs, on) => outputs.forEach(one => one.toggleAttribute('data-axe', on))"
    themed.output(cell).evaluate_all(mark, True)
    try:
        found = Axe().run(themed.page, context="[data-axe]").response["violations"]
    finally:
        themed.output(cell).evaluate_all(mark, False)
    serious = [
        (rule["id"], node["html"][:200], node["failureSummary"])
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
    assert serious == []


def test_tab_completes_a_magic_in_the_front_end(lab: Lab) -> None:
    """With a body below it, as a cell has: the list that opens has the options and no others."""
    from playwright.sync_api import expect

    page = lab.page
    page.locator(".jp-NotebookPanel .jp-CodeCell").last.locator(".cm-content").click()
    page.keyboard.press("Escape")
    page.keyboard.press("b")  # a new cell below
    page.keyboard.press("Enter")
    page.keyboard.type("%%compile --mo\nx = 1")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    line = page.locator(".jp-NotebookPanel .jp-CodeCell").last.locator(".cm-line").first
    offered = page.locator(".jp-Completer .jp-Completer-match")
    expect(offered).to_have_text(["--mode"], timeout=60_000)
    page.keyboard.press("Enter")
    expect(line).to_have_text("%%compile --mode")
    page.keyboard.type(" max-a")
    page.keyboard.press("Tab")
    modes = ["max-autotune", "max-autotune-no-cudagraphs"]
    expect(offered).to_have_text(modes, timeout=60_000)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(line).to_have_text(f"%%compile --mode {modes[1]}")
