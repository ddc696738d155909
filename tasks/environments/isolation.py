"""Confines a process for good, before it reads what a model wrote: Linux's landlock and seccomp, another user, limits.

Neither needs privileges, and both work within containers. The process keeps what it has imported, and may read
Python's own files and those of the packages that it has imported. It can't write, change or run files, open sockets,
start processes or threads, or signal or trace other processes. Root becomes the user nobody.
"""

import ctypes
import os
import platform
import resource
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
_LIBRARIES = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/urandom", "/dev/null")

# landlock_create_ruleset, _add_rule, _restrict_self: on every architecture
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_PDEATHSIG, _KEEP_CAPABILITIES, _SECCOMP, _NO_NEW_PRIVILEGES = 1, 8, 22, 38  # of prctl
_READ_SEARCH = 2  # CAP_DAC_READ_SEARCH
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # seccomp's answers; 1: EPERM

# Number in the kernel's audit interface, then of the calls refused (Linux's tables of calls): socket, socketpair,
# execve, execveat, kill, tkill, tgkill, ptrace, process_vm_readv, process_vm_writev, pidfd_send_signal, io_uring_setup,
# open_by_handle_at; then what landlock leaves open: mode, owner, times, attributes and (before version 3) length of a
# file, which are the families of chmod, chown, utime and xattr, file_setattr, and truncate.
# On every architecture: fchmodat2, setxattrat, removexattrat, file_setattr.
_ATTRIBUTES = (452, 463, 466, 469)
_MACHINES = {
    "x86_64": (0xC000003E, (
        41, 53, 59, 322, 62, 200, 234, 101, 310, 311, 424, 425, 304,
        90, 91, 268, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199, 76, *_ATTRIBUTES,
    )),
    "aarch64": (0xC00000B7, (
        198, 199, 221, 281, 129, 130, 131, 117, 270, 271, 424, 425, 265,
        52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16, 45, *_ATTRIBUTES,
    )),
}  # fmt: skip
_OTHER_TABLE = 0x40000000  # x86_64's second table of system calls begins here


class NotIsolated(Exception):
    """This machine can't confine a process; the message says why."""


def why_not() -> str | None:
    """Why this machine can't confine a process; None if it can."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return f"it needs Linux on {' or '.join(_MACHINES)}"
    if _landlock_version() < 1:
        return "the kernel has no landlock (Linux 5.13 or newer, `landlock` in /sys/kernel/security/lsm)"
    return None


def allow_reading() -> int:
    """What a confined process may read, once this one has imported all it needs: a landlock ruleset's file descriptor.

    Raises:
        NotIsolated: this machine can't confine a process.
    """
    if reason := why_not():
        raise NotIsolated(reason)
    try:
        return _rules()
    except OSError as error:
        raise NotIsolated(f"the kernel refuses it ({error})") from error


def isolate(rules: int) -> None:
    """Confine this process, which must have one thread.

    Args:
        rules: of `allow_reading`.

    Raises:
        NotIsolated: a part can't be had.
    """
    try:
        _call("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.geteuid() == 0:
            _become_nobody()
        for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
            resource.setrlimit(limit, (0, 0))
        _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _call("syscall", _RESTRICT, rules, 0)
        os.close(rules)
        _filter_calls()
    except OSError as error:
        raise NotIsolated(f"the kernel refuses it ({error})") from error


def _become_nobody() -> None:
    """Another user, who may enter Python's folders even if they are root's alone; landlock still says what is read."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable
    _call("capget", header, sets)
    kept = sets[1] & (1 << _READ_SEARCH)
    _call("prctl", _KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _call("capset", header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0))


def _readable() -> Iterator[Path]:
    """Python's files, and those of the packages that are imported."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    yield from (Path(path) for path in (*_LIBRARIES, *(sysconfig.get_path(name) for name in names)))
    for name, module in list(sys.modules.items()):
        if "." not in name:
            yield from map(Path, getattr(module, "__path__", ()))


def _rules() -> int:
    """A landlock ruleset that allows reading alone: its file descriptor."""
    version = _landlock_version()
    rights = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)  # bits of file rights that this version knows
    connections = 0b11 if version >= 4 else 0  # TCP: bind, connect
    scopes = 0b11 if version >= 6 else 0  # abstract sockets, signals
    words = ((1 << rights) - 1, connections, scopes)[: 1 if version < 4 else 2 if version < 6 else 3]
    attributes = (ctypes.c_uint64 * len(words))(*words)
    rules = _call("syscall", _CREATE, attributes, ctypes.sizeof(attributes), 0)
    for path in {path.resolve() for path in _readable() if path.exists()}:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = _READ_FILE | (_READ_DIR if path.is_dir() else 0)
        rule = allowed.to_bytes(8, sys.byteorder) + beneath.to_bytes(4, sys.byteorder)
        _call("syscall", _ADD, rules, 1, rule, 0)
        os.close(beneath)
    return rules


def _filter_calls() -> None:
    """Refuse system calls by a seccomp filter, a program of (code, jump if true, jump if false, value)."""
    architecture, refused = _MACHINES[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    checks = [(at_least, _OTHER_TABLE), *((equal, number) for number in refused)]
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, _KILL), (load, 0, 0, 0)]
    program += [(code, len(checks) - n, 0, value) for n, (code, value) in enumerate(checks)]
    program += [(give, 0, 0, _ALLOW), (give, 0, 0, _DENY)]
    steps = (_Step * len(program))(*(_Step(*step) for step in program))
    _call("prctl", _SECCOMP, 2, ctypes.byref(_Program(len(program), steps)), 0, 0)


class _Step(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16), ("true", ctypes.c_uint8), ("false", ctypes.c_uint8), ("value", ctypes.c_uint32),
    )  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("steps", ctypes.POINTER(_Step)))


def _landlock_version() -> int:
    try:
        return _call("syscall", _CREATE, None, 0, 1)
    except OSError:
        return 0


def _call(function: str, *arguments: object) -> int:
    """A function of the C library. Raises OSError."""
    # Passed as C's int, the upper half of a register would be undefined.
    plain = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    given: int = getattr(ctypes.CDLL(None, use_errno=True), function)(*plain)
    if given == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return given
