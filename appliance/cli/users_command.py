"""`vedette users`: adds, changes and removes users of the dashboard, also while the appliance runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from appliance import config
from appliance.base.clock import SystemClock, iso_utc
from appliance.base.command_exit import typed_secret
from appliance.base.console import text_console
from appliance.base.credentials import code_digest, hashed, new_code
from appliance.base.errors import PreconditionError, UsageError
from appliance.store.database import open_beside
from appliance.store.paths import DATABASE
from appliance.store.users import (
    add_sign_in_code,
    add_user,
    all_users,
    change_user,
    log_access,
    remove_second_factor,
    remove_user,
)
from appliance.types.accounts import Role, SignInCodeRow, UserRow

UNLOCK_S = 900.0  # 15 minutes, time enough to read the code out on the telephone
_WHO, _WHERE = "vedette users", "command line"


def add_command(site_file: Path, name: str, role: Role, cameras: Sequence[str]) -> int:
    """Add a user, with a password from the terminal or standard input. Raises UsageError, StoreError."""
    site = config.load(site_file)
    if strange := [each for each in cameras if each not in site.cameras]:
        raise UsageError(f"there is no camera {strange[0]} in {site_file}")
    password = hashed(typed_secret(f"Password for {name}: "))
    user = UserRow(name=name, role=role, cameras=tuple(sorted(cameras)) or None, password=password)
    clock = SystemClock()
    with open_beside(site.storage.dir / DATABASE, clock) as connection:
        add_user(connection, user, clock.now())
        log_access(connection, clock.now(), _WHO, _WHERE, "added a user", name)
    print(f"{name} may sign in as {role}")
    return 0


def list_command(site_file: Path, *, as_json: bool) -> int:
    """Print the users."""
    with open_beside(_known_database(site_file), SystemClock()) as connection:
        users = list(all_users(connection).values())
    if as_json:
        rows = [
            {"name": each.name, "role": each.role, "cameras": each.cameras, "enabled": each.enabled} for each in users
        ]
        print(json.dumps(rows))
        return 0
    if not users:
        print(f"no users yet: vedette users add NAME --role admin --config {site_file}")
        return 0
    table = Table("name", "role", "cameras", "enabled", "since", box=None)
    for each in users:
        cameras = "all" if each.cameras is None else ", ".join(each.cameras)
        table.add_row(each.name, each.role, cameras, "yes" if each.enabled else "no", iso_utc(each.created_t)[:10])
    text_console().print(table)
    return 0


def remove_command(site_file: Path, name: str) -> int:
    """Remove a user and end their sessions."""
    clock = SystemClock()
    with open_beside(_known_database(site_file), clock) as connection:
        remove_user(connection, name)
        log_access(connection, clock.now(), _WHO, _WHERE, "removed a user", name)
    print(f"{name} is removed and signed out")
    return 0


def passwd_command(site_file: Path, name: str, *, without_second_factor: bool = False) -> int:
    """Give a user another password, let them sign in again, and end their sessions."""
    clock, path = SystemClock(), _known_database(site_file)
    with open_beside(path, clock) as connection:
        if name not in all_users(connection):
            raise UsageError(f"there is no user {name}")
    password = hashed(typed_secret(f"Password for {name}: "))
    with open_beside(path, clock) as connection:
        user = all_users(connection).get(name)
        if user is None:
            raise UsageError(f"there is no user {name}")
        change_user(connection, replace(user, password=password, enabled=True))
        if without_second_factor:
            remove_second_factor(connection, name)
            log_access(connection, clock.now(), _WHO, _WHERE, "removed a second factor", name)
        log_access(connection, clock.now(), _WHO, _WHERE, "changed a user", name)
    print(f"{name} has another password and is signed out everywhere")
    return 0


def unlock_command(site_file: Path, name: str) -> int:
    """Print a code that signs a user in once, whatever strangers have tried. Raises UsageError, StoreError."""
    clock, code = SystemClock(), new_code(3)
    row = SignInCodeRow(user=name, digest=code_digest(code), expires_t=clock.now() + UNLOCK_S)
    with open_beside(_known_database(site_file), clock) as connection:
        add_sign_in_code(connection, row)
        log_access(connection, clock.now(), _WHO, _WHERE, "made a sign-in code", name)
    print(f"{name} signs in with this in place of the password, once, within {UNLOCK_S // 60:.0f} minutes:\n{code}")
    return 0


def _known_database(site_file: Path) -> Path:
    """Return the database of the site file; none is created. Raise PreconditionError if it is not there."""
    path = config.load(site_file).storage.dir.absolute() / DATABASE
    if not path.exists():
        raise PreconditionError(
            f"there is no {path}: nobody was added yet, or storage.dir counts from another folder than this one"
        )
    return path
