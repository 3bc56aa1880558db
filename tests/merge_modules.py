"""Merges and renames modules, and rewrites what names them: imports in code, tests and benchmarks, links and paths in
pages.

    python -m tests.merge_modules PLAN [--check]

A line of the plan is `rayka/log/holes.py -> rayka/log/damage.py`; `#` begins a comment. Where the target exists, the
source is merged into it, else the source is renamed. Run it in the root of a checkout with everything committed, then
`ruff check --fix` and `ruff format`, which join and sort imports.

A merge puts the imports of both at the top of the target, and the statements of both in an order in which each finds
what it needs. The source's docstring becomes a comment above its statements, for a person to fold into the target's
docstring. A private name that stands in both gets the source's name as its suffix; a public one stops the merge.

`--check` changes nothing: it prints cycles of imports, names that would clash, and the sizes after the plan.
"""

import ast
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILES = ("*.py", "*.md", "*.toml", "*.txt", "*.yaml", "*.svg")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Move(NamedTuple):
    """A module that goes into another one, or to another path; paths are relative to the root of the checkout."""

    source: str
    target: str


class Module(NamedTuple):
    """A module cut into parts: lines of its docstring, its imports with their lines, and the lines below them."""

    docstring: list[str]
    imports: list[tuple[ast.stmt, list[str]]]
    body: list[str]

    @classmethod
    def of(cls, text: str) -> "Module":
        lines, statements = text.splitlines(), ast.parse(text).body
        end = 0
        if statements and _is_text(statements[0]):
            end = statements.pop(0).end_lineno or 0
        docstring, imports = lines[:end], []
        for node in statements:
            if not isinstance(node, ast.Import | ast.ImportFrom) and not _is_type_checking(node):
                break
            imports.append((node, lines[end : node.end_lineno]))
            end = node.end_lineno or 0
        return cls(docstring, imports, lines[end:])

    def imports_without(self, module: str) -> tuple[list[str], list[str]]:
        """Lines of imports but those of that module; and statements that only type checkers run."""
        lines: list[str] = []
        guarded: list[str] = []
        for node, its_lines in self.imports:
            if isinstance(node, ast.If):
                guarded += [ast.unparse(each) for each in node.body if _imported_from(each) != module]
            elif _imported_from(node) != module:
                lines += its_lines
        return lines, guarded


def dotted(path: str) -> str:
    """`rayka.log.holes` of `rayka/log/holes.py`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read_plan(path: str) -> list[Move]:
    """The moves of a plan, in its order."""
    lines = (line.split("#")[0].strip() for line in Path(path).read_text().splitlines())
    pairs = (line.split("->") for line in lines if line)
    return [Move(source.strip(), target.strip()) for source, target in pairs]


# ---- One merge ----


def merge(move: Move) -> bool:
    """Merges the source into the target, whose text it writes; False, with the reason printed, where it cannot."""
    source_text, target_text = (Path(each).read_text() for each in move)
    for name in sorted(defined_names(source_text) & defined_names(target_text)):
        if not name.startswith("_"):
            print(f"{move.source}: {name} stands in {move.target} too, not merged")
            return False
        renamed = f"{name}_of_{Path(move.source).stem}"
        print(f"{move.source}: {name} stands in {move.target} too, and is {renamed} now")
        source_text = re.sub(rf"(?<![\w.]){re.escape(name)}\b", renamed, source_text)
    source, target = Module.of(source_text), Module.of(target_text)
    is_used = any(_imported_from(node) == dotted(move.source) for node, _ in target.imports)
    target_imports, target_guarded = target.imports_without(dotted(move.source))
    source_imports, source_guarded = source.imports_without(dotted(move.target))
    guarded = sorted({*target_guarded, *source_guarded})
    docstring = ast.get_docstring(ast.parse(source_text)) or ""
    told = ["", *(f"# {line}".rstrip() for line in docstring.splitlines()), "", *source.body]
    body = [*told, "", "", *target.body] if is_used else [*target.body, "", "", *told]
    lines = [*target.docstring, "", *target_imports, *source_imports]
    if guarded:
        lines += ["", "if TYPE_CHECKING:", *(f"    {each}" for each in guarded)]
    Path(move.target).write_text("\n".join([*lines, "", "", *in_order(body)]) + "\n")
    subprocess.run(["git", "rm", "-q", "-f", move.source], check=True)
    return True


def in_order(lines: list[str]) -> list[str]:
    """The statements of a body, each behind those that it needs when it runs; otherwise as they stood."""
    statements = ast.parse("\n".join(lines)).body
    ends = [0, *(node.end_lineno or 0 for node in statements)]
    defines = {
        name: number for number, node in reversed(list(enumerate(statements))) for name in names_of(node)
    }
    ordered: dict[int, None] = {}

    def add(number: int, path: frozenset[int]) -> None:
        if number in ordered or number in path:
            return
        for name in sorted(needs(statements[number])):
            if name in defines:
                add(defines[name], path | {number})
        ordered[number] = None

    for number in range(len(statements)):
        add(number, frozenset())
    return [line for number in ordered for line in lines[ends[number] : ends[number + 1]]] + lines[ends[-1] :]


def names_of(node: ast.stmt) -> set[str]:
    """Names that a statement defines."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return {node.name} if isinstance(node, Function | ast.ClassDef) else set()


def defined_names(text: str) -> set[str]:
    """Names that a module defines at its top."""
    return {name for node in ast.parse(text).body for name in names_of(node)}


def needs(node: ast.AST) -> set[str]:
    """Names that a statement looks up when it runs: all but those in the bodies of functions."""
    if isinstance(node, Function):
        parts: list[ast.AST | None] = [*node.decorator_list, node.args, node.returns]
    elif isinstance(node, ast.Lambda):
        parts = [node.args]
    else:
        parts = list(ast.iter_child_nodes(node))
    found = {node.id} if isinstance(node, ast.Name) else set()
    return found.union(*(needs(each) for each in parts if each is not None))


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imported_from(node: ast.stmt) -> str | None:
    return node.module if isinstance(node, ast.ImportFrom) else None


# ---- What names the module ----


def rewrite(move: Move) -> None:
    """Lets imports, dotted names, links and paths in all tracked files name the target instead of the source."""
    listed = subprocess.run(["git", "ls-files", *FILES], capture_output=True, text=True, check=True).stdout
    for path in map(Path, listed.split()):
        if path.exists():
            text = path.read_text()
            changed = rewritten(text, move, is_code=path.suffix == ".py")
            if changed != text:
                path.write_text(changed)


def rewritten(text: str, move: Move, *, is_code: bool) -> str:
    """One file's text, with the target in the place of the source."""
    old, new = dotted(move.source), dotted(move.target)
    text = re.sub(rf"\b{re.escape(old)}\b(?!\.\w+\.py)", new, text)
    if is_code:
        text = _rewritten_packages(text, old, new)
    old_path, new_path = (each.removeprefix("rayka/") for each in move)
    return re.sub(rf"(?<!\w){re.escape(old_path)}\b", new_path, text)


def _rewritten_packages(text: str, old: str, new: str) -> str:
    """`from package import module`, and what the module's name is used for below it."""
    (old_package, old_name), (new_package, new_name) = old.rsplit(".", 1), new.rsplit(".", 1)
    is_used = False

    def one(match: re.Match[str]) -> str:
        nonlocal is_used
        names = [each.strip() for each in match[1].strip("()").replace("\n", " ").split(",") if each.strip()]
        moved = [each for each in names if each.split(" as ")[0] == old_name]
        if not moved:
            return match[0]
        is_used = is_used or old_name in moved
        rest = ", ".join(each for each in names if each not in moved)
        kept = f"from {old_package} import {rest}\n" if rest else ""
        return kept + "".join(
            f"from {new_package} import {each.replace(old_name, new_name, 1)}\n" for each in moved
        )

    text = re.sub(rf"^from {re.escape(old_package)} import (\([^)]*\)|[^\n]*)\n", one, text, flags=re.M)
    return re.sub(rf"(?<![\w.\"'/]){old_name}\.(?=[A-Za-z_])", f"{new_name}.", text) if is_used else text


# ---- The plan as a whole ----


def check(plan: list[Move]) -> None:
    """Prints what the plan would leave: cycles of imports, clashes of names, sizes."""
    into = dict(plan)
    texts = {path.as_posix(): path.read_text() for path in sorted(Path("rayka").rglob("*.py"))}
    modules = {dotted(path): path for path in texts}
    sizes: dict[str, int] = defaultdict(int)
    imports: dict[str, set[str]] = defaultdict(set)
    defined: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, text in texts.items():
        place = _end_of(path, into)
        if not path.endswith("__init__.py"):
            sizes[place] += text.count("\n")
        for name in defined_names(text):
            defined[place, name].append(path)
        imported = {modules[each] for each in _imports_at_start(text, modules)}
        imports[place] |= {_end_of(each, into) for each in imported} - {place}
    for cycle in cycles(imports):
        print("cycle:", *sorted(cycle), sep="\n    ")
    for (place, name), paths in defined.items():
        if len(paths) > 1:
            print(f"{name} would stand {len(paths)} times in {place}: {', '.join(paths)}")
    counts = sorted(sizes.values())
    below = sum(each < 80 for each in counts)
    print(f"{len(counts)} modules, median {statistics.median(counts):.0f} lines, {below} below 80")
    print(*(f"{count:6} {path}" for path, count in sorted(sizes.items()) if not 80 <= count <= 600), sep="\n")


def _end_of(path: str, into: dict[str, str]) -> str:
    while path in into:
        path = into[path]
    return path


def _imports_at_start(text: str, modules: dict[str, str]) -> Iterator[str]:
    """Modules that a module imports when it is imported itself."""
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                submodule = f"{node.module}.{each.name}"
                found = submodule if submodule in modules else node.module
                if found in modules:
                    yield found
        elif not isinstance(node, Function) and not (isinstance(node, ast.stmt) and _is_type_checking(node)):
            pending += ast.iter_child_nodes(node)


def cycles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other, directly or by others."""
    reachable = {each: _reachable(each, imports) for each in imports}
    groups: list[set[str]] = []
    for each in sorted(reachable):
        if each in reachable[each] and not any(each in group for group in groups):
            groups.append({other for other in reachable[each] if each in reachable.get(other, ())})
    return groups


def _reachable(begin: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [begin]
    while pending:
        for each in imports.get(pending.pop(), ()):
            if each not in found:
                found.add(each)
                pending.append(each)
    return found


def main(arguments: list[str]) -> int:
    paths = [each for each in arguments if each != "--check"]
    if len(paths) != 1:
        print(__doc__)
        return 2
    plan = read_plan(paths[0])
    if "--check" in arguments:
        check(plan)
        return 0
    for move in plan:
        if Path(move.target).exists():
            if not merge(move):
                return 1
        else:
            Path(move.target).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", *move], check=True)
        rewrite(move)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
