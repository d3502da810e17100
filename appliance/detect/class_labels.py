"""The names of the classes that a network distinguishes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from appliance.base.errors import ModelError, unreadable_model

LABELS_BYTES_MAX = 256 * 1024  # 10,000 names; a larger file is another one by mistake
ASK = "set detector.labels to a file with one name a line, in the order of its classes"
_COCO = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,parking meter,"
    "bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,frisbee,"
    "skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,"
    "cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
)
COCO_80: tuple[str, ...] = tuple(_COCO.split(","))
COCO_NAME = "coco-80"  # what `detector.labels` and models.toml call them
# Ids of COCO's 91 categories that no image shows (coco/annotations/instances_*.json).
_COCO_IDS_UNUSED = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
COCO_ID_SLOTS: tuple[int, ...] = tuple(
    -1 if number in _COCO_IDS_UNUSED else number - sum(unused < number for unused in _COCO_IDS_UNUSED)
    for number in range(91)
)
"""By COCO's category id, 0..90: its place in COCO_80, -1 for the ids that name nothing."""


def resolve(
    model: Path, classes: int | None, metadata: Mapping[str, str], given: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return one name per class.

    The names come from `given` (the site file or models.toml), else from the file's metadata. If neither names the
    classes and there are 80, they are COCO's; `guessed` then says so.

    classes: how many the output layout has room for, None where it does not tell. Raises ModelError, which asks for
    names.
    """
    for name in given:
        _must_be_readable(model, name)
    if given:
        return _fitting(model, given, classes, "the labels given")
    if found := named(model, metadata):
        names = _fitting(model, found, classes, "its metadata")
        if all(name.strip().isdecimal() for name in names):
            raise ModelError(
                f"{model}: its classes have numbers for names ({', '.join(names[:3])}{', …' if names[3:] else ''}), "
                "and rules want words; set detector.labels to a text file with one name a line, in that order"
            )
        return names
    if classes == len(COCO_80):
        return COCO_80
    raise ModelError(
        f"{model}: nothing names its {'classes' if classes is None else f'{classes} classes'}; {ASK}"
        + (f" (or to {COCO_NAME}, if it was trained on COCO)" if classes is None else "")
    )


def named(model: Path, metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in the file's metadata, () if it has none. Raises ModelError."""
    return from_metadata(model, metadata["names"]) if metadata.get("names") else ()


def guessed(classes: int | None, metadata: Mapping[str, str], given: tuple[str, ...]) -> str:
    """Return a remark for people if `resolve` only guessed the names, '' if something gave them."""
    if given or metadata.get("names") or classes != len(COCO_80):
        return ""
    return f"nothing names the network's {classes} classes: taken for those of COCO; set detector.labels to say so"


def read(path: Path) -> tuple[str, ...]:
    """Read a labels file: UTF-8, one name a line in the order of the network's classes.

    `coco-80` gives COCO's names, unless a file is called so. Raises ModelError.
    """
    if str(path) == COCO_NAME and not path.exists():
        return COCO_80
    try:
        if path.stat().st_size > LABELS_BYTES_MAX:
            raise ModelError(f"{path}: a labels file is not over {LABELS_BYTES_MAX} bytes")
        lines = path.read_text(encoding="utf-8").strip().splitlines()
    except OSError as error:
        raise unreadable_model(f"{path}: the labels file", error) from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: the labels file is not text in UTF-8") from None
    names = tuple(line.strip() for line in lines)
    if not names or not all(names):
        raise ModelError(f"{path}: the labels file needs one name on every line")
    return names


def from_metadata(model: Path, text: str) -> tuple[str, ...]:
    """Ultralytics writes `{0: 'person', 1: 'car'}` (a Python literal), others a list. Raises ModelError."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = None
    if isinstance(value, dict) and sorted(value, key=str) == sorted(range(len(value)), key=str):
        value = [value[index] for index in range(len(value))]
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(name, str) for name in value):
        raise ModelError(f"{model}: the names in its metadata cannot be understood; set detector.labels to a file")
    for name in value:
        _must_be_readable(model, name)
    return tuple(value)


def _must_be_readable(model: Path, name: str) -> None:
    """Lone surrogates cannot be written anywhere, and control characters would steer a terminal. Raises ModelError."""
    if not name.isprintable():
        raise ModelError(f"{model}: the name of a class holds what cannot be shown; set detector.labels")


def _fitting(model: Path, names: tuple[str, ...], classes: int | None, source: str) -> tuple[str, ...]:
    if classes is not None and len(names) != classes:
        raise ModelError(f"{model}: {source} name {len(names)} classes, its output has {classes}")
    return names
