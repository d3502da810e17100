"""Small faults in a shell script, one at a time: other conditions, modes, names and ends, and lines left out."""

from __future__ import annotations

import re
import subprocess

from benchmarks.mutation.fault_list import Edit

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


def edits(script: str) -> list[Edit]:
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
