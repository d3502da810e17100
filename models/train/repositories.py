"""Reads files of public git repositories at a fixed commit, without a work tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from models.train.index import IndexFault

HOST = "https://github.com/"


class Repository:
    """One repository's files at one commit, through `git cat-file`."""

    def __init__(self, folder: Path, commit: str) -> None:
        """folder: a git directory or a clone. Raise IndexFault if the commit is not in it."""
        self._folder, self._commit = folder, commit
        self._run("cat-file", "-e", f"{commit}^{{commit}}")

    def names(self) -> list[str]:
        """Return all paths, in git's order."""
        listed = self._run("ls-tree", "-r", "-z", "--name-only", self._commit)
        return [name for name in listed.decode("utf-8", "replace").split("\0") if name]

    def read(self, path: str) -> bytes:
        """Read one file's bytes. Raise IndexFault."""
        return self._run("cat-file", "blob", f"{self._commit}:{path}")

    def _run(self, *arguments: str) -> bytes:
        done = subprocess.run(
            ["git", "-C", str(self._folder), *arguments], capture_output=True, check=False, timeout=300
        )
        if done.returncode:
            raise IndexFault(f"{self._folder}: git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout


def find(clones: Path, name: str, commit: str) -> Repository:
    """Return the repository OWNER/NAME below `clones`; clone it if it is not there yet. Raise IndexFault."""
    flat = name.replace("/", "+")
    for folder in (clones / flat / "repo", clones / flat, clones / name, clones / f"{name}.git"):
        if folder.is_dir():
            return Repository(folder, commit)
    target = clones / f"{name}.git"
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "clone", "--quiet", "--bare", f"{HOST}{name}.git", str(target)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=3600)
    if done.returncode:
        raise IndexFault(f"{name}: cannot be cloned: {done.stderr.decode(errors='replace').strip()}")
    return Repository(target, commit)
