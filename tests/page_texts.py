"""Finds what a person reads: the marked texts of templates, scripts and Python, and words that nobody marked.

`python -m tests.page_texts` brings every translation of appliance/web and appliance/dashboard up to date: new texts are
added without a translation, texts that are gone are taken out. A text of both is translated in web.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from jinja2 import Environment
from jinja2.ext import extract_from_ast

import appliance.dashboard  # noqa: F401 (adds its folder)
from appliance.dashboard import settings_forms
from appliance.web import assets, texts
from appliance.web.texts import Message
from tests.page_sentences import SENTENCES

WEB, DASHBOARD = (folder.parent for folder in assets.folders("translations"))
READ_OUT = re.compile(r'\b(?:aria-label|title|placeholder|alt|label|data-label)="([^"]*)"')
NOT_WORDS = re.compile(
    r"\b(?:Vedette|rtsp\S*|https?\S*|kbit/s|fps|min|px|ms|Esc|ABCD-2345|gate|[a-z_]+\.[a-z_]+)\b|&[a-z]+;"
)


@dataclass(frozen=True)
class Marked:
    """A marked text where it stands. plural: its other form."""

    key: str
    plural: str
    place: str
    context: str = ""


def marked(package: Path) -> Iterator[Marked]:
    """Every marked text of a package, in the order of the files."""
    environment = Environment(extensions=["jinja2.ext.i18n"], autoescape=True)
    environment.policies["ext.i18n.trimmed"] = True
    for file in sorted((package / "templates").glob("*.html")):
        tree = environment.parse(file.read_text())
        for _, function, found in extract_from_ast(tree, ("_", "gettext", "ngettext")):
            yield from _of_call(function, found, f"templates/{file.name}")
    for file in sorted((package / "static").glob("*.js")):
        if file.name != "texts.js":
            yield from _of_script(file.read_text(), f"static/{file.name}")
    for file in sorted(package.glob("*.py")):
        yield from _of_python(ast.parse(file.read_text()), file.name)
    if package == DASHBOARD:
        yield from _of_forms(package / "settings_words.txt")
    for sentence in SENTENCES if package == DASHBOARD else ():
        yield Marked(sentence, "", "tests/page_sentences.py", "sentence")


def _of_call(function: str, found: str | tuple[str | None, ...] | None, place: str) -> Iterator[Marked]:
    parts = [part for part in ((found,) if isinstance(found, str) else found or ()) if part]
    if parts:
        yield Marked(parts[0], parts[1] if function == "ngettext" and len(parts) > 1 else "", place)


def _of_forms(file: Path) -> Iterator[Marked]:
    """The words of the settings' forms: titles, sentences, labels, effects, and choices that are words."""
    for form in settings_forms.forms().values():
        for text in (form.title, form.sentence, *(part for each in form.fields for part in (each.label, each.effect))):
            if text:
                yield Marked(text, "", file.name)
    yield Marked("days", "", file.name)
    for line in file.read_text().splitlines():
        for word in line[2:].split() if line.startswith("#=") else ():
            yield Marked(word, "", file.name)


STRING = r'"((?:[^"\\]|\\.)*)"'


def _of_script(text: str, place: str) -> Iterator[Marked]:
    for found in re.finditer(rf"(?<![\w.])(?:t\(\s*{STRING}|tn\(\s*{STRING},\s*{STRING})", text):
        if found[1] is not None:
            yield Marked(str(ast.literal_eval(f'"{found[1]}"')), "", place)
        else:
            yield Marked(*(str(ast.literal_eval(f'"{found[n]}"')) for n in (2, 3)), place)


def _of_python(tree: ast.AST, place: str) -> Iterator[Marked]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in {"_", "gettext", "N_", "ngettext"}:
            strings = [
                each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            if strings:
                yield Marked(strings[0], strings[1] if node.func.id == "ngettext" else "", place)


def wanted(package: Path) -> dict[tuple[str, str], Message]:
    """What a translation of a package has to hold, by context and English text.

    The dashboard's leaves out what web's has, but for texts that a script of the dashboard alone needs.
    """
    return {
        key: each for key, each in _all(package).items()
        if package == WEB or key not in _all(WEB) or (_in_script(each) and not _in_script(_all(WEB)[key]))
    }  # fmt: skip


def _in_script(message: Message) -> bool:
    return any(place.endswith(".js") for place in message.places)


@cache
def _all(package: Path) -> dict[tuple[str, str], Message]:
    found: dict[tuple[str, str], Message] = {
        ("number", "."): Message(".", "number", comments=("#. the decimal point",)),
        ("number", ","): Message(",", "number", comments=("#. between the thousands",)),
    }
    for each in marked(package):
        old = found.get((each.context, each.key), Message(each.key, each.context))
        places = old.places if each.place in old.places else (*old.places, each.place)
        found[each.context, each.key] = replace(old, plural=old.plural or each.plural, places=places)
    return found


# -- words that nobody marked


def bare_words(template: str) -> list[str]:
    """The words between the tags of a template, and in what is read out, that are in no translation."""
    text = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)
    text = re.sub(r"\{%-?\s*trans\b.*?endtrans\s*-?%\}", " ", text, flags=re.DOTALL)
    found = list(_literals(text))
    text = re.sub(r"\{[{%].*?[%}]\}", " ", text, flags=re.DOTALL)
    text = re.sub(r"<(code|script|style|noscript-)\b.*?</\1>", " ", text, flags=re.DOTALL)
    found += [words for attribute in READ_OUT.findall(text) if (words := _words(attribute))]
    found += [words for part in re.sub(r"<[^>]*>", "\n", text).splitlines() if (words := _words(part))]
    return found


def _literals(template: str) -> Iterator[str]:
    """Sentences that an expression holds as a string: `{{ "Enable" if … }}`."""
    for tag in re.findall(r"\{[{%](.*?)[%}]\}", template, flags=re.DOTALL):
        if re.match(r"-?\s*(?:extends|from|include|import|block|trans)\b", tag):
            continue
        code = re.sub(rf"\b_\(\s*{STRING}", " ", tag)
        code = re.sub(
            rf"(?:[=!]=|\bin|\bwhen\(|\bformat|\bget\(|\bselectattr\(|\[)\s*\(?(?:{STRING}[,)]?\s*)+", " ", code
        )
        for text in re.findall(STRING, code):
            if re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}|^[A-Z][a-z]+$", text):
                yield text


def _words(text: str) -> str:
    plain = NOT_WORDS.sub(" ", text).strip()
    return plain if re.search(r"[A-Za-z]{2,}", plain) else ""


_QUOTED = r"(?:`[^`\n]*`|\"[^\"\n]*\")"
SHOWN = re.compile(
    rf"(?:textContent|placeholder|title|innerText)\s*=\s*({_QUOTED})"
    rf"|\b(?:say|note|tell|light\(\"lost\",|new Error)\(?\s*({_QUOTED})"
    rf"|\"aria-label\"[:,]\s*({_QUOTED})"
    r"|(`[A-Z][a-z]+ [a-z]+[^`\n]*`|\"[A-Z][a-z]+ [a-z]+[^\"\n]*\")"
)


def bare_script_words(script: str) -> list[str]:
    """The sentences of a script that no t() holds."""
    code = re.sub(r"^\s*//.*$|(?<=[;{},)\s])// .*$|/\*.*?\*/", "", script, flags=re.MULTILINE)
    code = re.sub(rf"(?<![\w.])t\(\s*{STRING}", "t(", code)
    code = re.sub(rf"(?<![\w.])tn\(\s*{STRING},\s*{STRING}", "tn(", code)
    found = []
    for match in SHOWN.finditer(code):
        text = next(each for each in match.groups() if each)
        if _words(re.sub(r"\$\{.*", "", re.sub(r"\$\{(?:[^{}]|\{[^{}]*\})*\}", "", text[1:-1]))):
            found.append(text)
    return found


# -- writing a translation file


def quoted(text: str) -> str:
    """A string of a translation file, on several lines where it has some."""
    escape = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escape}"'


def written(message: Message) -> str:
    """One entry as it stands in the file."""
    lines = list(message.comments)
    if message.places:
        lines.append(f"#: {' '.join(message.places)}")
    if message.context:
        lines.append(f"msgctxt {quoted(message.context)}")
    lines.append(f"msgid {quoted(message.key)}")
    if message.plural:
        lines.append(f"msgid_plural {quoted(message.plural)}")
        forms = message.texts if len(message.texts) > 1 else (*message.texts, "", "")[:2]
        lines += [f"msgstr[{n}] {quoted(form)}" for n, form in enumerate(forms)]
    else:
        lines.append(f"msgstr {quoted(message.texts[0] if message.texts else '')}")
    return "\n".join(lines)


def updated(package: Path, text: str) -> str:
    """A translation file of a package with the texts of now and its own translations."""
    header, *old = texts.read(text)
    known = {(each.context, each.key): each.texts for each in old}
    head = 'msgid ""\nmsgstr ""\n' + "\n".join(f'"{line}\\n"' for line in header.texts[0].splitlines())
    entries = [written(replace(each, texts=known.get(key, ()))) for key, each in wanted(package).items()]
    return "\n\n".join(["\n".join([*header.comments, head]), *entries]) + "\n"


if __name__ == "__main__":
    for file in assets.files("translations", "*.po"):
        file.write_text(updated(file.parents[1], file.read_text(encoding="utf-8")), encoding="utf-8")
        lacking = [each.key for each in texts.read(file.read_text(encoding="utf-8")) if not each.is_translated]
        print(f"{file.name}: {len(lacking)} texts without a translation")
