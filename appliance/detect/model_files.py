"""Finds and verifies the model file that `detector.model` names: a path, a file name, or a bundle of models.toml."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from appliance.base.config_model import HeadName, Precision
from appliance.base.errors import ModelError
from appliance.base.json_lines import first_problem
from appliance.bundle.bundle_store import STORE_FOLDER, BundleStore
from appliance.bundle.manifest import (
    MANIFEST_FILE,
    SCORE_KINDS,
    BundleManifest,
    BundleRef,
    ModelEntry,
    ScoreLines,
    checked_lines,
    read_manifest,
    sha256_of,
)  # fmt: skip
from appliance.detect import hef_file
from appliance.detect.class_labels import COCO_80

log = logging.getLogger(__name__)


CPU_INFO = Path("/proc/cpuinfo")
_CPU_FIELDS = ("model name", "Model", "CPU implementer", "CPU part")  # the latter are what arm64 has


def cpu_name() -> str:
    """`x86_64 AMD EPYC`: machine and model, of the first core."""
    found = _first_cpu(CPU_INFO)
    return " ".join([platform.machine(), *(found[each] for each in _CPU_FIELDS if each in found)])


def cpu_has_bf16(info: Path = CPU_INFO, machine: str = "") -> bool:
    """Return whether ONNX Runtime may use bfloat16 products here: on arm64 with FEAT_BF16 (Linux: `bf16`)."""
    machine = machine or platform.machine()
    return machine in ("aarch64", "arm64") and "bf16" in _first_cpu(info).get("Features", "").split()


SUMS_INT8 = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"})


def cpu_sums_int8(info: Path = CPU_INFO, machine: str = "") -> bool:
    """Return whether sums of products of 8-bit numbers are exact: on x86 with VNNI or AMX, and on any 64-bit ARM.

    On other x86 libraries take VPMADDUBSW, which adds two products, one number of each unsigned, in 16 bits and
    saturates unless weights have 7 bits (oneDNN, "Nuances of int8 computations"). Kernels for NEON make both numbers
    signed, so that two products fit, or add in 32 bits (UMLAL, UDOT: MLAS, ConvSymU8KernelNeon, QgemmU8X8KernelNeon).
    """
    return (machine or platform.machine()) in ("aarch64", "arm64") or bool(cpu_flags(info) & SUMS_INT8)


def cpu_flags(info: Path = CPU_INFO) -> frozenset[str]:
    """Return the abilities of an x86 core in Linux' words: `avx512_bf16`, `amx_bf16`."""
    return frozenset(_first_cpu(info).get("flags", "").split())


def _first_cpu(info: Path) -> dict[str, str]:
    """Return the first value of every key; {} where there is no such file."""
    found: dict[str, str] = {}
    try:
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return found


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOG_MODEL = "builtin:hog"
AUTO_MODEL = "auto"
OWN_MODEL = "vedette-nano"  # the network that comes with Vedette, and what `auto` means
MANIFEST = "models.toml"
REFERENCE: ScoreLines = {"person": (1.0, 0.28), "vehicle": (1.9, 1.07)}
"""The lines of the first vedette-nano, with which all default thresholds were chosen: the common scale."""
CALIBRATION_KEY = "vedette_calibration"


def to_common_scale(own: ScoreLines, labels: Sequence[str]) -> dict[str, tuple[float, float]]:
    """By label: (slope, offset) from a network's log-odds to those of the common scale; none where both are one."""
    found = {}
    for kind, (slope, offset) in own.items():
        reference = REFERENCE.get(kind)
        if reference is None or reference == (slope, offset):
            continue
        line = (round(slope / reference[0], 4), round((offset - reference[1]) / reference[0], 4))
        found.update({label: line for label in SCORE_KINDS[kind] if label in labels})
    return found


def lines_from_metadata(model: str, metadata: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return the file's metadata `vedette_calibration`: `{"person": [1.2, 0.3]}`; {}: none. Raise ModelError."""
    text = metadata.get(CALIBRATION_KEY)
    if not text:
        return {}
    try:
        value = json.loads(text)
        return checked_lines({str(kind): (float(line[0]), float(line[1])) for kind, line in value.items()})
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ModelError(f"{model}: its metadata `{CALIBRATION_KEY}` cannot be understood: {error}") from None


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file on disk with what its bundle says of it; empty labels: the file must tell."""

    path: Path
    labels: tuple[str, ...] = ()
    head: HeadName = "auto"
    bf16: bool = False
    calibration: ScoreLines = field(default_factory=dict)


_PACKAGED = frozenset((Path(__file__).parents[2].resolve() / "models", Path(__file__).parent.resolve() / "models"))


def model_folders() -> tuple[Path, ...]:
    """Return the folders of models.

    They are $VEDETTE_MODELS, the bundle in force, ./models, models/ of the repository, the wheel's own, and what this
    user has pulled.
    """
    named = os.environ.get("VEDETTE_MODELS")
    places = [Path(named)] if named else []
    places += [in_force] if (in_force := _bundle_in_force()) else []
    # A service's user, or sudo's, may stand in a folder that it cannot read.
    places += [Path("models")] if os.access(".", os.R_OK | os.X_OK) else []
    places += [Path(__file__).parents[2] / "models", Path(__file__).parent / "models"]
    places += [user] if (user := _user_folder()) else []
    return tuple(dict.fromkeys(place.resolve() for place in places))


def packaged_network() -> str:
    """Return the path of the network that comes with Vedette, whatever bundle is in force; its name if it is not here.

    Of a network's name the version in force counts.
    """
    files = (place / f"{OWN_MODEL}.onnx" for place in sorted(_PACKAGED))
    return next((str(path) for path in files if path.is_file()), OWN_MODEL)


def pull_folder() -> Path:
    """Return the folder into which `vedette models pull` puts files.

    It is $VEDETTE_MODELS, else the user's data folder (XDG base directories), else ./models.
    """
    named = os.environ.get("VEDETTE_MODELS")
    return (Path(named) if named else _user_folder() or Path("models")).resolve()


def bundle_store() -> BundleStore:
    """Return the bundles that are installed for this user."""
    return BundleStore(pull_folder() / STORE_FOLDER)


def _bundle_in_force() -> Path | None:
    """Return the folder of the bundle that all cameras have; None: none, or its pointer cannot be read."""
    store = bundle_store()
    try:
        slot = store.in_force().everywhere
    except ModelError as error:
        log.warning("%s", error)
        return None
    return store.folder(slot.bundle) if slot is not None else None


def named_model(model: str) -> str:
    """Return the name that `detector.model` stands for; `auto` is the bundle in force, else vedette-nano."""
    if model != AUTO_MODEL:
        return model
    found = (_bundle_in(place) for place in model_folders())
    return next((manifest.name for manifest in found if manifest is not None), OWN_MODEL)


def _bundle_in(place: Path) -> BundleManifest | None:
    """Return the manifest of the bundle whose folder `place` is; None: it is none, or it cannot be read."""
    if not (place / MANIFEST_FILE).is_file():
        return None
    try:
        return read_manifest(place)
    except ModelError as error:
        log.warning("%s", error)
        return None


def of_version(model: str, places: tuple[Path, ...]) -> tuple[str, tuple[Path, ...]]:
    """Return the name in `NAME@VERSION`, and the folders with that bundle's first. Raise ModelError: not installed.

    The path of the network that comes with Vedette is its name in that folder alone, so that it has its variants, too.
    """
    if "/" in model and model == packaged_network():
        return OWN_MODEL, (Path(model).parent,)
    if "@" not in model or "/" in model:
        return model, places
    ref = BundleRef.parse(model)
    there = next((place for place in places if (found := _bundle_in(place)) and found.ref == ref), None)
    if there is None:
        bundle_store().manifest(ref)
        there = bundle_store().folder(ref)
    return ref.name, (there, *(place for place in places if place != there and _bundle_in(place) is None))


def _user_folder() -> Path | None:
    """None: this user has no home, as in a container that runs under a number of its own."""
    data = os.environ.get("XDG_DATA_HOME", "")
    try:
        base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError:
        return None
    return base / "vedette" / "models"


def model_bundles() -> dict[str, ModelEntry]:
    """Every network of every models.toml, by name. Raises ModelError when one cannot be read."""
    return _bundles(model_folders())


def present_models(places: tuple[Path, ...] | None = None) -> dict[str, ModelEntry]:
    """Return the networks of every models.toml whose file is here, by name; the file is not read. Raise ModelError."""
    places = model_folders() if places is None else places
    return {name: bundle for name, bundle in sorted(_bundles(places).items()) if file_of(bundle, places)}


def find_model(
    model: str, places: tuple[Path, ...] | None = None, precision: Precision = "auto", stand_in: str = ""
) -> ModelFile:
    """Return the file for `model` in `precision`. Raise ModelError that names the folders searched and the remedy.

    model: a path, a file name, the name of a network, which is the version in force, or `NAME@VERSION`. Where the files
    of the bundle in force are damaged or gone, the file of the same name that comes with Vedette stands in for it, else
    the network `stand_in`, and the log says so.
    """
    explicit = "@" in model
    model, places = of_version(model, model_folders() if places is None else places)
    if precision == "fp16":
        raise ModelError(
            f"{model}: ONNX Runtime runs a file in the precision it was exported in; "
            "set detector.precision to auto and give an fp16 file"
        )
    if model.endswith(".onnx") or "/" in model:
        if precision not in ("auto", "fp32"):
            raise ModelError(f"{model}: detector.precision {precision} needs a model of models.toml that has it")
        return _recognised(_file(model, places), places)
    bundles = _bundles(places)
    try:
        return _present(*_variant(model, precision, bundles, places), places)
    except ModelError as error:
        others = tuple(place for place in places if _bundle_in(place) is None)
        instead = next((name for name in (model, stand_in) if name in _bundles(others)), "")
        if explicit or others == places or not instead:
            raise
        log.error("the %s that comes with Vedette stands in for the bundle in force: %s", instead, error)
        return _present(*_variant(instead, precision, _bundles(others), others), others)


def find_compiled_model(model: str, places: tuple[Path, ...] | None = None) -> ModelFile:
    """Return the .hef file for `model`. Raise ModelError.

    model: a path, a file name, a bundle whose file is one, or the name of a network that was compiled to
    NAME.ARCHITECTURE.hef; then with its bundle's classes.
    """
    places = model_folders() if places is None else places
    bundles = _bundles(places)
    bundle = bundles.get(model)
    if bundle is not None and bundle.file.endswith(".hef"):
        return _present(model, bundle, places)
    path = hef_file.find_hef(model, places)
    return _model_file(path, bundle) if bundle is not None else _recognised(path, places)


def accurate_precisions(
    model: str, places: tuple[Path, ...] | None = None, bf16: bool | None = None
) -> tuple[Precision, ...]:
    """Return the precisions of `model` that may stand in for it on this machine; () for a path to a file.

    They are its own, then the variants whose every figure is at most `loss_max` lower, whose file is here and which
    this CPU gains from. bf16: whether what runs it multiplies so here; None: as ONNX Runtime does.
    """
    model, places = of_version(model, model_folders() if places is None else places)
    bundles = _bundles(places)
    if model not in bundles:
        return ()
    own = bundles[model]
    found = [own.precision]
    for precision, name in own.variants.items():
        other = bundles.get(name)
        if other is None or file_of(other, places) is None or not _as_accurate(own, other):
            continue
        if precision != "bf16" or (cpu_has_bf16() if bf16 is None else bf16):
            found.append(precision)
    return tuple(found)


def _as_accurate(own: ModelEntry, other: ModelEntry) -> bool:
    """Return whether every figure is kept. One that was not measured does not count as kept."""
    kept = (other.accuracy.get(name, 0.0) >= value - own.loss_max - 1e-9 for name, value in own.accuracy.items())
    return bool(own.accuracy) and all(kept)


def _variant(
    model: str, precision: Precision, bundles: dict[str, ModelEntry], places: tuple[Path, ...]
) -> tuple[str, ModelEntry]:
    if model not in bundles:
        names = ", ".join((AUTO_MODEL, HOG_MODEL, *sorted(bundles)))
        raise ModelError(
            f"there is no model `{model}`: give a path to an .onnx file or one of {names} ({_looked(places)})"
        )
    own = bundles[model]
    name = model if precision in ("auto", own.precision) else own.variants.get(precision, "")
    if name not in bundles:
        there_are = ", ".join(("auto", own.precision, *sorted(own.variants)))
        raise ModelError(f"`{model}` does not come in {precision}: set detector.precision to one of {there_are}")
    if bundles[name].precision == "bf16" and not cpu_has_bf16():
        raise ModelError(
            f"{cpu_name()} has no bfloat16 products for ONNX Runtime (arm64 with FEAT_BF16 has): set "
            "detector.precision to auto, or detector.backend to openvino"
        )
    return name, bundles[name]


def file_of(bundle: ModelEntry, places: tuple[Path, ...]) -> Path | None:
    """Return where the file of `bundle` is; where two have its name, the one that is as promised."""
    found = [place / bundle.file for place in places if (place / bundle.file).is_file()]
    right = (path for path in found if len(found) > 1 and sha256_of(path) == bundle.sha256)
    return next(right, found[0] if found else None)


def _present(model: str, bundle: ModelEntry, places: tuple[Path, ...]) -> ModelFile:
    """Its file, checked."""
    path = file_of(bundle, places)
    if path is None:
        raise ModelError(
            f"the model `{model}` is known but its file {bundle.file} is not here ({_looked(places)}); "
            + _remedy(model, bundle, places[0] / bundle.file)
        )
    if not bundle.sha256:
        raise ModelError(f"{MANIFEST} has no sha256 of `{model}`, so that nobody can tell its file from another")
    if sha256_of(path) != bundle.sha256:
        raise ModelError(
            f"{path} is not the file that {MANIFEST} describes for `{model}` (its sha256 differs); "
            + _remedy(model, bundle, path)
        )
    log.debug("the model `%s` is %s", model, path)  # each page of models looks for all of them
    return _model_file(path, bundle)


def _remedy(model: str, bundle: ModelEntry, target: Path) -> str:
    if (installed := _bundle_in(target.parent)) is not None:
        return f"install it again (vedette models install {installed.ref}), or go back (vedette models rollback)"
    if not bundle.url:
        return "it comes with Vedette: install it again"
    return f"get it with: vedette models pull {model}, or: curl -fL --create-dirs -o {target} {bundle.url}"


def _recognised(path: Path, places: tuple[Path, ...]) -> ModelFile:
    """Return the facts of the file at `path`: its bundle's labels and head if some models.toml has its sha256."""
    sha256 = sha256_of(path)
    for bundle in _bundles(places).values():
        if bundle.sha256 == sha256:
            return _model_file(path, bundle)
    return ModelFile(path)


def _model_file(path: Path, bundle: ModelEntry) -> ModelFile:
    labels = COCO_80 if bundle.labels == "coco-80" else bundle.labels
    return ModelFile(path, labels, bundle.head, bundle.precision == "bf16", bundle.calibration)


def _file(model: str, places: tuple[Path, ...]) -> Path:
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if "/" not in model:
        for place in places:
            if (place / model).is_file():
                return place / model
        raise ModelError(
            f"{model}: no such model file ({_looked((Path.cwd(), *places))}); networks by name: "
            f"{', '.join(sorted(_bundles(places))) or 'none'} (`vedette models` tells more)"
        )
    raise ModelError(f"{model}: no such model file")


def _bundles(places: tuple[Path, ...]) -> dict[str, ModelEntry]:
    """All entries; where two folders name the same one, a bundle's counts, then what comes with Vedette, the first."""
    bundles: dict[str, ModelEntry] = {}
    ours: dict[str, ModelEntry] = {}
    for place in reversed(places):
        found = _manifest(place / MANIFEST)
        (ours if place in _PACKAGED else bundles).update(found)
    for name in sorted(ours.keys() & bundles.keys()):
        if bundles[name].sha256 != ours[name].sha256:
            log.warning("a %s describes `%s`, which comes with Vedette: give that network another name", MANIFEST, name)
    versions = [manifest.entries for place in reversed(places) if (manifest := _bundle_in(place)) is not None]
    return bundles | ours | {name: entry for entries in versions for name, entry in entries.items()}


def _manifest(path: Path) -> dict[str, ModelEntry]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: ModelEntry.model_validate(table) for name, table in tables.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        raise ModelError(f"{path}: {first_problem(error)}") from None


def _looked(places: tuple[Path, ...]) -> str:
    return "looked in " + ", ".join(str(place) for place in dict.fromkeys(places))
