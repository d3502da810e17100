"""Faults that can be planted in a Python file or a shell script: small edits, each by one operator."""

from __future__ import annotations

import ast
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_WORD = re.compile(r"[A-Za-z_/.-][\w/.{}-]*")
_COMPARED = {
    ast.Lt: ("<", ("<=", ">")), ast.LtE: ("<=", ("<", ">")), ast.Gt: (">", (">=", "<")), ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)), ast.NotEq: ("!=", ("==",)), ast.Is: ("is", ("is not",)), ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)), ast.NotIn: ("not in", ("in",)),
}  # fmt: skip
_COMPUTED = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}  # fmt: skip
_SWAPPED = {
    "min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil", "popleft": "pop",
    "monotonic": "now", "startswith": "endswith", "append": "remove", "lower": "upper",
}  # fmt: skip
_UNSEEN_ARGUMENTS = {
    "help",
    "metavar",
    "description",
    "summary",
    "exc_info",
    "tags",
    "dest",
    "title",
    "slots",
    "frozen",
}
# Swapped, the arguments of these crash at once, or mean the same.
_CALLERS = {"to_thread", "isinstance", "getattr", "setattr", "report", "min", "max"}


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes of a file from `start` to `end` replaced by `text`; line: of the first, from 1."""

    start: int
    end: int
    text: str
    operator: str
    line: int

    def applied(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


def python_edits(source: str, draw: random.Random) -> list[Edit]:
    """Return all that can be planted; `draw` chooses among the values that a constant may take."""
    tree = ast.parse(source)
    finder = _Finder(source, tree, draw)
    finder.visit(tree)
    return finder.found


def is_python(text: str) -> bool:
    try:
        compile(text, "mutated", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder(ast.NodeVisitor):
    """Walks a module past what cannot fail a test: annotations, decorators, docstrings, imports and log lines."""

    def __init__(self, source: str, tree: ast.Module, draw: random.Random) -> None:
        self.found: list[Edit] = []
        self._draw = draw
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._alike = _alike(tree)
        self._tables = _constants(tree)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        at = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return at, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._data[start:end].decode()

    def _replace(self, node: ast.AST, text: str, operator: str) -> None:
        self.found.append(Edit(*self._span(node), text, operator, node.lineno))  # type: ignore[attr-defined]

    def _between(self, left: ast.AST, right: ast.AST, token: str, text: str, operator: str) -> None:
        start, end = self._span(left)[1], self._span(right)[0]
        at = self._data.find(token.encode(), start, end)
        if at >= 0:
            self.found.append(Edit(at, at + len(token), text, operator, right.lineno))  # type: ignore[attr-defined]

    def _without_one(self, nodes: Sequence[ast.AST], operator: str, spans: Sequence[tuple[int, int]] = ()) -> None:
        """Leave out each of a row in turn, with the comma or operator after it (of the last: before it)."""
        spans = spans or [self._span(each) for each in nodes]
        for at, node in enumerate(nodes):
            first, last = at == 0, at == len(nodes) - 1
            start = spans[at][0] if first or not last else spans[at - 1][1]
            end = spans[at][1] if last else spans[at + 1][0]
            self.found.append(Edit(start, end, "", operator, node.lineno))  # type: ignore[attr-defined]

    # What is walked past.

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for each in (*node.args.defaults, *(default for default in node.args.kw_defaults if default), *node.body):
            self.visit(each)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment] # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in node.body:
            self.visit(each)

    def visit_Import(self, node: ast.Import) -> None: ...

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {each.id for each in node.targets if isinstance(each, ast.Name)}
        if names & {"logger", "__all__"} or (isinstance(node.value, ast.Subscript) and names):  # a type's name
            return
        kept_only = isinstance(node.value, ast.Name)  # what was given to a constructor
        if any(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets) and not kept_only:
            self._replace(node, "pass", "statement removed")
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if self._text(node.test) == "TYPE_CHECKING":
            return
        self._replace(node.test, f"not ({self._text(node.test)})", "condition negated")
        self._replace(node.test, "False", "condition never")
        self._replace(node.test, "True", "condition always")
        self.generic_visit(node)

    # What is changed.

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, kind, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            token, others = _COMPARED[type(kind)]
            for other in others:
                self._between(left, right, token, other, "comparison")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _COMPUTED:
            token, other = _COMPUTED[type(node.op)]
            self._between(node.left, node.right, token, other, "arithmetic")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass", "statement removed")
        token, other = _COMPUTED[type(node.op)]
        self._between(node.target, node.value, f"{token}=", f"{other}=", "arithmetic")
        self.visit(node.value)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        token, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, token, other, "boolean operator")
        self._without_one(node.values, "operand removed")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._replace(node, self._text(node.operand), "sign or not removed")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._replace(node.test, f"not ({self._text(node.test)})", "condition negated")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._replace(node, "pass", "statement removed")
            return
        if not isinstance(node.value, ast.Constant):
            self._replace(node.value, "None", "result dropped")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass", "statement removed")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "pass", "statement removed")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "pass", "statement removed")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or self._text(node).startswith("logger."):
            return
        if not isinstance(node.value, ast.Yield | ast.YieldFrom):
            self._replace(node, "pass", "statement removed")
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in _SWAPPED:
            end = self._span(node.func)[1]
            self.found.append(Edit(end - len(name), end, _SWAPPED[name], "call swapped", node.lineno))
        words = [each for each in node.keywords if each.arg and each.arg not in _UNSEEN_ARGUMENTS]
        every = sorted([*node.args, *node.keywords], key=self._span)
        spans = [self._span(each) for each in every]
        for each in words:
            at = every.index(each)
            start = spans[at - 1][1] if at else spans[at][0]
            end = spans[at][1] if at or len(every) == 1 else spans[at + 1][0]
            self.found.append(Edit(start, end, "", "argument removed", each.lineno))
        if len(node.args) >= 2 and name not in _CALLERS and all(map(_is_plain, node.args[:2])):
            (first, second), text = node.args[:2], f"{self._text(node.args[1])}, {self._text(node.args[0])}"
            self.found.append(Edit(self._span(first)[0], self._span(second)[1], text, "arguments swapped", node.lineno))
        seen = [each for each in node.keywords if each.arg not in _UNSEEN_ARGUMENTS]
        for part in (node.func, *node.args, *seen):
            self.visit(part)

    def visit_Set(self, node: ast.Set) -> None:
        if len(node.elts) > 1:
            self._without_one(node.elts, "entry removed")
        self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        if isinstance(node.ctx, ast.Load) and len(node.elts) > 1 and all(map(_is_fixed, node.elts)):
            self._without_one(node.elts, "entry removed")
        self.generic_visit(node)

    visit_List = visit_Tuple  # type: ignore[assignment] # noqa: N815

    def visit_Dict(self, node: ast.Dict) -> None:
        if len(node.keys) > 1 and None not in node.keys:
            pairs = list(zip(node.keys, node.values, strict=True))
            spans = [(self._span(key)[0], self._span(value)[1]) for key, value in pairs if key is not None]
            self._without_one([key for key in node.keys if key is not None], "entry removed", spans)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        alike = [each for row in self._tables if node.id in row for each in row if each != node.id]
        if isinstance(node.ctx, ast.Load) and alike:
            self._replace(node, self._draw.choice(alike), "constant swapped")

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace(node, str(not value), "constant")
        elif isinstance(value, int | float):
            for other in (value + 1, value * 10 if value else 2, value - 1 if isinstance(value, int) else value / 2):
                self._replace(node, repr(other), "constant")
        elif _is_word(node):
            others = [each for each in self._alike.get(id(node), ()) if each != value]
            word = self._draw.choice(others or [f"{value!s}x"])
            self._replace(node, repr(word), "string")


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.BinOp) or (
        isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    )


def _is_fixed(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id.isupper())


def _alike(tree: ast.Module) -> dict[int, list[str]]:
    """For each string that a program reads: those that stand at the same place of other calls, or of other keys."""
    places: dict[tuple[str, int], list[ast.Constant]] = {}
    for each in ast.walk(tree):
        rows: list[tuple[str, list[ast.expr]]] = []
        if isinstance(each, ast.Call):
            rows = [(ast.unparse(each.func), each.args)]
        elif isinstance(each, ast.Dict):
            rows = [("key", key.elts) for key in each.keys if isinstance(key, ast.Tuple)]
        for name, row in rows:
            for at, value in enumerate(row):
                if isinstance(value, ast.Constant) and _is_word(value):
                    places.setdefault((name, at), []).append(value)
    return {id(each): sorted({str(other.value) for other in row}) for row in places.values() for each in row}


def _is_word(node: ast.AST) -> bool:
    """Return whether it is a string that a program reads: a name or a path, no sentence."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and _WORD.fullmatch(node.value) is not None


def _constants(tree: ast.Module) -> list[list[str]]:
    """Return the names of a module's constants, those together that are made by the same call."""
    made: dict[str, list[str]] = {}

    def pairs() -> Iterator[tuple[ast.expr, ast.expr]]:
        for each in tree.body:
            if isinstance(each, ast.Assign):
                target, value = each.targets[0], each.value
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                else:
                    yield target, value

    for target, value in pairs():
        if isinstance(target, ast.Name):
            kind = (
                ast.unparse(value.func) if isinstance(value, ast.Call) else type(getattr(value, "value", None)).__name__
            )
            made.setdefault(kind, []).append(target.id)
    return [names for kind, names in made.items() if len(names) > 1 and kind != "NoneType"]


_MARK = r"(?<![\w-]){}(?![\w-])"
_RULES: tuple[tuple[str, str, str], ...] = (
    (r" = ", " != ", "comparison"), (r" != ", " = ", "comparison"),
    (_MARK.format("-n"), "-z", "condition"), (_MARK.format("-z"), "-n", "condition"),
    (r"\[ ! -", "[ -", "condition"), (r"\[ -", "[ ! -", "condition"),
    (_MARK.format("-ge"), "-gt", "comparison"), (_MARK.format("-gt"), "-ge", "comparison"),
    (_MARK.format("-lt"), "-ge", "comparison"),
    (r" && ", " || ", "boolean operator"), (r" \|\| ", " && ", "boolean operator"),
    (r"\b0600\b", "0644", "mode"), (r"\b0640\b", "0644", "mode"), (r"\b0700\b", "0755", "mode"),
    (r"\b0750\b", "0755", "mode"), (r"\b0644\b", "0640", "mode"), (r"\b0755\b", "0644", "mode"),
    (r"\breturn 0\b", "return 1", "exit code"), (r"\breturn 1\b", "return 0", "exit code"),
    (r"\bexit 1\b", "exit 0", "exit code"), (r"\bexit 2\b", "exit 1", "exit code"),
    (r"\bexit 130\b", "exit 0", "exit code"),
    (r"\bcurrent\b(?!\))", "previous", "name"), (r"\bprevious\b(?!\))", "current", "name"),
    (r"\$older\b", "$newer", "name"), (r"\$newer\b", "$older", "name"), (r'"\$version"', '"$current"', "name"),
    (r'"\$current"', '"$version"', "name"), (r"undo=1", "undo=''", "constant"), (r"undo=''", "undo=1", "constant"),
    (r"ctl stop", "ctl start", "name"), (r"ctl start", "ctl stop", "name"), (r"ctl restart", "ctl stop", "name"),
    (r" rm -rf? ", " : ", "statement removed"), (r" chmod ", " : ", "statement removed"),
    (r"\balive\b", "ready", "name"), (r"=ready\b", "=alive", "name"),
    (r"--require-hashes ", "", "argument removed"), (r"--no-deps ", "", "argument removed"),
    (r"--clear-groups ", "", "argument removed"), (r" -h ", " ", "argument removed"),
)  # fmt: skip
_BRANCH = re.compile(r"\s*((if|for|while|case|elif)\b|\S+\))")
# Sentences, comments and what only opens, closes or divides.
_UNTOUCHED = re.compile(
    r"\s*(#|say |usage\b|fi\b|done\b|esac\b|else\b|[{}]|;;|set -eu|main \"|import |with |TEXT|PYTHON)"
)


def shell_edits(script: str) -> list[Edit]:
    """Return all that can be planted, whether the shell still reads it or not."""
    found: list[Edit] = []
    at, in_text = 0, False
    for number, line in enumerate(script.split("\n"), 1):
        if "<<'" in line or line in ("TEXT", "PYTHON"):
            in_text = "<<'" in line
        elif not in_text and line.strip() and not _UNTOUCHED.match(line):
            code = line.split("  #")[0]
            said = min((code.find(each) for each in ("die '", 'die "') if each in code), default=len(code))
            for pattern, new, operator in _RULES:
                for each in re.finditer(pattern, code[:said]):
                    start, end = (at + len(code[:char].encode()) for char in each.span())
                    found.append(Edit(start, end, new, operator, number))
            if code.startswith("  ") and not _BRANCH.match(code):
                indent = len(line) - len(line.lstrip())
                found.append(Edit(at + indent, at + len(line.encode()), ":", "statement removed", number))
        at += len(line.encode()) + 1
    return found


def is_shell(text: str) -> bool:
    return subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False).returncode == 0
