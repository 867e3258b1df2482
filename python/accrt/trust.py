"""Keys and trust: whose signatures this user's programs believe, and the key that signs what the
user compiles.

    from accrt import trust

    trust.signing_key()                       # the user's own, made at first use
    trust.folder()                            # public keys that are trusted: one PEM file each (accx trust list)
    trust.sign("model.accx", vouch=True)      # as accx sign --in-place
    accrt.Instance(trust="signed", keys=["release.pem"])

The library itself reads no home directory and makes no key: this module and the accx tool do, and
pass what they find on. docs/trust.md says what is signed and what that means.
"""
from __future__ import annotations

import ctypes
import os
import unicodedata
from typing import TYPE_CHECKING, Dict, Iterable, List, NamedTuple, Optional, Sequence, Union

from . import _ffi
from ._library import c_path, check, filled, lib, need, never_raises, struct
from ._waits import apart
from ._files import put, regular
from ._paths import make_private_folder, user_folder
from .errors import AlreadyExistsError, Error, InvalidFormatError

if TYPE_CHECKING:
    import datetime

Path = Union[str, "os.PathLike[str]"]

_SCOPES = {"code": _ffi.ACCRT_SCOPE_CODE, "weights": _ffi.ACCRT_SCOPE_WEIGHTS,
           "both": _ffi.ACCRT_SCOPE_CODE | _ffi.ACCRT_SCOPE_WEIGHTS}
_ROLES = ("none", "code", "weights", "both")

#: What this process has made itself, for instances that live already: public keys and code roots
#: (32 bytes).
_own: List[tuple] = []


def config() -> Optional[str]:
    """${XDG_CONFIG_HOME:-~/.config}/accrt, or None when there is no home."""
    return user_folder("XDG_CONFIG_HOME", "~/.config")


def folder() -> Optional[str]:
    """The folder of the public keys that are trusted; None when there is no home."""
    home = config()
    return os.path.join(home, "trusted") if home else None


def paths(keys: Union[None, Path, Iterable[Path]] = None) -> Optional[str]:
    """The keys that an instance should trust, in the form of the option trust.keys: `keys`, or else
    $ACCRT_TRUST_KEYS and the user's folder."""
    if keys is not None:
        one = isinstance(keys, (str, os.PathLike))
        return ":".join(os.fspath(path) for path in ([keys] if one else keys))  # type: ignore[list-item]
    found = [os.environ.get("ACCRT_TRUST_KEYS", ""), folder() or ""]
    if found[1] and not os.path.isdir(found[1]):
        found.pop()
    return ":".join(path for path in found if path) or None


def _plain_instance():
    """One that trusts no key: reading and making keys needs no trust."""
    from .instance import default_instance
    return default_instance(trust="no-host-code")


def _key(data: bytes) -> "_ffi.accrt_key":
    data = bytes(memoryview(data))
    if len(data) != 32:
        raise ValueError(f"a key has 32 bytes, not {len(data)}")
    return _ffi.accrt_key((ctypes.c_uint8 * 32)(*data))


class SigningKey:
    """A private Ed25519 key. `BundleWriter.write` takes one as `signer`.

    Args:
        private: its 32 bytes; `SigningKey.read` and `SigningKey.generate` are the usual ways.
    Raises:
        UnsupportedError: there is no libcrypto on this machine.
    """

    __slots__ = ("_private", "public_key")

    def __init__(self, private: bytes) -> None:
        self._private = _key(private)
        public = _ffi.accrt_key()
        check(lib.accrt_key_public(_plain_instance().handle, ctypes.byref(self._private), ctypes.byref(public)))
        self.public_key = bytes(public.bytes)

    @classmethod
    def generate(cls) -> "SigningKey":
        """Makes a new key."""
        key = _ffi.accrt_key()
        check(lib.accrt_key_generate(_plain_instance().handle, ctypes.byref(key)))
        return cls(bytes(key.bytes))

    @classmethod
    def read(cls, path: Path) -> "SigningKey":
        """Reads a key from a PEM file that no other user may read."""
        return cls(_read(path, _ffi.ACCRT_KEY_PRIVATE))

    def write(self, path: Path) -> None:
        """Writes the key to a new file that only this user can read. The file is complete or not
        there, and replaces no other file."""
        _write(path, _ffi.ACCRT_KEY_PRIVATE, bytes(self._private.bytes))

    def write_public(self, path: Path) -> None:
        """Writes the public key to a new file."""
        _write(path, _ffi.ACCRT_KEY_PUBLIC, self.public_key)

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        out = (ctypes.c_uint8 * 64)()
        data = ctypes.create_string_buffer(message, len(message))
        check(lib.accrt_key_sign(_plain_instance().handle, ctypes.byref(self._private), data, len(message), out))
        return bytes(out)

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.trust.SigningKey ed25519:{self.public_key.hex()[:16]}>"


def _read(path: Path, kind: int) -> bytes:
    key = _ffi.accrt_key()
    place = (_plain_instance().handle, c_path(path), kind)
    apart(lambda: check(lib.accrt_key_read(*place, ctypes.byref(key))))
    return bytes(key.bytes)


def _write(path: Path, kind: int, data: bytes) -> None:
    key, place = _key(data), (_plain_instance().handle, c_path(os.fspath(path)), kind)
    apart(lambda: check(lib.accrt_key_write(*place, ctypes.byref(key))))


def read_public_key(path: Path) -> bytes:
    """The 32 bytes of a public key's PEM file."""
    return _read(path, _ffi.ACCRT_KEY_PUBLIC)


def read_secret_key(path: Path) -> bytes:
    """The 32 bytes of a key for encryption (accx keygen --secret)."""
    return _read(path, _ffi.ACCRT_KEY_SECRET)


def signing_key() -> SigningKey:
    """The user's own key, made at first use; its public half is then among the trusted ones.

    Raises:
        OSError: the user's folder cannot be written. UnsupportedError: there is no libcrypto.
    """
    home = config()
    if home is None:
        raise OSError("there is no place for keys: neither XDG_CONFIG_HOME nor HOME is a path")
    path, trusted = os.path.join(home, "signing-key.pem"), os.path.join(home, "trusted")
    if not os.path.exists(path):
        make_private_folder(trusted)
        try:
            new = SigningKey.generate()
            new.write(path)
            _trust_own(new, trusted)
        except AlreadyExistsError:
            pass
    key = SigningKey.read(path)
    _remember(key.public_key, b"")
    return key


def _trust_own(key: SigningKey, trusted: str) -> None:
    """Writes the public half. The file own.pem may be there, and be another user's key."""
    try:
        key.write_public(os.path.join(trusted, "own.pem"))
    except AlreadyExistsError:
        key.write_public(os.path.join(trusted, f"own-{key.public_key.hex()[:16]}.pem"))


def _remember(key: bytes, root: bytes) -> None:
    if (key, root) not in _own:
        _own.append((key, root))


def trust_code(code_root: bytes) -> None:
    """Lets code with this root (`BundleWriter.code_root`) run in this process. Use it for code that
    the process has just made and could not sign."""
    _remember(b"", bytes(_key(code_root).bytes))


def apply(instance) -> None:
    """Gives an instance with the user's keys what this process has made since. Programs do this
    when they are made."""
    while instance.own_keys and instance._taught < len(_own):
        key, root = _own[instance._taught]
        if key:
            check(lib.accrt_instance_trust_key(instance.handle, ctypes.byref(_key(key))))
        if root:
            check(lib.accrt_instance_trust_code(instance.handle, ctypes.byref(_key(root))))
        instance._taught += 1


# ---- how far keys are trusted

class TrustedKey(NamedTuple):
    """A key of the user's folder, and how far it is trusted now."""

    name: str
    key: bytes
    #: What its signatures may count for: "code", "weights", "both" or "none".
    role: str
    #: Seconds since 1970 (UTC) after which they do not count, or None.
    not_after: Optional[int]
    expired: bool
    #: When it was revoked, or None, and why.
    revoked: Optional[int]
    reason: str
    #: The file that restricts it, "" where none does.
    source: str


def keys() -> List[TrustedKey]:
    """The keys of `folder()` that can be read, by name, with their roles and ends. `accx trust
    list` says what is wrong with the others."""
    place = folder()
    names = sorted(os.listdir(place)) if place and os.path.isdir(place) else []
    out = []
    if not names:
        return out
    from .instance import Instance
    with Instance(keys=[place]) as instance:
        for name in names:
            if name.startswith(".") or not name.endswith(".pem") or len(name) < 5:
                continue
            try:
                key = read_public_key(os.path.join(place, name))
            except Error:
                continue
            raw = filled_key_trust(instance, key)
            out.append(TrustedKey(name[:-4], key, _ROLES[raw.roles & 3], raw.not_after_s or None, bool(raw.expired),
                                  raw.revoked_s if raw.revoked else None, raw.reason.decode("utf-8", "replace"),
                                  raw.source.decode("utf-8", "replace")))
    return out


def filled_key_trust(instance, key: bytes) -> "_ffi.accrt_key_trust":
    """What an instance makes of a key: the C struct."""
    from .instance import Instance
    raw = struct(_ffi.accrt_key_trust)
    check(lib.accrt_instance_key_trust(need(instance, Instance), ctypes.byref(_key(key)), ctypes.byref(raw)))
    return raw


def _find(key: Union[bytes, Path]) -> bytes:
    """A key by its 32 bytes, its name in the user's folder, or its file."""
    if isinstance(key, bytes):
        if len(key) != 32:
            raise ValueError(f"a key has 32 bytes, not {len(key)}")
        return key
    path = os.fspath(key)
    place = folder()
    inside = os.path.join(place, path + ".pem") if place and os.sep not in path else ""
    return read_public_key(inside if inside and os.path.exists(inside) else path)


def _time(until: Union[int, float, str, "datetime.datetime", "datetime.date"]) -> str:
    import datetime
    if isinstance(until, str):
        return f"{until}T23:59:59Z" if len(until) == 10 else until
    if isinstance(until, datetime.datetime):
        if until.tzinfo is None:
            raise ValueError(f"{until!r} has no time zone: say which, for instance datetime.timezone.utc")
        until = until.timestamp()
    elif isinstance(until, datetime.date):
        return f"{until.isoformat()}T23:59:59Z"
    return datetime.datetime.fromtimestamp(int(until), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_in_no_line(c: str) -> bool:
    """A control character, a separator of lines, or half of a character: as runtime/core/utf8.c has
    it (accrt_utf8_check_line)."""
    return not c.isprintable() and unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs")


def _read_rules(path: str) -> List[str]:
    """The lines of the file, [] without one: they end where C ends them. Comments hold anything;
    where a byte of them is no UTF-8, the text has half of a character."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n", opener=regular) as file:
            text = file.read()
    except FileNotFoundError:
        return []
    lines = text[:-1].split("\n") if text.endswith("\n") else text.split("\n")
    for number, line in enumerate(lines, 1):
        bad = "" if line.startswith("#") else next(filter(_is_in_no_line, line), "")
        if bad:
            wrong = "it is not UTF-8" if unicodedata.category(bad) == "Cs" else "there is a control character or a separator of lines"
            raise InvalidFormatError(f"{path}: line {number}: {wrong}")
    return lines


def _one_line(value: str, what: str, spaces: bool) -> str:
    """A text that goes into a line of the rules. ValueError: a control character or a separator of
    lines is in it."""
    for c in value:
        if _is_in_no_line(c) or c == " " and not spaces:
            raise ValueError(f"{what} is {value!r}: {c!r} cannot be in it")
    return value


def _check_rules(part: str) -> None:
    """Rules that the library does not take never get their name."""
    from .instance import Instance
    Instance("no-host-code", keys=[part]).close()


def _change_rules(without: str, line: str) -> None:
    """Takes the lines that begin with `without` out of the folder's rules ("": none), and adds one
    ("": none)."""
    import fcntl
    _one_line(line, "the rule", spaces=True)
    place = folder()
    if place is None:
        raise OSError("there is no place for keys: neither XDG_CONFIG_HOME nor HOME is a path")
    make_private_folder(place)
    path = os.path.join(place, "trust.rules")
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as accx does
        lines = [old for old in _read_rules(path) or ["accrt trust 1"] if not without or not old.startswith(without)] + ([line] if line else [])
        put(path, "".join(f"{one}\n" for one in lines).encode("utf-8", "surrogateescape"), 0o644, end=".rules", check=_check_rules)
    finally:
        os.close(lock)


def set_role(key: Union[bytes, Path], role: str) -> None:
    """What a key's signatures count for: "code", "weights" or "both". As `accx trust role`.

    Args:
        key: its name in the user's folder, its file, or its 32 bytes.
    Instances that exist already do not see this change, nor those of the functions below.
    """
    if role not in _SCOPES:
        raise ValueError(f"role is {role!r}, expected one of {', '.join(map(repr, _SCOPES))}")
    start = f"key {_find(key).hex()} role "
    _change_rules(start, "" if role == "both" else start + role)


def expire(key: Union[bytes, Path], until: Union[None, int, float, str, "datetime.datetime", "datetime.date"]) -> None:
    """Sets the time until which a key's signatures count: a date (to its end, UTC), a datetime,
    seconds since 1970, or None. As `accx trust expire`."""
    start = f"key {_find(key).hex()} not-after "
    _change_rules(start, "" if until is None else start + _time(until))


def revoke(key: Union[bytes, Path], reason: str = "") -> None:
    """Revokes a key: from now on none of its signatures counts. This cannot be undone. As `accx
    trust revoke`."""
    import time
    reason = _one_line(reason, "reason", spaces=True)
    _change_rules("", f"key {_find(key).hex()} revoked {_time(time.time())}{' ' if reason else ''}{reason}")


def floor(name: str, version: int, lower: bool = False) -> None:
    """Sets the lowest version of a bundle that may run. Its name and version are in its metadata.
    As `accx trust floor`.

    Raises:
        ValueError: the floor is above that already, without `lower`.
    """
    there = floors().get(_one_line(name, "name", spaces=False), 0)
    if version < there and not lower:
        raise ValueError(f"the floor of {name!r} is {there}: lowering it lets older bundles run again (lower=True)")
    _change_rules(f"floor {name} ", f"floor {name} {int(version)}")


def floors() -> Dict[str, int]:
    """The floors of versions in the user's folder."""
    place = folder()
    out: Dict[str, int] = {}
    for words in (line.split(" ") for line in _read_rules(os.path.join(place or "", "trust.rules"))):
        if len(words) == 3 and words[0] == "floor":
            out[words[1]] = max(int(words[2]), out.get(words[1], 0))
    return out


# ---- bundles

def sign(path: Path, output: Optional[Path] = None, *, key: Optional[SigningKey] = None, scope: str = "both",
         vouch: bool = False) -> None:
    """Adds a signature to a bundle, in place or as a new file.

    Args:
        path: the bundle. output: the new file; default: the bundle itself. key: default: the user's
            own.
        scope: "code", "weights" or "both". vouch: sign code that this key has not signed before.
    Raises:
        PermissionDeniedError: such code, without `vouch`: a signature says that the code is yours.
    """
    from .bundle import Bundle
    if scope not in _SCOPES:
        raise ValueError(f"scope is {scope!r}, expected one of {', '.join(map(repr, _SCOPES))}")
    key = key or signing_key()
    with Bundle(path, _plain_instance()) as bundle:
        options = struct(_ffi.accrt_sign_options, scopes=_SCOPES[scope], flags=_ffi.ACCRT_SIGN_VOUCH if vouch else 0)
        options.private_key = ctypes.pointer(key._private)
        target = c_path(os.path.realpath(path) if output is None else output)
        handle = bundle.handle
        apart(lambda: check(lib.accrt_bundle_sign(handle, ctypes.byref(options), target)))


def encrypt(path: Path, output: Path, secret_key: bytes) -> None:
    """Writes a bundle with its weights encrypted with 32 bytes of key."""
    from .bundle import Bundle
    with Bundle(path, _plain_instance()) as bundle:
        handle, secret = bundle.handle, _key(secret_key)
        apart(lambda: check(lib.accrt_bundle_encrypt(handle, ctypes.byref(secret), c_path(output))))


def decrypt(path: Path, output: Path, secret_key: bytes) -> None:
    """Writes an encrypted bundle with its weights decrypted."""
    from .bundle import Bundle
    with Bundle(path, _plain_instance(), key=lambda _id: secret_key) as bundle:
        handle = bundle.handle
        apart(lambda: check(lib.accrt_bundle_decrypt(handle, c_path(output))))


def key_id(secret_key: bytes) -> bytes:
    """The id of a key in encrypted bundles: 16 bytes. The callback `key=` of `accrt.Bundle` gets
    it."""
    out = (ctypes.c_uint8 * 16)()
    check(lib.accrt_key_id(_plain_instance().handle, ctypes.byref(_key(secret_key)), out))
    return bytes(out)


def report(bundle) -> dict:
    """Who has signed what of an open Bundle, as a dictionary: roots, whether they are trusted, and
    the signatures."""
    from .bundle import Bundle
    handle = need(bundle, Bundle)
    raw = apart(lambda: filled(_ffi.accrt_bundle_trust, lib.accrt_bundle_trust, handle))
    names = {value: name for name, value in _SCOPES.items()}
    signatures = []
    for index in range(raw.signature_count):
        one = filled(_ffi.accrt_signature_info, lib.accrt_bundle_signature, bundle.handle, index)
        signatures.append({"scope": names[one.scope], "key": bytes(one.key.bytes), "valid": bool(one.valid),
                           "trusted": bool(one.trusted)})
    return {"code_root": bytes(raw.code_root.bytes), "weight_root": bytes(raw.weight_root.bytes) if raw.has_weight_root else None,
            "code_trusted": bool(raw.code_trusted), "weights_trusted": bool(raw.weights_trusted),
            "has_host_code": bool(raw.has_host_code), "encrypted": bool(raw.encrypted), "signatures": signatures}


def signer_or_reason() -> tuple:
    """(the user's key, "") or (None, why there is none): for who compiles."""
    try:
        return signing_key(), ""
    except (OSError, Error) as problem:
        return None, str(problem)


__all__: Sequence[str] = [
    "SigningKey", "TrustedKey", "config", "decrypt", "encrypt", "expire", "floor", "floors", "folder", "key_id", "keys",
    "read_public_key", "read_secret_key", "report", "revoke", "set_role", "sign", "signing_key", "trust_code",
]
