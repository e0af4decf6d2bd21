"""The allowed system calls of sandboxed code, as a seccomp filter (classic BPF) for the Linux kernel.

All others fail with EPERM: processes, signals, sockets, writing, renaming or removing files. Pure: returns bytes,
installs nothing.
"""

import struct

# name: (number on x86_64, on aarch64); None: the machine has no such call
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # open files, and file metadata
    "read": (0, 63),
    "pread64": (17, 67),
    "readv": (19, 65),
    "write": (1, 64),
    "writev": (20, 66),
    "lseek": (8, 62),
    "close": (3, 57),
    "dup2": (33, None),
    "dup3": (292, 24),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    # memory
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    # the process itself
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "membarrier": (324, 283),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "arch_prctl": (158, None),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getppid": (110, 173),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "getrusage": (98, 165),
    "times": (100, 153),
    "exit": (60, 93),
    "exit_group": (231, 94),
    # time and random numbers
    "time": (201, None),
    "gettimeofday": (96, 169),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "restart_syscall": (219, 128),
    "getrandom": (318, 278),
}
OPENS = {"open": (2, None, 1), "openat": (257, 56, 2)}  # and the index of the flags argument: read-only
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH

WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND
LOAD, IF_EQUAL, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1 is EPERM
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data; arguments have 8 bytes each, low half first


def filter_for(machine: str) -> bytes:
    """The filter as an array of struct sock_filter. KeyError for a machine whose numbers are not known."""
    column, audit = MACHINES[machine]
    program = [(LOAD, 0, 0, MACHINE_AT), (IF_EQUAL, 1, 0, audit), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER_AT)]
    for *numbers, argument in OPENS.values():
        if (number := numbers[column]) is not None:
            program += [
                (IF_EQUAL, 0, 4, number),
                (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument),
                (IF_ANY_BIT, 0, 1, WRITING),
                (RETURN, 0, 0, REFUSE),
                (RETURN, 0, 0, ALLOW),
            ]
    for pair in ALLOWED.values():
        if (number := pair[column]) is not None:
            program += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    program.append((RETURN, 0, 0, REFUSE))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
