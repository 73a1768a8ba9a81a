"""Screenshots of a cell's output that can be compared: without what differs from run to run.

Comes in: a cell of the page. Goes out: a PNG of a copy of its output in which every figure is 0 and
no line is yellower than another. Two are compared in the browser, which has decoders.
"""

from __future__ import annotations

import base64
from typing import Any

from tests.browser.lab import Lab

__all__ = ["difference", "pictures_differ", "shot"]

_COPY = """area => {
    const copy = area.cloneNode(true);
    const figure = /[\\d,]*\\d(\\.\\d+)?(e[+-]?\\d+)?( ?(ns|µs|ms|s|B|KiB|MiB)(?!\\w))?/g;
    const walker = document.createTreeWalker(copy, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode;
        if (text.parentElement.tagName !== 'STYLE')
            text.data = text.data.replace(figure, '0').replace(/(\\b0[:.])+0\\b/g, '0')
                .replace(/ \\(0 kernels? from disk\\)/, '');
    }
    copy.querySelectorAll('[style*=background]').forEach(line => line.style.background = 'none');
    copy.querySelectorAll('.bar i').forEach(bar => bar.style.width = '3em');
    copy.id = 'shot';
    copy.style.cssText = 'position:fixed;top:0;left:0;width:950px;z-index:9999;'
        + 'background:var(--jp-layout-color0)';
    document.body.append(copy);
}"""

_DIFFERENCE = """async ([left, right]) => {
    const pixels = async text => {
        const image = await createImageBitmap(await (await fetch(text)).blob());
        const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, image.width, image.height);
    };
    const [a, b] = [await pixels(left), await pixels(right)];
    if (a.width !== b.width || Math.abs(a.height - b.height) > 0.02 * b.height) return 1;
    const end = Math.min(a.data.length, b.data.length);
    let differing = 0;
    for (let i = 0; i < end; i += 4)
        differing += [0, 1, 2].some(c => Math.abs(a.data[i + c] - b.data[i + c]) > 48);
    return differing / (end / 4);
}"""


def shot(lab: Lab, cell: str) -> bytes:
    """A PNG of what the cell shows."""
    lab.area(cell).evaluate(_COPY)
    try:
        png: bytes = lab.page.locator("#shot").screenshot(animations="disabled")
    finally:
        lab.page.evaluate("document.getElementById('shot').remove()")
    return png


def difference(lab: Lab, left: bytes, right: bytes) -> float:
    """The part of all pixels that differ; 1 where even the size does."""
    return pictures_differ(lab.page, left, right)


def pictures_differ(page: Any, left: bytes, right: bytes) -> float:
    """The same, decoded by any page."""
    urls = [f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in (left, right)]
    found: float = page.evaluate(_DIFFERENCE, urls)
    return found
