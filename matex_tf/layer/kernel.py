"""What the kernel is asked for: a mount namespace of this process's own, mounts in it, and no more rights than before.

Root needs a mount namespace alone. Another user needs a user namespace around it, in which the own number and group are
mapped to themselves, so that nothing looks different but the files of other groups. There a process has all rights over
what is the user's own, and could so write to a file that is read-only: they are laid down but while it mounts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from typing import Any

_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
_REMOUNT, _BIND, _RECURSIVE, _SLAVE = 32, 4096, 16384, 1 << 19
_DETACH = 2
_SYS_ADMIN = 21
_CAPABILITIES = 0x20080522  # the version of the header

#: The files in which a system forbids it, the word that does, and what it means.
_FORBIDDING = (
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)

_libc = ctypes.CDLL(None, use_errno=True)


def forbidden_by() -> str:
    """The line of sysctl that forbids user namespaces, such as "user.max_user_namespaces = 0"; "" for none."""
    for path, value in _FORBIDDING:
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            if file.read().strip() == value:
                return f"{path.removeprefix('/proc/sys/').replace('/', '.')} = {value}"
    return ""


def can_mount() -> bool:
    """Whether this process may mount as it is: it needs no user namespace."""
    return bool(_rights()[0] >> _SYS_ADMIN & 1)


def leave_mounts(users: int = -1) -> None:
    """Have mounts of one's own from now on; the process must have one thread.

    Args:
        users: a user namespace that another process of this user has made, open; -1 for one of this process's own,
            where it needs one.

    Raises:
        OSError: the kernel does not allow it.
    """
    alone = not can_mount()
    user, group = os.geteuid(), os.getegid()
    if alone and users >= 0:
        _check(_libc.setns(users, _NEW_USER), "a user namespace")
    elif alone:
        _check(_libc.unshare(_NEW_USER), "a user namespace")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    _check(_libc.unshare(_NEW_MOUNTS), "a mount namespace")
    _check(_libc.mount(b"none", b"/", None, _RECURSIVE | _SLAVE, None), "mounts of its own")
    if alone and user:
        _set_effective(0)


def overlay(path: str, lower: int, upper: str, work: str) -> None:
    """Put a layer over a directory. A directory that is made in the layer (xino=on) hides one that comes below later.

    Args:
        lower: the directory, open.
        upper, work: directories of one file system that has room for what is written; of names without , : and \\.

    Raises:
        OSError: the kernel does not.
    """
    options = f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work},userxattr,xino=on"
    with all_rights():
        _check(_libc.mount(b"overlay", os.fsencode(path), b"overlay", 0, options.encode()), f"a layer over {path}")


def bind(path: str, original: int) -> None:
    """Let a directory be what it was before there was a layer over it, the same for all ranks.

    Args:
        path: of the directory.
        original: a descriptor of it from before, which stays open.

    Raises:
        OSError: the kernel does not.
    """
    with all_rights():
        source = f"/proc/self/fd/{original}".encode()
        _check(_libc.mount(source, os.fsencode(path), None, _BIND | _RECURSIVE, None), f"{path} for all ranks")


def refresh(path: str) -> None:
    """Forget what is not there in the directory below a layer, and look anew."""
    with all_rights():
        _libc.mount(b"none", os.fsencode(path), None, _REMOUNT, None)


def unmount(path: str) -> None:
    """Take a layer away from a path."""
    with all_rights():
        _libc.umount2(os.fsencode(path), _DETACH)


@contextlib.contextmanager
def all_rights() -> Iterator[None]:
    """With all that this process may have: to mount, and to change what is the user's own."""
    effective, permitted = _rights()
    if effective >> _SYS_ADMIN & 1:
        yield
        return
    _set_effective(permitted)
    try:
        yield
    finally:
        _set_effective(effective)


def _rights() -> tuple[int, int]:
    """The capabilities of this thread: effective, and those that it may take up."""
    words = struct.unpack("6I", _capabilities(_libc.capget, bytes(24)))
    return words[0] | words[3] << 32, words[1] | words[4] << 32


def _set_effective(effective: int) -> None:
    words = list(struct.unpack("6I", _capabilities(_libc.capget, bytes(24))))
    words[0], words[3] = effective & 0xFFFFFFFF, effective >> 32
    _capabilities(_libc.capset, struct.pack("6I", *words))


def _capabilities(call: Any, words: bytes) -> bytes:
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITIES, 0), 8)
    data = ctypes.create_string_buffer(words, len(words))
    _check(call(header, data), "capabilities")
    return data.raw


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
