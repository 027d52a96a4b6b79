"""A filter of system calls, for programs that a model wrote.

Invariant: what is not refused here is what the walls of `sandbox.py` already bound; a call by another machine's
numbers (x32, 32 bits) is refused, too, so there is no second way to a call.

In: the machine's name, as `platform.machine()` says it. Out: instructions of the kernel's packet filter (seccomp),
each a `struct sock_filter`. Sources: the kernel's `unistd.h` of each machine, `linux/audit.h`, `linux/filter.h`.
"""

import struct

# The kernel's name of the machine (AUDIT_ARCH_*), and the numbers of memfd_create, memfd_secret, shmget, msgget,
# semget (memory that no rlimit counts), ptrace, process_vm_readv, process_vm_writev, pidfd_getfd (ways into
# bubblewrap's process, which has no limits), syslog (the kernel's log is the machine's), keyctl, add_key, request_key,
# bpf, perf_event_open, userfaultfd and io_uring_setup (of no use to a program, and often where a kernel is broken
# into).
DENIED = {
    "x86_64": (0xC000003E, (319, 447, 29, 68, 64, 101, 310, 311, 438, 103, 250, 248, 249, 321, 298, 323, 425)),
    "aarch64": (0xC00000B7, (279, 447, 194, 186, 190, 117, 270, 271, 438, 116, 219, 217, 218, 280, 241, 282, 425)),
}
# The numbers of socket and socketpair, and the families that they may make: unix, IPv4, IPv6. Others reach past a
# network namespace: vsock leads from a virtual machine to the one that runs it.
SOCKETS = {"x86_64": (41, 53), "aarch64": (198, 199)}
FAMILIES = (1, 2, 10)
_LOAD, _EQUAL, _AT_LEAST, _GIVE = 0x20, 0x15, 0x35, 0x06
_ALLOWED, _EPERM = 0x7FFF0000, 0x00050001
# Where the call's number, its machine and the lower half of its first argument stand in `struct seccomp_data`.
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16

# Instruction, value, and the place to go to if it holds and if it doesn't; None is the next line.
_Line = tuple[int, int, str | None, str | None]


def call_filter(machine: str) -> bytes:
    """EPERM for `DENIED`, for sockets of other families, and for other machines' calls. Raises KeyError."""
    kernels_name, numbers = DENIED[machine]
    first, second = SOCKETS[machine]
    lines: list[_Line] = [(_LOAD, _MACHINE, None, None), (_EQUAL, kernels_name, None, "refuse")]
    lines += [(_LOAD, _NUMBER, None, None), (_AT_LEAST, 1 << 30, "refuse", None)]  # x32's numbers begin there
    lines += [(_EQUAL, number, "refuse", None) for number in numbers]
    lines += [(_EQUAL, first, "family", None), (_EQUAL, second, "family", "allow")]
    places = {"family": len(lines)}
    lines += [(_LOAD, _ARGUMENT, None, None), *[(_EQUAL, family, "allow", None) for family in FAMILIES]]
    places |= {"refuse": len(lines), "allow": len(lines) + 1}
    lines += [(_GIVE, _EPERM, None, None), (_GIVE, _ALLOWED, None, None)]
    return b"".join(_packed(line, at, places) for at, line in enumerate(lines))


def _packed(line: _Line, at: int, places: dict[str, int]) -> bytes:
    instruction, value, *to = line
    steps = [places[place] - at - 1 if place else 0 for place in to]
    return struct.pack("HBBI", instruction, *steps, value)
