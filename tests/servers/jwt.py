"""Operator, account and user as `nsc` makes them, for a nats-server that asks for credentials."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import Any

import nkeys


@dataclass(frozen=True)
class Identity:
    """`server`: the part of a server's configuration; `creds`: the file of one user that may do everything."""

    server: str
    creds: str


def seed_of(kind: int = nkeys.PREFIX_BYTE_USER) -> bytes:
    made: bytes = nkeys.encode_seed(os.urandom(32), kind)
    return made


def public_of(seed: bytes) -> str:
    return str(nkeys.from_seed(bytearray(seed)).public_key.decode())


def operator_account_user() -> Identity:
    operator, account, system, user = (
        seed_of(kind)
        for kind in (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_USER,
        )
    )
    top = _signed(operator, public_of(operator), {"type": "operator", "version": 2})
    everything = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage", "streams",
         "consumer"), -1,
    )  # fmt: skip
    limits = {"limits": everything | {"wildcards": True}, "type": "account", "version": 2}
    bare = {"limits": {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1}, "type": "account", "version": 2}
    accounts = {
        public_of(key): _signed(operator, public_of(key), what) for key, what in ((account, limits), (system, bare))
    }
    claims = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2}
    token = _signed(account, public_of(user), claims)
    preload = "\n".join(f"  {name}: {text}" for name, text in accounts.items())
    server = (
        f"operator: {top}\nsystem_account: {public_of(system)}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}"
    )
    creds = (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.decode()}\n------END USER NKEY SEED------\n"
    )
    return Identity(server, creds)


def _signed(issuer: bytes, subject: str, claims: dict[str, Any]) -> str:
    payload = {"jti": "X", "iat": 1700000000, "iss": public_of(issuer), "name": "test", "sub": subject, "nats": claims}
    text = ".".join(map(_encoded, ({"typ": "JWT", "alg": "ed25519-nkey"}, payload)))
    return f"{text}.{_base64(nkeys.from_seed(bytearray(issuer)).sign(text.encode()))}"


def _encoded(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
