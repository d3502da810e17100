"""Makes the dashboard's certificate or loads it from files, and loads it again whenever these change."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from appliance.base.clock import Clock
from appliance.base.errors import MissingDependency
from appliance.web.acceptor import CertificateFacts, ServedAddress

logger = logging.getLogger(__name__)

OWN_S = 820 * 86400  # Apple's systems refuse what lasts longer than 825 days
RENEW_BEFORE_S = 30 * 86400  # a month, in which the appliance is on at least once
LOOK_EVERY_S = 5.0  # files that certbot replaced are served seconds later


class ServerCertificate:
    """The certificate that is shown to browsers.

    State: the TLS context of the files as they were last taken, and `fault`, why newer ones were not; '': they were.
    Owner: the thread that calls `refresh`; the rest may be read by any.
    """

    def __init__(self, certificate: Path, key: Path, clock: Clock, own_names: Sequence[str] = ()) -> None:
        """own_names: of a certificate that is made and renewed here; none: the files are the owner's.

        Raises MissingDependency with the remedy.
        """
        self._certificate, self._key = certificate, key
        self._clock = clock
        self._own_names = tuple(own_names)
        self._looked_at = clock.monotonic()
        self.fault = ""
        if self._own_names:
            self._make_if_due()
        self._seen = self._stamp()
        self.context, self.facts = self._taken()

    @classmethod
    def of(cls, config: ServedAddress, root: Path, clock: Clock) -> ServerCertificate | None:
        """As the site file says; None: it speaks HTTP. root: the storage folder. Raises MissingDependency."""
        if not config.speaks_https:
            return None
        if config.certificate is not None and config.certificate_key is not None:
            return cls(config.certificate, config.certificate_key, clock)
        folder = root / "tls"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise MissingDependency(f"{folder}, for the dashboard's certificate: {error.strerror}") from None
        return cls(folder / "dashboard.crt", folder / "dashboard.key", clock, _own_names(config))

    @property
    def is_due(self) -> bool:
        """Return whether it is time for `refresh`."""
        return self._clock.monotonic() - self._looked_at >= LOOK_EVERY_S

    def refresh(self) -> None:
        """Take the files if they changed, and renew what is ours in time."""
        self._looked_at = self._clock.monotonic()
        try:
            if self._own_names:
                self._make_if_due()
            stamp = self._stamp()
            if stamp == self._seen:
                return
            self._seen = stamp
            self.context, self.facts = self._taken()
        except MissingDependency as error:
            if str(error) != self.fault:
                logger.warning("the certificate stays as it was: %s", error)
            self.fault = str(error)
        else:
            self.fault = ""
            logger.info("the dashboard has a new certificate, SHA-256 %s", self.facts.fingerprint)

    def _taken(self) -> tuple[ssl.SSLContext, CertificateFacts]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")  # never asks at the terminal
            first = x509.load_pem_x509_certificates(self._certificate.read_bytes())[0]
        except ssl.SSLError as error:
            raise MissingDependency(
                f"dashboard.certificate {self._certificate} and dashboard.certificate_key {self._key} do not go "
                f"together ({error.reason or 'no PEM'}): name a certificate with its chain and its key without a "
                "password, both PEM"
            ) from None
        except OSError as error:
            raise MissingDependency(f"{error.filename or self._certificate}: {error.strerror}") from None
        except ValueError as error:
            raise MissingDependency(f"dashboard.certificate {self._certificate} is no PEM: {error}") from None
        return context, _facts(first, own=bool(self._own_names))

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return a stamp that changes with the files, also where a link leads to others (certbot).

        Raise MissingDependency if a file cannot be read.
        """
        found = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
            except OSError as error:
                raise MissingDependency(f"{path}: {error.strerror}") from None
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)

    def _make_if_due(self) -> None:
        """Make a certificate where there is none that lasts; the key stays. Raises MissingDependency."""
        try:
            if self._certificate.exists() and self._key.exists():
                first = x509.load_pem_x509_certificates(self._certificate.read_bytes())[0]
                if first.not_valid_after_utc.timestamp() - self._clock.now() > RENEW_BEFORE_S:
                    return
            key = _read_key(self._key) or ec.generate_private_key(ec.SECP256R1())
            certificate = _self_signed(key, self._own_names, self._clock.now())
            encoding = serialization.Encoding.PEM
            form = serialization.PrivateFormat.PKCS8
            _write(self._key, key.private_bytes(encoding, form, serialization.NoEncryption()))
            _write(self._certificate, certificate.public_bytes(encoding))
        except OSError as error:
            raise MissingDependency(f"{error.filename or self._certificate}: {error.strerror}") from None
        except ValueError as error:
            raise MissingDependency(
                f"{self._certificate} or {self._key} is broken ({error}): delete both, and others are made"
            ) from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    if not path.exists():
        return None
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _write(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(path.suffix + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _self_signed(key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: float) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    begin = datetime.datetime.fromtimestamp(now - 86400, datetime.timezone.utc)  # a box without a battery clock
    end = datetime.datetime.fromtimestamp(now - 86400 + OWN_S, datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode())


def _own_names(config: ServedAddress) -> list[str]:
    """Under which the appliance can be reached, as far as it knows."""
    host = socket.gethostname().lower()
    names = [host] if _is_dns_name(host) else []
    if names and "." not in host:
        names.append(f"{host}.local")
    names += [each.lower() for each in config.allowed_hosts if _is_dns_name(each)]
    if config.host not in {"0.0.0.0", "::"}:
        names.append(config.host.lower())
    else:
        names += _addresses()
    return list(dict.fromkeys([*names, "localhost", "127.0.0.1", "::1"]))


def _is_dns_name(name: str) -> bool:
    try:
        return bool(name.encode("idna")) and name.replace(".", "").replace("-", "").isalnum()
    except UnicodeError:
        return False


def _addresses() -> list[str]:
    """Return the addresses by which this appliance would speak to others; nothing is sent."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue
    return found


def certificate_end_t(pem: bytes) -> float:
    """Return the UTC seconds at which the first certificate runs out. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def _facts(certificate: x509.Certificate, *, own: bool) -> CertificateFacts:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = tuple(str(each.value) for each in names if isinstance(each, x509.DNSName | x509.IPAddress))
    except x509.ExtensionNotFound:
        shown = ()
    return CertificateFacts(
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(":").upper(), names=shown,
        expires_t=certificate.not_valid_after_utc.timestamp(),
        self_signed=certificate.issuer == certificate.subject, own=own,
    )  # fmt: skip
