"""Strings that would leave a page, a comment, a string or a folder, if anything let them."""

from __future__ import annotations

__all__ = ["HOSTILE"]

_OF_PAGES = (
    "</pre><script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</style></title><svg onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<base href='//evil.example/'>",
    "<object data='data:text/html,<script>alert(1)</script>'></object>",
    "' onmouseover='alert(1)",
    '" style="background:url(javascript:alert(1))',
    "<a href='javascript:alert(1)'>x</a>",
    "<!--", "-->", "]]>", "<![CDATA[<script>]]>", "&lt;script&gt;", "&#60;script&#62;",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "<details open ontoggle=alert(1)>", "</details></div></body></html>",
    "<input autofocus onfocus=alert(1)>", "<link rel=stylesheet href=//evil.example>",
    "<meta http-equiv=refresh content=0>", "\x1b[2J\x1b]0;title\x07", "[link](javascript:alert(1))",
    "$$\\require{action}$$",
)  # fmt: skip
_OF_PYTHON = (
    '"""\nimport os\nraise SystemExit(7)\n"""',
    "'''\nraise SystemExit(7)\n'''",
    "'; raise SystemExit(7) #\n",
    '"; raise SystemExit(7) #',
    "\nraise SystemExit(7)\n",
    "x\r\nraise SystemExit(7)",
    "{__import__('os').abort()}",
    "%(x)s", "{0.__class__}", "\\", "\\'", '\\"', "\\\n", "\\N{DIGIT ONE}",
)  # fmt: skip
_OF_CPP = (
    "*/ int x = system(0); /*",
    "*/\n#error mine\n/*",
    "// \\\n#error mine",
    '#include "/etc/passwd"',
    "??/\n#error mine",
    'R"(x)"; abort(); R"(',
    "_Pragma(\"GCC error\")",
    "); tl.device_assert(False) #",
)  # fmt: skip
_OF_TEXT = ("\\u0022 \u2028 \udc80 \x00 {0} %s ${x}", "../../outside/..", "a" * 3000, "\u202e")

HOSTILE = (*_OF_PAGES, *_OF_PYTHON, *_OF_CPP, *_OF_TEXT)
