"""What the eBPF programs that a process has loaded cost.

bpf_cost.py count: has the kernel count how long programs run, until it is killed; says `counting` when that has begun.
bpf_cost.py show PID WRITES: a line for each program that has run: its name, nanoseconds for each run, and runs for each of so many
writes; then the sum, in nanoseconds for each write.
"""
import ctypes
import glob
import platform
import signal
import struct
import sys

SYSCALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
GET_FD_BY_ID, GET_INFO_BY_FD, ENABLE_STATS = 13, 15, 32
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    result = libc.syscall(SYSCALL, command, attributes, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), "bpf")
    return result


def information(program):
    """Name, nanoseconds and runs (struct bpf_prog_info of linux/bpf.h)."""
    fd = bpf(GET_FD_BY_ID, ctypes.create_string_buffer(struct.pack("=III", program, 0, 0), 12))
    info = ctypes.create_string_buffer(208)
    bpf(GET_INFO_BY_FD, ctypes.create_string_buffer(struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)), 16))
    name = info.raw[64:80].split(b"\0")[0].decode()
    return name, *struct.unpack_from("=QQ", info.raw, 192)


def count():
    bpf(ENABLE_STATS, ctypes.create_string_buffer(struct.pack("=I", 0), 4))
    print("counting", flush=True)
    signal.pause()


def show(pid, writes):
    programs = set()
    for path in glob.glob(f"/proc/{pid}/fdinfo/*"):
        with open(path, encoding="ascii") as file:
            programs |= {int(line.split()[1]) for line in file if line.startswith("prog_id:")}
    whole = 0
    for name, ns, runs in sorted(information(program) for program in programs):
        whole += ns
        if runs:
            print(f"{name} {ns / runs:.0f} ns a run, {runs / writes:.2f} runs a write")
    print(f"all {whole / writes:.0f} ns a write")


if sys.argv[1] == "count":
    count()
else:
    show(sys.argv[2], int(sys.argv[3]))
