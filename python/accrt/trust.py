"""Keys and trust: whose signatures this user's programs believe, and the key that signs what the user compiles.

    from accrt import trust

    trust.signing_key()                       # the user's own, made at first use
    trust.folder()                            # public keys that are trusted: one PEM file each (accx trust list)
    trust.sign("model.accx", vouch=True)      # as accx sign --in-place
    accrt.Instance(trust="signed", keys=["release.pem"])

The library itself reads no home directory and makes no key: this module and the accx tool do, and pass what they find on.
docs/trust.md says what is signed and what that means.
"""
from __future__ import annotations

import ctypes
import os
from typing import Iterable, List, Optional, Sequence, Union

from . import _ffi
from ._library import check, filled, lib, struct
from ._paths import user_folder
from .errors import AlreadyExistsError, Error

Path = Union[str, "os.PathLike[str]"]

_SCOPES = {"code": _ffi.ACCRT_SCOPE_CODE, "weights": _ffi.ACCRT_SCOPE_WEIGHTS,
           "both": _ffi.ACCRT_SCOPE_CODE | _ffi.ACCRT_SCOPE_WEIGHTS}

#: What this process has made itself, for instances that live already: public keys and code roots (32 bytes).
_own: List[tuple] = []


def config() -> Optional[str]:
    """${XDG_CONFIG_HOME:-~/.config}/accrt, or None when there is no home."""
    return user_folder("XDG_CONFIG_HOME", "~/.config")


def folder() -> Optional[str]:
    """The folder of the public keys that are trusted; None when there is no home."""
    home = config()
    return os.path.join(home, "trusted") if home else None


def paths(keys: Union[None, Path, Iterable[Path]] = None) -> Optional[str]:
    """What an instance is to trust, as option trust.keys takes it: `keys`, or else $ACCRT_TRUST_KEYS and the user's folder."""
    if keys is not None:
        one = isinstance(keys, (str, os.PathLike))
        return ":".join(os.fspath(path) for path in ([keys] if one else keys))  # type: ignore[list-item]
    found = [os.environ.get("ACCRT_TRUST_KEYS", ""), folder() or ""]
    if found[1] and not os.path.isdir(found[1]):
        found.pop()
    return ":".join(path for path in found if path) or None


def _plain_instance():
    """One that trusts nobody: reading and making keys asks nothing of it."""
    from .instance import default_instance
    return default_instance(trust="no-host-code")


def _key(data: bytes) -> "_ffi.accrt_key":
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
        """A new one."""
        key = _ffi.accrt_key()
        check(lib.accrt_key_generate(_plain_instance().handle, ctypes.byref(key)))
        return cls(bytes(key.bytes))

    @classmethod
    def read(cls, path: Path) -> "SigningKey":
        """From a PEM file that nobody else may read."""
        return cls(_read(path, _ffi.ACCRT_KEY_PRIVATE))

    def write(self, path: Path) -> None:
        """To a new file, for this user alone. The file is there as a whole or not at all, and replaces nothing."""
        _write(path, _ffi.ACCRT_KEY_PRIVATE, bytes(self._private.bytes))

    def write_public(self, path: Path) -> None:
        """The public key to a new file."""
        _write(path, _ffi.ACCRT_KEY_PUBLIC, self.public_key)

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        out = (ctypes.c_uint8 * 64)()
        data = ctypes.create_string_buffer(message, len(message))
        check(lib.accrt_key_sign(_plain_instance().handle, ctypes.byref(self._private), data, len(message), out))
        return bytes(out)

    def __repr__(self) -> str:
        return f"<accrt.trust.SigningKey ed25519:{self.public_key.hex()[:16]}>"


def _read(path: Path, kind: int) -> bytes:
    key = _ffi.accrt_key()
    check(lib.accrt_key_read(_plain_instance().handle, os.fsencode(path), kind, ctypes.byref(key)))
    return bytes(key.bytes)


def _write(path: Path, kind: int, data: bytes) -> None:
    import tempfile  # takes longer to import than this module
    path = os.fspath(path)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path) or ".", prefix=".accrt-") as private:
        part = os.path.join(private, "key.pem")
        check(lib.accrt_key_write(_plain_instance().handle, os.fsencode(part), kind, ctypes.byref(_key(data))))
        try:
            os.link(part, path)  # of two who make a key at the same time one wins
        except FileExistsError:
            raise AlreadyExistsError(f"{path}: it is there already") from None
        except OSError:  # a file system without links
            check(lib.accrt_key_write(_plain_instance().handle, os.fsencode(path), kind, ctypes.byref(_key(data))))


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
        os.makedirs(os.path.dirname(home), exist_ok=True)
        for place in (home, trusted):
            os.makedirs(place, 0o700, exist_ok=True)
        try:
            new = SigningKey.generate()
            new.write(path)
            new.write_public(os.path.join(trusted, "own.pem"))
        except AlreadyExistsError:
            pass
    key = SigningKey.read(path)
    _remember(key.public_key, b"")
    return key


def _remember(key: bytes, root: bytes) -> None:
    if (key, root) not in _own:
        _own.append((key, root))


def trust_code(code_root: bytes) -> None:
    """Lets code with this root (`BundleWriter.code_root`) run in this process: what it has just made itself and could not sign."""
    _remember(b"", code_root)


def apply(instance) -> None:
    """Tells an instance with the user's keys what this process has made since. Programs do this when they are made."""
    while instance.own_keys and instance._told < len(_own):
        key, root = _own[instance._told]
        if key:
            check(lib.accrt_instance_trust_key(instance.handle, ctypes.byref(_key(key))))
        if root:
            check(lib.accrt_instance_trust_code(instance.handle, ctypes.byref(_key(root))))
        instance._told += 1


def sign(path: Path, output: Optional[Path] = None, *, key: Optional[SigningKey] = None, scope: str = "both",
         vouch: bool = False) -> None:
    """Adds a signature to a bundle, in place or as a new file.

    Args:
        path: the bundle. output: the new file; default: the bundle itself. key: default: the user's own.
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
        target = os.fsencode(os.path.realpath(path) if output is None else output)
        check(lib.accrt_bundle_sign(bundle.handle, ctypes.byref(options), target))


def encrypt(path: Path, output: Path, secret_key: bytes) -> None:
    """Writes a bundle with its weights encrypted with 32 bytes of key."""
    from .bundle import Bundle
    with Bundle(path, _plain_instance()) as bundle:
        check(lib.accrt_bundle_encrypt(bundle.handle, ctypes.byref(_key(secret_key)), os.fsencode(output)))


def decrypt(path: Path, output: Path, secret_key: bytes) -> None:
    """The way back."""
    from .bundle import Bundle
    with Bundle(path, _plain_instance(), key=lambda _id: secret_key) as bundle:
        check(lib.accrt_bundle_decrypt(bundle.handle, os.fsencode(output)))


def key_id(secret_key: bytes) -> bytes:
    """What names a key in encrypted bundles: 16 bytes, which the callback `key=` of `accrt.Bundle` is asked for."""
    out = (ctypes.c_uint8 * 16)()
    check(lib.accrt_key_id(_plain_instance().handle, ctypes.byref(_key(secret_key)), out))
    return bytes(out)


def report(bundle) -> dict:
    """Who has signed what of an open Bundle, as a dictionary: roots, whether they are trusted, and the signatures."""
    raw = filled(_ffi.accrt_bundle_trust, lib.accrt_bundle_trust, bundle.handle)
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
    "SigningKey", "config", "decrypt", "encrypt", "folder", "key_id", "read_public_key", "read_secret_key", "report", "sign",
    "signing_key", "trust_code",
]
