"""Small uses of standard library modules, to run them with their code taken apart and put together.

`SCENARIOS` maps a name to the modules whose functions are replaced, and a function that uses them
and returns plain data. Modules with a C accelerator are imported afresh without it.
"""

from __future__ import annotations

import ast
import base64
import bisect
import calendar
import collections
import colorsys
import configparser
import contextlib
import copy
import csv
import difflib
import fnmatch
import fractions
import graphlib
import heapq
import html
import html.parser
import importlib
import inspect
import io
import ipaddress
import json
import json.decoder
import json.encoder
import json.scanner
import numbers
import operator
import pprint
import random
import re
import reprlib
import shlex
import statistics
import string
import sys
import textwrap
import tokenize
import types
import urllib.parse
from re import _compiler, _parser

SCENARIOS = {}


def scenario(*modules):
    def register(function):
        SCENARIOS[function.__name__] = (modules, function)
        return function

    return register


def without_accelerator(name, *accelerators):
    """The pure Python form of a module, as a module object of its own."""
    hidden = {key: sys.modules.get(key) for key in (name, *accelerators)}
    sys.modules.pop(name, None)
    sys.modules.update(dict.fromkeys(accelerators))
    try:
        return importlib.import_module(name)
    finally:
        for key, module in hidden.items():
            if module is None:
                sys.modules.pop(key, None)
            else:
                sys.modules[key] = module


pure_heapq = without_accelerator("heapq", "_heapq")
pure_bisect = without_accelerator("bisect", "_bisect")
pure_operator = without_accelerator("operator", "_operator")
pure_datetime = without_accelerator(
    "datetime" if sys.version_info < (3, 12) else "_pydatetime", "_datetime"
)


@scenario(textwrap)
def use_textwrap():
    text = "The quick brown fox jumped over the lazy dog, well-known to everyone. " * 2
    return (
        textwrap.wrap(text, 30),
        textwrap.fill(text, 40, initial_indent="* ", subsequent_indent="  ", max_lines=3),
        textwrap.shorten(text, 20),
        textwrap.dedent("   a\n    b\n"),
        textwrap.indent("a\n\nb", "> "),
    )


@scenario(json, json.encoder, json.decoder, json.scanner)
def use_json():
    value = {"a": [1, 2.5, None, True, {"x": "ü\n"}], "b": (), "c": float("inf"), "d": {}}
    decoder = json.JSONDecoder(parse_float=str)
    decoder.scan_once = json.scanner.py_make_scanner(decoder)
    out = [
        json.dumps(value, indent=2, sort_keys=True),
        json.dumps(value, separators=(",", ":")),
        decoder.decode('{"k": [1, 2.5, "s", null, true, NaN], "e": {}}')["k"][:5],
        json.decoder.py_scanstring('a\\u00fcb\\n"', 0),
    ]
    for bad in ('{"a" 1}', "[1,]", "nope"):
        try:
            json.loads(bad)
        except json.JSONDecodeError as error:
            out.append(str(error))
    try:
        json.dumps(object)
    except TypeError as error:
        out.append(str(error))
    return out


@scenario(pure_heapq)
def use_heapq():
    data = [5, 1, 8, 3, 9, 2]
    heap = list(data)
    pure_heapq.heapify(heap)
    popped = [pure_heapq.heappop(heap) for _ in range(3)]
    pure_heapq.heappush(heap, 0)
    return (
        popped,
        pure_heapq.heappushpop(heap, 4),
        pure_heapq.heapreplace(heap, 7),
        pure_heapq.nlargest(3, data, key=lambda x: -x),
        pure_heapq.nsmallest(2, data),
        list(pure_heapq.merge([1, 4], [2, 3], key=lambda x: x)),
        list(pure_heapq.merge([4, 1], [3, 2], reverse=True)),
    )


@scenario(pure_bisect)
def use_bisect():
    data = [1, 2, 2, 3]
    pure_bisect.insort(data, 2)
    pure_bisect.insort_left(data, 0, key=lambda x: x)
    return data, pure_bisect.bisect_left(data, 2), pure_bisect.bisect_right(data, 2, 1, 5)


@scenario(pure_operator)
def use_operator():
    return (
        pure_operator.add(1, 2),
        pure_operator.itemgetter(1, 2)("abc"),
        pure_operator.attrgetter("real", "imag")(1),
        pure_operator.methodcaller("split", sep="-")("a-b"),
        pure_operator.countOf([1, 1, 2], 1),
        pure_operator.indexOf([1, 2], 2),
        pure_operator.length_hint([1, 2]),
        pure_operator.concat([1], [2]),
    )


@scenario(pure_datetime)
def use_datetime():
    d = pure_datetime.datetime(2024, 2, 29, 12, 30, 15, 250, tzinfo=pure_datetime.timezone.utc)
    delta = pure_datetime.timedelta(days=400, hours=5, microseconds=7)
    return (
        (d + delta).isoformat(),
        str(delta * 2 // 3),
        d.isocalendar()[:],
        pure_datetime.date.fromisoformat("2021-03-04").toordinal(),
        d.strftime("%Y-%m-%d %H"),
        str(d.replace(day=1) - d),
        repr(pure_datetime.time(1, 2, 3)),
        d < d + delta,
    )


@scenario(statistics, fractions, numbers)
def use_statistics():
    data = [1.5, 2.5, 2.5, 2.75, 3.25, 4.75]
    normal = statistics.NormalDist.from_samples(data)
    return (
        statistics.mean(data),
        statistics.fmean(data),
        statistics.geometric_mean(data),
        statistics.harmonic_mean(data),
        statistics.median(data),
        statistics.median_grouped([1, 2, 2, 3]),
        statistics.mode("aabbb"),
        statistics.multimode("aabb"),
        statistics.stdev(data),
        statistics.pvariance([fractions.Fraction(1, 3), fractions.Fraction(2, 5)]),
        statistics.quantiles(data, n=4),
        statistics.correlation(data, data[::-1]),
        statistics.linear_regression([1, 2, 3], [2, 4, 7]),
        normal.cdf(2.0),
        normal.inv_cdf(0.3),
        str(normal + 2),
    )


@scenario(fractions)
def use_fractions():
    a, b = fractions.Fraction("3/7"), fractions.Fraction(1.25)
    return (
        a + b,
        a - b,
        a * b,
        a / b,
        a**2,
        a % b,
        a // b,
        divmod(b, a),
        round(b, 1),
        a < b,
        a == 0.5,
        b.limit_denominator(3),
        str(a),
        repr(b),
        hash(a),
        float(a),
        -a,
        abs(a),
        1 + a,
        2.0 * a,
    )


@scenario(difflib)
def use_difflib():
    a, b = "one two three four".split(), "one too three five four".split()
    matcher = difflib.SequenceMatcher(None, a, b)
    return (
        matcher.get_opcodes(),
        matcher.ratio(),
        list(difflib.unified_diff(a, b, lineterm="")),
        list(difflib.context_diff(a, b, lineterm="")),
        list(difflib.ndiff(["ab\n", "cd\n"], ["ax\n", "cd\n"])),
        difflib.get_close_matches("appel", ["ape", "apple", "peach"]),
        len(difflib.HtmlDiff().make_table(a, b)),
    )


@scenario(ast)
def use_ast():
    source = textwrap.dedent(inspect.getsource(use_fractions)).partition("\n")[2]
    tree = ast.parse(source)
    names = []

    class Visitor(ast.NodeVisitor):
        def visit_Name(self, node):
            names.append(node.id)

    Visitor().visit(tree)
    return (
        ast.unparse(tree),
        ast.dump(tree)[:300],
        ast.literal_eval("{'a': [1, -2.5, (3, None)], 'b': {4}}"),
        names[:10],
        ast.get_docstring(ast.parse("'doc'")),
        len(list(ast.walk(tree))),
    )


@scenario(tokenize)
def use_tokenize():
    source = b"# coding: utf-8\ndef f(x):\n    return x + 'a' # c\n"
    tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    return [t[:4] for t in tokens], tokenize.untokenize(tokens), str(tokens[3])


@scenario(re, _parser, _compiler)
def use_re():
    patterns = [
        (r"(?P<y>\d{4})-(?P<m>\d\d)(?:-(\d+))?", "2024-05-17"),
        (r"(?i)[a-f]+|x(?=y)|^z*?$", "ABCdefxy"),
        (r"(a|b)*c(?(1)d|e)\b", "abacd"),
        (r"[^\W\d_]+(?<!q)\s{2,3}", "word   x"),
    ]
    out = [[m.span() for m in re.compile(p, re.ASCII).finditer(s)] for p, s in patterns]
    for bad in ("(", "[a", "*a", r"(?P<1>x)", "a{2,1}"):
        try:
            re.compile(bad)
        except re.error as error:
            out.append(str(error))
    return out, re.escape("a.b*c"), re.sub(r"(\w)(\w)", r"\2\1", "abcd"), repr(re.I | re.M)


@scenario(shlex)
def use_shlex():
    lexer = shlex.shlex("a = 'b c' # x\nd|e", posix=False, punctuation_chars=True)
    out = [
        list(lexer),
        shlex.split('a \'b c\' "d\\"e" f\\ g'),
        shlex.quote("a b"),
        shlex.join(["x y"]),
    ]
    try:
        shlex.split("'open")
    except ValueError as error:
        out.append(str(error))
    return out


@scenario(csv)
def use_csv():
    out = io.StringIO()
    writer = csv.DictWriter(out, ["a", "b"], extrasaction="ignore")
    writer.writeheader()
    writer.writerows([{"a": 1, "b": "x,y", "c": 3}, {"a": 'q"'}])
    rows = list(csv.DictReader(io.StringIO(out.getvalue() + "1,2,3\n")))
    sniffer = csv.Sniffer()
    text = "a;b;c\n1;2;3\n4;5;6\n"
    return out.getvalue(), rows, sniffer.sniff(text).delimiter, sniffer.has_header(text)


@scenario(string)
def use_string():
    class Custom(string.Formatter):
        def get_value(self, key, args, kwargs):
            return kwargs.get(key, "?") if isinstance(key, str) else args[key]

    template = string.Template("$a and ${b} cost $$1")
    return (
        Custom().format("{0} {x} {y!r:>5} {1[0]}", 1, [2], y="z"),
        template.substitute(a=1, b=2),
        template.safe_substitute(a=1),
        string.capwords("hello  big world"),
    )


@scenario(colorsys)
def use_colorsys():
    rgb = (0.2, 0.4, 0.9)
    return [
        getattr(colorsys, back)(*getattr(colorsys, there)(*rgb))
        for there, back in (
            ("rgb_to_hsv", "hsv_to_rgb"),
            ("rgb_to_hls", "hls_to_rgb"),
            ("rgb_to_yiq", "yiq_to_rgb"),
        )
    ]


@scenario(calendar)
def use_calendar():
    return (
        calendar.TextCalendar().formatmonth(2024, 2),
        calendar.HTMLCalendar(6).formatmonth(2023, 1)[:400],
        calendar.monthrange(2024, 2),
        calendar.isleap(1900),
        calendar.Calendar().monthdayscalendar(2024, 9),
        calendar.timegm((2024, 1, 2, 3, 4, 5)),
        calendar.leapdays(1990, 2024),
    )


@scenario(configparser)
def use_configparser():
    parser = configparser.ConfigParser()
    parser.read_string("[a]\nx = 1\ny: %(x)s2\n  more\n; c\n[b]\nflag = yes\n")
    out = io.StringIO()
    parser.write(out)
    result = [
        parser.getint("a", "x"),
        parser["a"]["y"],
        parser["b"].getboolean("flag"),
        out.getvalue(),
    ]
    for bad in ("x = 1", "[a]\n[a]\n"):
        try:
            configparser.ConfigParser().read_string(bad)
        except configparser.Error as error:
            result.append(type(error).__name__)
    return result


@scenario(collections)
def use_collections():
    counter = collections.Counter("abracadabra")
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    point = collections.namedtuple("Point", "x y", defaults=[5])
    ordered = collections.OrderedDict(a=1, b=2)
    users = collections.UserList([3, 1]) + [2]
    return (
        counter.most_common(2),
        sorted((counter - collections.Counter("aab")).items()),
        dict(chain.new_child({"c": 4})),
        point(1)._replace(x=3)._asdict(),
        list(ordered),
        users,
        collections.UserString("abc").upper(),
        dict(collections.UserDict(a=1) | {"b": 2}),
    )


@scenario(copy)
def use_copy():
    class Thing:
        def __init__(self, value):
            self.value = value

    loop = [1, {"a": (2, [3])}]
    loop.append(loop)
    deep = copy.deepcopy(loop)
    thing = copy.deepcopy(Thing([1, 2]))
    return deep[2] is deep, deep[1], copy.copy({1: [2]}), thing.value, copy.copy(Thing(3)).value


@scenario(pprint)
def use_pprint():
    value = {
        "key": ["word " * 10] * 3,
        "set": {3, 1, 2},
        "t": (1,),
        "d": {str(i): i for i in range(20)},
    }
    return (
        pprint.pformat(value, width=40, depth=3),
        pprint.saferepr([value["t"]]),
        pprint.isreadable(value),
    )


@scenario(contextlib)
def use_contextlib():
    log = []

    @contextlib.contextmanager
    def manager(name):
        log.append(name)
        try:
            yield
        finally:
            log.append("-" + name)

    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        for name in "ab":
            stack.enter_context(manager(name))
        stack.callback(log.append, "callback")
        raise KeyError
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print("x")
    with contextlib.closing(io.StringIO()) as f:
        pass
    return log, out.getvalue(), f.closed


@scenario(fnmatch, graphlib, reprlib, html, base64)
def use_small_modules():
    sorter = graphlib.TopologicalSorter({"d": {"b", "c"}, "b": {"a"}, "c": {"a"}})
    out = [
        fnmatch.filter(["a.py", "b.txt"], "*.py"),
        fnmatch.translate("a[!b]?*"),
        len(list(sorter.static_order())),
        reprlib.repr(list(range(50))),
        reprlib.repr({"k": "x" * 100}),
        html.escape("<a href='x'>&"),
        html.unescape("&lt;&eacute;&#65;&nope;"),
        base64.b32encode(b"hello"),
        base64.b85decode(base64.b85encode(b"hello")),
        base64.a85encode(b"\0\0\0\0abc"),
    ]
    try:
        list(graphlib.TopologicalSorter({1: [2], 2: [1]}).static_order())
    except graphlib.CycleError as error:
        out.append(len(error.args[1]))
    return out


@scenario(html.parser)
def use_html_parser():
    events = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            events.append((tag, attrs))

        def handle_endtag(self, tag):
            events.append(tag)

        def handle_data(self, data):
            events.append(data)

    Parser().feed(
        "<!doctype html><p class=a id='b'>x &amp; y<br/><!-- c --><script>1<2</script></p>"
    )
    return events


@scenario(ipaddress)
def use_ipaddress():
    network = ipaddress.ip_network("192.168.0.0/29")
    out = [
        [str(host) for host in network.hosts()],
        [str(part) for part in network.subnets(new_prefix=30)],
        str(ipaddress.ip_address("2001:db8::1").exploded),
        list(
            map(
                str,
                ipaddress.summarize_address_range(
                    *map(ipaddress.ip_address, ["10.0.0.1", "10.0.0.6"])
                ),
            )
        ),
        ipaddress.ip_address("10.0.0.1") in ipaddress.ip_network("10.0.0.0/8"),
    ]
    for bad in ("1.2.3", "1.2.3.256", "::g"):
        try:
            ipaddress.ip_address(bad)
        except ValueError as error:
            out.append(str(error))
    return out


@scenario(urllib.parse)
def use_urllib_parse():
    return (
        urllib.parse.urlparse("https://u:p@host:81/a;b?c=d&e=f#g"),
        urllib.parse.urljoin("http://a/b/c/d", "../x?y"),
        urllib.parse.parse_qs("a=1&a=2&b=%20"),
        urllib.parse.urlencode({"a": ["1", "ü"]}, doseq=True),
        urllib.parse.quote("a b/ü"),
        urllib.parse.unquote_plus("a+b%C3%BC"),
        urllib.parse.urlsplit("//h/p").geturl(),
    )


@scenario(random)
def use_random():
    rng = random.Random(7)
    data = list(range(10))
    rng.shuffle(data)
    return (
        data,
        rng.sample(range(100), 5),
        rng.choices("abc", [1, 2, 3], k=5),
        rng.gauss(0, 1),
        rng.triangular(),
        rng.betavariate(2, 3),
        rng.randint(1, 6),
        rng.expovariate(2.0),
        rng.vonmisesvariate(1, 2),
    )


@scenario(inspect)
def use_inspect():
    def f(a, /, b: int = 2, *args, c, **kw) -> str: ...

    signature = inspect.signature(f)
    bound = signature.bind(1, 3, 4, c=5, z=6)
    out = [str(signature), bound.args, bound.kwargs, inspect.getfullargspec(f)[:4]]
    try:
        signature.bind(1)
    except TypeError as error:
        out.append(str(error))
    return out, inspect.cleandoc("  a\n    b\n  "), inspect.getdoc(use_copy)


assert all(
    isinstance(module, types.ModuleType) for modules, _ in SCENARIOS.values() for module in modules
)
assert all((bisect, heapq, operator))  # imported before their pure forms, so that those stay apart
