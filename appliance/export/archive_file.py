"""An export as one zip file beside its folder: the same export gives the same bytes."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path

from appliance.alerts.evidence_files import DiskRefused, discard, finish, temporary_of
from appliance.export.folder import Folder

_DATE = (1980, 1, 1, 0, 0, 0)
_PICTURE = {".jpg"}


def zip_of(folder: Folder) -> Path:
    """Write `FOLDER.zip`, whole or not at all. Raises DiskRefused."""
    target = folder.root.with_name(f"{folder.root.name}.zip")
    temporary = temporary_of(target)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as out:
            for file in folder.files():
                _add(out, file, file.relative_to(folder.root).as_posix())
    except OSError as error:
        discard(temporary)
        words = error.strerror or errno.errorcode.get(error.errno or 0, "the disk refused it")
        raise DiskRefused(f"{target.name} cannot be written: {words}") from None
    except BaseException:
        discard(temporary)
        raise
    finish(target)
    return target


def _add(out: zipfile.ZipFile, file: Path, name: str) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_STORED if file.suffix in _PICTURE else zipfile.ZIP_DEFLATED
    out.writestr(entry, file.read_bytes())
