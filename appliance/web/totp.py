"""One-time codes by time (RFC 6238: SHA-1, 30 s, six digits, as all authenticator apps take them); recovery codes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import secrets
from urllib.parse import quote

from appliance.base.passwords import CODE_LETTERS

STEP_S = 30  # RFC 6238, 4.1; all authenticator apps know no other
DIGITS = 6  # RFC 4226, 5.3
RECOVERY_CODES = 10  # as other services give; they fit on a card
_AROUND = (0, -1, 1)  # a phone's clock is off by half a minute at most


def new_secret() -> str:
    """160 random bits in base32, as RFC 4226 (R6) recommends."""
    return base64.b32encode(secrets.token_bytes(20)).decode()


def code_at(secret: str, step: int, digits: int = DIGITS) -> str:
    """Return the code of a step of 30 s (RFC 4226, 5.3)."""
    digest = hmac.new(base64.b32decode(secret), step.to_bytes(8, "big"), hashlib.sha1).digest()
    at = digest[-1] & 0x0F
    number = int.from_bytes(digest[at : at + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**digits:0{digits}d}"


def step_of(secret: str, given: str, now: float) -> int | None:
    """Return the step around `now` whose code was given; None: it is none of them."""
    code = given.replace(" ", "")
    here = int(now) // STEP_S
    found = [here + n for n in _AROUND if hmac.compare_digest(code_at(secret, here + n).encode(), code.encode())]
    return found[0] if found else None


def qr_code(secret: str, user: str, site: str) -> bytes:
    """Return an SVG from which an app takes the secret, made here: no page elsewhere ever sees it."""
    label = quote(f"Vedette {site}:{user}")
    issuer = quote(f"Vedette {site}")
    address = f"otpauth://totp/{label}?secret={secret}&issuer={issuer}&period={STEP_S}&digits={DIGITS}"
    drawn = io.BytesIO()
    import segno

    segno.make(address, error="m", micro=False).save(drawn, kind="svg", scale=5, dark="#000", light="#fff")
    return drawn.getvalue()


def new_recovery_codes() -> list[str]:
    """Ten codes of 50 bits, for who has lost the phone."""
    codes = ("".join(secrets.choice(CODE_LETTERS) for _ in range(10)) for _ in range(RECOVERY_CODES))
    return [f"{each[:5]}-{each[5:]}" for each in codes]
