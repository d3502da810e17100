"""The texts that people read, in their language: one file a translation, read as it is; English stands in the code.

Templates mark a text with `_("…")` or `{% trans %}`, Python with `_`, `ngettext` or, where it is chosen before anybody
asks, `N_`; scripts with `t("…")` and `tn("…", "…", n)` of static/texts.js. docs/dashboard.md tells how one is added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from gettext import c2py
from hashlib import sha256
from pathlib import Path

from appliance.web import assets

COOKIE = "vedette_language"
ENGLISH = "en"


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a translation file. texts: the translation, one a plural form; places: the files that show it."""

    key: str
    context: str = ""
    plural: str = ""
    texts: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()

    @property
    def is_translated(self) -> bool:
        """True if each form has a text."""
        return bool(self.texts) and all(self.texts)


@dataclass(frozen=True)
class Catalogue:
    """One language. name: its own name for itself; files: its translation files; plural_rule: of gettext."""

    language: str
    name: str
    files: Sequence[Path] = ()
    plural_rule: str = "n != 1"

    @cached_property
    def messages(self) -> Mapping[tuple[str, str], Message]:
        """The messages by context and English text: of several files the last that has it.

        They are read with the first question: German takes 1 MB, and a site may have nobody who reads it.
        """
        found: dict[tuple[str, str], Message] = {}
        for file in self.files:
            _, *messages = read(file.read_text(encoding="utf-8"))
            found.update({(each.context, each.key): each for each in messages})
        return found

    def text(self, english: str, context: str = "") -> str:
        """Return the translation, or the English text where there is none.

        A word that the appliance made itself is translated, too.
        """
        found = self.messages.get((context, english)) or self.messages.get(("sentence", english))
        return found.texts[0] if found and found.is_translated else english

    def counted(self, one: str, many: str, n: float) -> str:
        """Return the form of a text that fits the number n."""
        found = self.messages.get(("", one))
        if found and found.plural and found.is_translated:
            return found.texts[min(_plural(self.plural_rule)(abs(int(n)) if n == int(n) else 2), len(found.texts) - 1)]
        return one if n == 1 else many

    def number(self, text: str) -> str:
        """Return a number in the form of the language, from the form that Python writes (`1,234.5`)."""
        if self.language == ENGLISH:
            return text
        swapped = {".": self.text(".", "number"), ",": self.text(",", "number")}
        return "".join(swapped.get(each, each) for each in text)

    def script(self) -> str:
        """Return the script with the texts of static/texts.js: a classic script, which runs before every module."""
        found = {
            key: list(message.texts) if message.plural else message.texts[0]
            for (context, key), message in self.messages.items()
            if not context and message.is_translated and any(place.endswith(".js") for place in message.places)
        }
        rule = re.sub(r"[^n0-9=!<>&|?:%()+ -]", "", self.plural_rule)
        return f"globalThis.TEXTS = {json.dumps(found, ensure_ascii=False)};\nTEXTS.plural = (n) => Number({rule});\n"


def read(text: str) -> Iterator[Message]:
    """Yield the entries of a translation file (gettext's PO format), the header first.

    Raise ValueError if it is none.
    """
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        lines = [line for line in block.splitlines() if line and not line.startswith("#~")]
        if not any(line.startswith("msgid") for line in lines):
            continue
        parts: dict[str, str] = {}
        comments: list[str] = []
        places: list[str] = []
        name = ""
        for line in lines:
            if line.startswith("#"):
                if line.startswith("#:"):
                    places.extend(line[2:].split())
                else:
                    comments.append(line)
                continue
            found = re.fullmatch(r'(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?)\s+)?(".*")\s*', line)
            if not found:
                raise ValueError(f"not a line of a translation file: {line}")
            name = found[1] or name
            parts[name] = parts.get(name, "") + str(json.loads(found[2], strict=False))
        texts = tuple(parts[key] for key in sorted(parts) if key.startswith("msgstr"))
        yield Message(
            parts["msgid"], parts.get("msgctxt", ""), parts.get("msgid_plural", ""), texts, tuple(places),
            tuple(comments),
        )  # fmt: skip


@cache
def catalogues() -> Mapping[str, Catalogue]:
    """Every language by its code, English first: the files of its code in all folders of `translations` together."""
    found = {ENGLISH: Catalogue(ENGLISH, "English")}
    by_language: dict[str, list[Path]] = {}
    for file in assets.files("translations", "*.po"):
        by_language.setdefault(file.stem, []).append(file)
    for language, files in by_language.items():
        header = next(read(files[-1].read_text(encoding="utf-8")))
        facts = dict(line.partition(": ")[::2] for line in header.texts[0].splitlines())
        rule = facts["Plural-Forms"].partition("plural=")[2].strip(" ;")
        found[language] = Catalogue(language, facts["X-Language-Name"], files, rule)
    return found


@cache
def _plural(rule: str) -> Callable[[int], int]:
    rule_of: Callable[[int], int] = c2py(rule)
    return rule_of


@cache
def script_of(language: str) -> tuple[str, str]:
    """Return the texts of the scripts as a script, and its digest."""
    text = catalogues()[language].script()
    return text, sha256(text.encode()).hexdigest()[:12]


# -- the language of whom a request is answered for

_CATALOGUE: ContextVar[Catalogue | None] = ContextVar("catalogue", default=None)


def catalogue() -> Catalogue:
    """Return the language of the request that is being answered; outside of one, English."""
    return _CATALOGUE.get() or catalogues()[ENGLISH]


def set_language(language: str) -> None:
    """From here on this task, and the threads that it starts, answer in this language."""
    _CATALOGUE.set(catalogues().get(language))


def choose_language(chosen: str, accepted: str, site: str) -> str:
    """Return the person's choice, else what their browser requests (Accept-Language), else the site's language."""
    known = catalogues()
    for language in (chosen, *_wanted(accepted), site):
        short = language.partition("-")[0].lower()
        if short in known:
            return short
    return ENGLISH


def _wanted(accepted: str) -> list[str]:
    """Return the languages of an Accept-Language header, the preferred first."""
    weighed = []
    for part in accepted[:500].split(","):
        language, _, parameter = part.partition(";")
        quality = re.fullmatch(r"\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*", parameter)
        weight = float(quality[1]) if quality else 0.0 if parameter else 1.0
        if weight > 0:
            weighed.append((weight, language.strip()))
    return [language for _, language in sorted(weighed, key=lambda each: -each[0])]


def gettext(english: str) -> str:
    """Return the text in the language of the request."""
    return catalogue().text(english)


_ = gettext


def ngettext(one: str, many: str, n: float) -> str:
    """Return the form of a text that fits n, in the language of the request."""
    return catalogue().counted(one, many, n)


def N_(english: str) -> str:  # noqa: N802 (gettext's name for it)
    """Mark a text that is translated where it is shown."""
    return english


def number(text: str) -> str:
    """Return a number in the form of the request's language, from the form that Python writes."""
    return catalogue().number(text)


def tell(sentence: str) -> str:
    """Return a sentence that the appliance made, with names and numbers in it, in the language of the request.

    A sentence without a translation (an error's own words, say) stays as it is.
    """
    return _sentence(catalogue().language, sentence)


_CLASSES = frozenset({"labels", "wanted", "what"})  # gaps that may name several
_MEASURED = frozenset({"height", "n", "score", "seconds", "wanted", "x", "y"})
_NUMBER = re.compile(r"\d{1,3}(,\d{3})*(\.\d+)?|\d+\.\d+")


@lru_cache(4096)
def _sentence(language: str, sentence: str) -> str:
    spoken = catalogues()[language]
    exact = spoken.messages.get(("", sentence)) or spoken.messages.get(("sentence", sentence))
    if exact and exact.is_translated:
        return exact.texts[0]
    for pattern, form in _sentences(language):
        found = pattern.fullmatch(sentence)
        if found:
            return form.format(**{name: _gap(spoken, name, value) for name, value in found.groupdict().items()})
    return sentence


def _gap(spoken: Catalogue, name: str, value: str) -> str:
    """Return the text of a gap: a sentence of its own, classes one by one, or a number as the language writes it.

    Versions stay as they are.
    """
    if name in _MEASURED and _NUMBER.fullmatch(value):
        return spoken.number(value)
    translation = _sentence(spoken.language, value)
    if name in _CLASSES and translation == value:
        each = [part.partition(" (") for part in value.split(", ")]  # "person (a rule), car (another)"
        return ", ".join(_sentence(spoken.language, label) + paren + rule for label, paren, rule in each)
    return translation


@cache
def _sentences(language: str) -> list[tuple[re.Pattern[str], str]]:
    """Return the sentences with {gaps}: a pattern that matches each, and its translation."""
    found = []
    for (context, key), message in catalogues()[language].messages.items():
        if context == "sentence" and "{" in key and message.is_translated:
            parts = re.split(r"\{(\w+)\}", key)
            pattern = "".join(f"(?P<{part}>.+?)" if n % 2 else re.escape(part) for n, part in enumerate(parts))
            found.append((re.compile(pattern, re.DOTALL), message.texts[0]))
    return found
