"""Size and shape of the product's sources, as a table: `python -m benchmarks.source_size [--json] [TREE ...]`.

With several trees (folders, or commits of this repository) each is a column. Counts what can be counted: lines,
modules, importers, parameters, fields, constants. Nothing is imported, so an old tree is counted as well as this one.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import json
import re
import subprocess
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

PACKAGES = ("appliance", "cloud_worker")
PARAMETERS_MAX, METHODS_MAX, SHORT_LINES = 8, 15, 70  # the bounds of tests/unit/test_architecture.py; a short module
# The way of an escalation's row to NATS, with its bookkeeping, as the imports of these packages show it.
SEND_WORKERS, WAY_TO_NATS = "appliance.uplink.send_workers", ("uplink", "store", "broker", "wire")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_LINES_ON = re.compile(r"\"{3}|'{3}|\\$")  # a text of several lines, or a line that goes on in the next
_FRAGMENT = re.compile(r"(What|Who|Of|That|So|Whose|Whether)\b")
_ENTRY = re.compile(r"[a-z_][\w.]*:[a-z_]\w*")  # as in the table of commands
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


class Module:
    """One source file. name: dotted; lines: all of them; code: without blanks, comments and docstrings."""

    def __init__(self, root: Path, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        self.text, self.tree, self.lines = text.splitlines(), ast.parse(text), text.count("\n")
        self.nodes = list(ast.walk(self.tree))  # walked once: a walk of all modules is seconds
        self._whole = text

    @functools.cached_property
    def code(self) -> int:
        return len(self._code_lines(self._whole))

    def _code_lines(self, text: str) -> set[int]:
        bare: set[int] = set()
        for node in self.nodes:
            body = getattr(node, "body", None)
            for each in body if isinstance(body, list) else ():
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    bare.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
        rest = [(n, line.strip()) for n, line in enumerate(self.text, start=1) if n not in bare and line.strip()]
        if not any(
            _LINES_ON.search(line) for _, line in rest
        ):  # most modules; to read the tokens takes ten times longer
            return {n for n, line in rest if not line.startswith("#")}
        found: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _NO_CODE:
                found.update(range(token.start[0], token.end[0] + 1))
        return found - bare

    def imports(self) -> set[str]:
        """Return the dotted names that the module imports, wherever in it, or names as `module:function`."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _ENTRY.fullmatch(node.value):
                found.add(node.value.partition(":")[0])
        return found

    def docstrings(self) -> Iterator[str]:
        """Yield the docstrings of module, classes and functions."""
        for node in self.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from filter(None, [ast.get_docstring(node, clean=False)])

    def unexplained_constants(self) -> tuple[list[str], int]:
        """Return the numeric constants without a comment or text beside them, and how many there are in all.

        A value that is computed from another constant counts as explained.
        """
        bare, count = [], 0
        for place, node in enumerate(self.tree.body):
            if not isinstance(node, ast.Assign) or not _is_number(node.value):
                continue
            count += 1
            named = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            follows = self.tree.body[place + 1] if place + 1 < len(self.tree.body) else None
            if not all(_CONSTANT.fullmatch(name) for name in named) or any(
                isinstance(each, ast.Name) for each in ast.walk(node.value)
            ):
                continue
            lines = self.text[node.lineno - 1 : node.end_lineno]
            above = self.text[node.lineno - 2].lstrip() if node.lineno > 1 else ""
            said = any("#" in line.replace("# fmt: skip", "") for line in lines) or above.startswith("#")
            if not said and not (isinstance(follows, ast.Expr) and isinstance(follows.value, ast.Constant)):
                bare.append(f"{self.name}:{node.lineno} {', '.join(named)}")
        return bare, count


def _is_number(value: ast.expr) -> bool:
    parts = [each for each in ast.walk(value) if isinstance(each, ast.Constant)]
    shape = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.Name, ast.operator, ast.unaryop, ast.expr_context)
    numbers = [each for each in parts if isinstance(each.value, int | float) and not isinstance(each.value, bool)]
    return bool(parts) and len(numbers) == len(parts) and all(isinstance(each, shape) for each in ast.walk(value))


def _functions(module: Module) -> Iterator[tuple[str, int]]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            yield f"{module.name}:{node.name}", len([each for each in named if each not in {"self", "cls"}])


def _classes(module: Module) -> Iterator[tuple[str, int, int]]:
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            data = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
            fields = sum(isinstance(each, ast.AnnAssign) for each in node.body) if data else 0
            yield f"{module.name}:{node.name}", len(methods), fields


def reached(modules: Sequence[Module], start: str, packages: Collection[str]) -> set[str]:
    """Return the modules with code that `start` imports, directly or not, within these packages; itself included."""
    known = {module.name: module for module in modules}
    found: set[str] = set()
    to_see = [start] if start in known else []
    while to_see:
        name = to_see.pop()
        found.add(name)
        inside = known[name].imports() & set(known)
        to_see += [each for each in inside - found if (*each.split("."), "")[1] in packages]
    return {name for name in found if known[name].code}


def measure(root: Path, only: Collection[str] | None = None) -> dict[str, int | str]:
    """Return the rows of the table for a tree, by their names. only: these rows; None: all."""
    modules = [Module(root, path) for each in PACKAGES for path in sorted((root / each).rglob("*.py"))]
    rows = {**_rows_of_shape(root, modules), **_rows_of_text(root, modules)}
    return {name: count() for name, count in rows.items() if only is None or name in only}


def _rows_of_shape(root: Path, modules: Sequence[Module]) -> dict[str, Callable[[], int | str]]:
    """Return what counts lines, modules, parameters, methods and fields."""

    def of_one_importer() -> list[Module]:
        names = {module.name for module in modules}
        importers: Counter[str] = Counter()
        for module in modules:
            importers.update(name for name in module.imports() & names if name != module.name)
        return [module for module in modules if importers[module.name] == 1 and module.code]

    loose = [path for path in (root / "appliance").glob("*.py") if path.stem not in {"__init__", "__main__"}]
    return {
        "lines": lambda: sum(module.lines for module in modules),
        "code lines (without blanks, comments, docstrings)": lambda: sum(module.code for module in modules),
        "modules": lambda: len(modules),
        "modules with code": lambda: sum(module.code > 0 for module in modules),
        "loose modules in appliance/": lambda: len(loose) + 2,
        "modules that name SiteConfig": lambda: sum(
            bool(re.search(r"\bSiteConfig\b", "\n".join(module.text))) for module in modules
        ),
        "modules with one importer": lambda: len(of_one_importer()),
        f"of those at most {SHORT_LINES} lines": lambda: sum(
            module.lines <= SHORT_LINES for module in of_one_importer()
        ),
        f"functions with more than {PARAMETERS_MAX} parameters": lambda: sum(
            count > PARAMETERS_MAX for module in modules for _, count in _functions(module)
        ),
        f"classes with more than {METHODS_MAX} methods": lambda: sum(
            methods > METHODS_MAX for module in modules for _, methods, _ in _classes(module)
        ),
        "most fields of a dataclass": lambda: max(fields for module in modules for _, _, fields in _classes(module)),
        "modules from the send workers to NATS": lambda: len(reached(modules, SEND_WORKERS, WAY_TO_NATS)),
    }


def _rows_of_text(root: Path, modules: Sequence[Module]) -> dict[str, Callable[[], int | str]]:
    """Return what counts docstrings, constants and decisions."""
    decisions = [*(root / "docs" / "decisions").glob("*.md")] or [root / "docs" / "decisions.md"]
    return {
        "docstrings": lambda: sum(1 for module in modules for _ in module.docstrings()),
        "docstrings that begin with What, Who, Of, That or So": lambda: sum(
            bool(_FRAGMENT.match(each.lstrip())) for module in modules for each in module.docstrings()
        ),
        "numeric constants": lambda: sum(module.unexplained_constants()[1] for module in modules),
        "numeric constants without a reason": lambda: sum(len(module.unexplained_constants()[0]) for module in modules),
        "lines of the decisions": lambda: sum(path.read_text(encoding="utf-8").count("\n") for path in decisions),
    }


def _tree(parser: argparse.ArgumentParser, name: str, scratch: str) -> Path:
    """Return the folder of a tree: `name` itself, or the sources of that commit, unpacked into `scratch`."""
    if all((Path(name) / each).is_dir() for each in PACKAGES):
        return Path(name)
    packed = subprocess.run(["git", "archive", name, *PACKAGES, "docs"], capture_output=True, check=False)
    if packed.returncode:
        parser.error(f"{name} is neither a checkout with {' and '.join(PACKAGES)} nor a commit of this repository")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(Path(scratch) / name, filter="data")
    return Path(scratch) / name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.source_size", description=__doc__.split("\n")[0])
    parser.add_argument(
        "trees", nargs="*", default=["."], help="checkouts or commits to count (default: this checkout)"
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--constants", action="store_true", help="list the constants without a reason")
    parser.add_argument("--packages", action="store_true", help="code lines of each package")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return _print(given, [_tree(parser, name, scratch) for name in given.trees])


def _print(given: argparse.Namespace, trees: list[Path]) -> int:
    for root in trees if given.constants or given.packages else ():
        modules = [Module(root, path) for each in PACKAGES for path in sorted((root / each).rglob("*.py"))]
        if given.constants:
            print("\n".join(each for module in modules for each in module.unexplained_constants()[0]))
        if given.packages:
            size: Counter[str] = Counter()
            for module in modules:
                size[".".join(module.name.split(".")[: 1 if module.name.startswith("cloud") else 2])] += module.code
            print("\n".join(f"{count:6d}  {name}" for name, count in size.most_common()))
    if given.constants or given.packages:
        return 0
    found = [measure(root) for root in trees]
    if given.json:
        print(json.dumps({str(root): each for root, each in zip(given.trees, found, strict=True)}, indent=1))
        return 0
    for name in found[0]:
        print(f"{name:58}" + "".join(f"{each[name]:>10}" for each in found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
