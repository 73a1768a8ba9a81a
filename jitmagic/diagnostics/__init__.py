"""diagnostics: reports on compiled functions, from the records of their compiles.

The pipeline never imports this package. `explain` imports the result types of the stages, so it is
loaded on first use. A report has three layers: `explanation/` collects plain data (`Findings`),
arranges it once (`Page`), and lays it out as text, by rich or as HTML. Every speed in a report is a
`records.Measured`, and every verdict comes from `explanation/verdict.py`.

    explanation/   jitmagic.explain: findings, page model, pictures, costs of lines and kernels
    checking/      passport, test and minify: compares compiled code with eager
    builds         the executables of a compile, and frames that can be measured again
    issue_report   jitmagic.report: one page or a folder with a capsule for each graph
    folder         writes the files of a report, all of them or none
    cache          jitmagic.cache: what the cache on disk holds, to list, clear and send
    status         the table of tagged functions, and the recompile ledger of one
    why            jitmagic.why: the variant that a call would run, or the guard that fails
    lowered        jitmagic.lower: the intermediate forms of one call, with flops and bytes
    timeline       jitmagic.timeline: when a call computes and when it communicates
    timing         interleaved measurements of several callables
    logs           live messages through `logging`, with the names of TORCH_LOGS
    structured     the trace file that tlparse reads
    dump           writes an explanation as a folder of files
    sources        syntax trees of the user's files and notebook cells
    whole_call     runs the generator or coroutine that a call returns
    words          text shared by the reports: counts, lines, HTML of plain lines
"""
