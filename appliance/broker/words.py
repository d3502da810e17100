"""What is wrong with the link, in a sentence for a person."""

from __future__ import annotations

import asyncio
import socket
import ssl

import nats.errors
import nkeys

from appliance.address import Address


def explain(error: Exception | None, otherwise: str, address: Address) -> str:
    """Why there is no connection (any more), so that a person can act; without secrets."""
    text = str(error).lower()
    if isinstance(error, nats.errors.AuthorizationError) or "authorization" in text or "authentication" in text:
        return "it refused us (wrong token, credentials or password)"
    if isinstance(error, ssl.SSLError):
        return f"its TLS certificate or handshake failed ({error.reason or 'TLS error'}); is tls_ca right?"
    if isinstance(error, nkeys.NkeysError):
        return "the file of credentials or nkey holds no usable seed"
    if isinstance(error, FileNotFoundError):
        return f"there is no {error.filename} (credentials, nkey)"
    if isinstance(error, ConnectionRefusedError):
        return "nothing answers there (connection refused)"
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved"
    if isinstance(error, (asyncio.TimeoutError, nats.errors.TimeoutError)):
        return "it does not answer"
    if isinstance(error, (nats.errors.StaleConnectionError, nats.errors.UnexpectedEOF, ConnectionResetError)):
        return "the connection was lost"
    if error is None or not str(error):
        return otherwise
    return _without(str(error), address)


def _without(text: str, address: Address) -> str:
    """`text` without the token, should a library ever quote it."""
    for secret in address.secrets:
        text = text.replace(secret, "***")
    return text
