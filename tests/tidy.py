"""What `test_tidy.py` looks for: checkers over the text and the syntax tree of the project's files.

A checker takes one file and returns findings, `path:line: what`. It knows no limits but those it is given, so that a
test can plant an offender and see it found.
"""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One tracked file: its path from the root of the project, and its text."""

    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parse(self.text)

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}: {what}"


@cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def tracked() -> tuple[Source, ...]:
    """Every text file that git knows and that is there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    return tuple(Source(name, text) for name in paths if (text := _text(ROOT / name)) is not None)


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None  # golden bytes


def python_files(*prefixes: str) -> list[Source]:
    return [each for each in tracked() if each.name.endswith(".py") and each.name.startswith(prefixes)]


# ---- Sizes ----


def functions(source: Source) -> list[tuple[Function, int]]:
    """Every function with its length in lines, decorators left out."""
    return [(node, _lines(node)) for node in ast.walk(source.tree) if isinstance(node, Function)]


def _lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions(source: Source, limit: int) -> list[str]:
    found = [(node, lines) for node, lines in functions(source) if lines > limit]
    return [source.at(node, f"{node.name} has {lines} lines; the end is {limit}") for node, lines in found]


def long_file(source: Source, limit: int) -> list[str]:
    lines = source.text.count("\n") + 1
    return [f"{source.name}: {lines} lines; the end is {limit}"] if lines > limit else []


def big_classes(source: Source, limit: int) -> list[str]:
    """Classes by the number of their own methods, properties and operators included."""
    classes = [node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    counts = [(node, sum(isinstance(each, Function) for each in node.body)) for node in classes]
    found = [(node, count) for node, count in counts if count > limit]
    return [source.at(node, f"{node.name} has {count} methods; the end is {limit}") for node, count in found]


# ---- Names and calls ----


def repeated_module_names(sources: Iterable[Source]) -> list[str]:
    """Modules whose name another one has, in whatever package; each `__init__.py` is a package and not a module."""
    first: dict[str, str] = {}
    found = []
    for source in sources:
        name = source.name.rpartition("/")[2]
        if name != "__init__.py" and (other := first.setdefault(name, source.name)) != source.name:
            found.append(f"{source.name}: has the name of {other}")
    return found


def private_reaches(source: Source) -> list[str]:
    """Private names of other modules: imported, or read from an object that is not the own one.

    A private method or field that the file itself defines is its own, whatever object it is read from.
    """
    own = {node.name for node in ast.walk(source.tree) if isinstance(node, Function)} | _own_fields(source)
    imported = [
        (node, alias.name)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    read = [
        (node, ast.unparse(node))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and not _is_own_object(node.value) and node.attr not in own
    ]
    return [
        source.at(node, f"reaches into {name}")
        for node, name in [*imported, *read]
        if _is_private(name.rpartition(".")[2])
    ]


def _own_fields(source: Source) -> set[str]:
    """What methods of the file assign to `self`."""
    return {
        node.attr
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own_object(node.value)
    }


def _is_own_object(node: ast.expr) -> bool:
    return dotted(node) in ("self", "cls") or (isinstance(node, ast.Call) and dotted(node.func) == "super")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def dotted(node: ast.AST) -> str:
    """`asyncio.wait` of such an expression; empty for one that is not a path of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (prefix := dotted(node.value)):
        return f"{prefix}.{node.attr}"
    return ""


def imported_names(source: Source) -> dict[str, str]:
    """What the imported names of a file stand for: `{"asyncio": "asyncio", "sleep": "time.sleep"}`."""
    found = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def references(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every name used, as its defining module calls it; an attribute of a local object begins with a dot."""
    imported = imported_names(source)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name):
            yield node, imported.get(node.id, node.id)
        elif isinstance(node, ast.Attribute):
            module, _, rest = dotted(node).partition(".")
            yield node, f"{imported[module]}.{rest}" if module in imported else f".{node.attr}"


def banned_uses(source: Source, banned: Iterable[str]) -> list[str]:
    """Uses of names such as `time.sleep`; `random.` bans the module's functions, but not its classes.

    A pattern that starts with a dot bans the method of any local object.
    """
    patterns = tuple(banned)
    return [
        source.at(node, f"{name} is banned here")
        for node, name in references(source)
        if any(_is_banned(name, pattern) for pattern in patterns)
    ]


def _is_banned(name: str, pattern: str) -> bool:
    if pattern.endswith("."):
        return name.startswith(pattern) and name.removeprefix(pattern)[:1].islower()
    return name == pattern


def coroutines(source: Source) -> list[str]:
    found = [node for node in ast.walk(source.tree) if isinstance(node, ast.AsyncFunctionDef)]
    return [source.at(node, f"async def {node.name}; cores are synchronous") for node in found]


def assertions(source: Source) -> list[str]:
    """Asserts but those that only tell the type checker what a value is: `is not None` and `isinstance`, no message."""
    found = [node for node in ast.walk(source.tree) if isinstance(node, ast.Assert)]
    return [
        source.at(node, "assert; `python -O` takes it out, so raise InvariantBroken")
        for node in found
        if node.msg is not None or not _is_narrowing(node.test)
    ]


def _is_narrowing(test: ast.expr) -> bool:
    if isinstance(test, ast.Call):
        return dotted(test.func) == "isinstance"
    return isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot)


# ---- Sets ----

ORDERLESS = {"sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len"}


def set_iterations(source: Source) -> list[str]:
    """Loops, comprehensions and conversions that walk a set, where its order could be seen.

    What is a set is read from literals, calls of `set` and annotations of names in the same file.
    """
    known = _set_names(source.tree)
    harmless = {
        id(argument)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and dotted(node.func) in ORDERLESS
        for argument in node.args
    }
    walked = [walk for node in ast.walk(source.tree) if id(node) not in harmless for walk in _walked(node)]
    return [source.at(each, f"walks the set {ast.unparse(each)}") for each in walked if _is_set(each, known)]


def _walked(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.iter]
    if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
        return [generator.iter for generator in node.generators]
    if isinstance(node, ast.Call) and dotted(node.func) in ("list", "tuple", "iter", "enumerate"):
        return node.args[:1]
    return []


def _is_set(node: ast.expr, known: set[str]) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_set(node.left, known) or _is_set(node.right, known)
    if isinstance(node, ast.Call):
        return dotted(node.func) in ("set", "frozenset")
    return isinstance(node, ast.Set | ast.SetComp) or _last_name(node) in known


def _set_names(tree: ast.Module) -> set[str]:
    annotated = {
        _last_name(node.target) if isinstance(node, ast.AnnAssign) else node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation and _names_a_set(node.annotation)
    }
    assigned = {
        _last_name(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_set(node.value, set())
        for target in node.targets
    }
    return (annotated | assigned) - {""}


def _names_a_set(annotation: ast.expr) -> bool:
    return re.match(r"'?(set|frozenset|AbstractSet|Set|MutableSet)\b", ast.unparse(annotation)) is not None


def _last_name(node: ast.AST) -> str:
    return dotted(node).rpartition(".")[2]


# ---- Texts ----


def without_docstring(source: Source) -> list[str]:
    return [] if ast.get_docstring(source.tree) else [f"{source.name}: no module docstring"]


def forbidden_text(source: Source, patterns: dict[str, str]) -> list[str]:
    lines = source.text.split("\n")
    return [
        f"{source.name}:{number}: {what}: {line.strip()[:80]}"
        for what, pattern in patterns.items()
        for number, line in enumerate(lines, 1)
        if re.search(pattern, line)
    ]


def broken_links(source: Source) -> list[str]:
    """Relative links of a Markdown file that lead nowhere."""
    targets = [match.partition("#")[0] for match in re.findall(r"\]\(([^)\s]+)\)", source.text)]
    here = (ROOT / source.name).parent
    missing = [each for each in targets if each and "://" not in each and not (here / each).exists()]
    return [f"{source.name}: links to {each}, which is not there" for each in missing]


def missing_names(source: Source) -> list[str]:
    """Names in links to Python files, as [`Class.method`](file.py), that the file does not define."""
    here = (ROOT / source.name).parent
    links = re.findall(r"\[`?(\w+(?:\.\w+)?)`?\]\(([^)\s]+\.py)\)", source.text)
    return [
        f"{source.name}: names {name}, which {path} does not define; say what does it now"
        for name, path in links
        if not name.endswith(".py") and (here / path).exists() and name not in _defined(here / path)
    ]


@cache
def _defined(path: Path) -> set[str]:
    """Functions, classes, `Class.method`s and constants of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        names = _names(node)
        found |= names
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for each in node.body for name in _names(each)}
    return found


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return {each.id for each in targets if isinstance(each, ast.Name)}


# ---- The house in figures ----

# What makes a docstring hard to read at once: see the rules of prose in `hacking.md`.
PROSE = {
    "docstrings that begin without a subject": r"\A(What|Where|Which|When|Those|These|It|As|Of|By|How|Whatever)\b",
    "docstrings with 'what is' as a noun": (
        r"[a-z,] what (is|are|was|were|has|had|comes|came|goes|went|waits|fills|follows|leaves)\b"
    ),
    "docstrings glued by 'meanwhile' or 'by then'": (
        r"\b(meanwhile|by then|of before|from there on|of its own|at that)\b"
    ),
    "docstrings with 'is to be'": r"\b(is|are|was|were) to be\b",
    "docstrings with 'nobody' or 'who'": r"(?i)\b(nobody|somebody|whoever|who)\b",
    "docstrings that say 'See the module'": r"\bSee the module\b",
}


def figures(sources: Iterable[Source]) -> dict[str, int]:
    """How fine the house is cut and how its docstrings read, as numbers of which less is better."""
    sources = list(sources)
    modules = [each for each in sources if not each.name.endswith("__init__.py")]
    nodes = [node for source in sources for node in ast.walk(source.tree)]
    lengths = sorted(source.text.count("\n") for source in modules)
    docstrings = [text for source in sources for text in _docstrings(source)]
    classes = [
        node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    private, single = map(sum, zip(*map(_private_functions, sources), strict=True))
    imports = sum(map(_import_lines, sources))
    return {
        "modules": len(modules),
        "modules below 80 lines": sum(each < 80 for each in lengths),
        "class names that stand twice": sum(count > 1 for count in Counter(classes).values()),
        "lines of imports in a thousand": 1000 * imports // sum(map(_code_lines, sources)),
        "private functions with one caller in a hundred": 100 * single // private,
        **{
            name: sum(bool(re.search(symptom, each)) for each in docstrings)
            for name, symptom in PROSE.items()
        },
    }


def _docstrings(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            yield text


def _private_functions(source: Source) -> tuple[int, int]:
    """How many there are, and how many of them the file names once."""
    nodes = list(ast.walk(source.tree))
    used = Counter(
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in nodes
        if isinstance(node, ast.Attribute | ast.Name)
    )
    names = [node.name for node in nodes if isinstance(node, Function)]
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    return len(private), sum(used[name] == 1 for name in private)


def _import_lines(source: Source) -> int:
    found = [node for node in ast.walk(source.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)


def _code_lines(source: Source) -> int:
    """Lines that are neither blank nor a comment nor of a docstring."""
    told = sum(text.count("\n") + 1 for text in _docstrings(source))
    lines = [line.strip() for line in source.text.splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines) - told
