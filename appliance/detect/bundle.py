"""Find the model file that `detector.model` names: a path, a file name, or a bundle of `models/models.toml`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from appliance.detect.digest import sha256_of
from appliance.detect.labels import COCO_80
from appliance.errors import ModelError
from appliance.yamlfile import Section

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOG = "builtin:hog"
AUTO = "auto"
OWN = "vedette-nano"  # the network that comes with Vedette, and what `auto` means
MANIFEST = "models.toml"


class Bundle(Section):
    """One `[name]` of models.toml."""

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+\.onnx$")]
    url: Annotated[str, Field(pattern=r"^(https://|$)")] = ""  # "": it comes with Vedette
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    licence: str
    labels: Literal["coco-80"] | tuple[str, ...]
    head: Literal["auto", "yolox", "detr", "yolo"] = "auto"
    input: tuple[int, int]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A model file on disk with what its bundle says of it; empty labels: the file must tell."""

    path: Path
    labels: tuple[str, ...] = ()
    head: Literal["auto", "yolox", "detr", "yolo"] = "auto"


def folders() -> tuple[Path, ...]:
    """Where models are looked for: $VEDETTE_MODELS, ./models, models/ of the repository, and what the wheel brought."""
    named = os.environ.get("VEDETTE_MODELS")
    places = [Path(named)] if named else []
    places += [Path("models"), Path(__file__).parents[2] / "models", Path(__file__).parent / "models"]
    return tuple(dict.fromkeys(place.resolve() for place in places))


def find(model: str, places: tuple[Path, ...] | None = None) -> Found:
    """The file for `model`. Raises ModelError that says where was looked and how to get it."""
    places = folders() if places is None else places
    if model.endswith(".onnx") or "/" in model:
        return _recognised(_file(model, places), places)
    bundles = _bundles(places)
    if model not in bundles:
        names = ", ".join((AUTO, HOG, *sorted(bundles)))
        raise ModelError(
            f"there is no model `{model}`: give a path to an .onnx file or one of {names} ({_looked(places)})"
        )
    bundle = bundles[model]
    path = next((place / bundle.file for place in places if (place / bundle.file).is_file()), None)
    if path is None:
        raise ModelError(
            f"the model `{model}` is known but its file {bundle.file} is not here ({_looked(places)}); "
            + _remedy(bundle, places[0] / bundle.file)
        )
    if sha256_of(path) != bundle.sha256:
        raise ModelError(
            f"{path} is not the file that {MANIFEST} describes for `{model}` (its sha256 differs); "
            + _remedy(bundle, path)
        )
    return _found(path, bundle)


def _remedy(bundle: Bundle, target: Path) -> str:
    if not bundle.url:
        return "it comes with Vedette: install it again"
    return f"get it with: curl -fL --create-dirs -o {target} {bundle.url}"


def _recognised(path: Path, places: tuple[Path, ...]) -> Found:
    """What is known of the file at `path`: its bundle's labels and head if some models.toml has its sha256."""
    sha256 = sha256_of(path)
    for bundle in _bundles(places).values():
        if bundle.sha256 == sha256:
            return _found(path, bundle)
    return Found(path)


def _found(path: Path, bundle: Bundle) -> Found:
    return Found(path, COCO_80 if bundle.labels == "coco-80" else bundle.labels, bundle.head)


def _file(model: str, places: tuple[Path, ...]) -> Path:
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if "/" not in model:
        for place in places:
            if (place / model).is_file():
                return place / model
        raise ModelError(f"{model}: no such model file ({_looked((Path.cwd(), *places))})")
    raise ModelError(f"{model}: no such model file")


def _bundles(places: tuple[Path, ...]) -> dict[str, Bundle]:
    """All bundles; where two folders name the same one, the first counts."""
    bundles: dict[str, Bundle] = {}
    for place in reversed(places):
        bundles.update(_manifest(place / MANIFEST))
    return bundles


def _manifest(path: Path) -> dict[str, Bundle]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: Bundle.model_validate(table) for name, table in tables.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ModelError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _looked(places: tuple[Path, ...]) -> str:
    return "looked in " + ", ".join(str(place) for place in dict.fromkeys(places))
