"""explanation: collects, arranges and renders the report of `jitmagic.explain`.

`explain` collects `Findings` from compile records; `page` arranges them as a `Page`, which is plain
data; `report` (text, rich) and `html` (jinja2, templates/) only lay that page out, so that all
views agree.

    explain, findings      collect all facts about one compiled function
    page, page_model       the report as data: verdict, chips, warnings, folds
    page_code              its source lines, modules and kernels
    report, html           text and rich; static HTML
    verdict                speed against eager, and when the compile time is paid back
    breaks, edits          graph breaks on the user's lines, and a diff that avoids each
    facts, symbols         guards in words; dynamic sizes and numbers
    kernels, limits        each launch in words; the time of a copy of the same size
    cost, line_timing      seconds of each line, eager and compiled, on synthetic tensors
    module_tree, gutter    seconds of modules, and the source with seconds beside each line
    footprint              bytes alive after each operation
    pictures, svg          the graph, compile time and memory as SVG
    highlight              syntax highlighting (pygments)
"""
