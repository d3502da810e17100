"""The border of the broker: what nats-py raises over what a broker says, or does not say, becomes UplinkError here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import nats.errors

from appliance.base.errors import UplinkError, printable

_COMPLAINT_CHARS_MAX = 200  # one line of a log; the rest repeats it

logger = logging.getLogger(__name__)

# nats-py reads answers without checking them: a list where an object belongs, a number of 400 digits or a field that is
# missing shows as any of the later ones.
NATS_ERRORS = (
    nats.errors.Error,
    OSError,
    asyncio.TimeoutError,
    asyncio.InvalidStateError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)


@contextlib.contextmanager
def broker_errors(what: str) -> Iterator[None]:
    """Raise UplinkError, `what` and the kind of the error, for all that nats-py raises inside."""
    try:
        yield
    except NATS_ERRORS as error:
        logger.debug("%s", what, exc_info=True)
        raise UplinkError(f"{what}: {type(error).__name__}") from None


def complaint(error: nats.errors.Error) -> str:
    """Return the broker's complaint in a few words, whatever it is made of."""
    return printable(str(getattr(error, "description", "") or type(error).__name__)[:_COMPLAINT_CHARS_MAX])
