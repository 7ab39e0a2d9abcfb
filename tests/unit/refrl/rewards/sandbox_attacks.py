"""Tries to read, write, leave or fill what a sandbox closes off; prints the name of each attempt that got through.

The test puts `SECRET`, the path of a file that holds the word "answer", in front and runs it as the program.
"""
# ruff: noqa: PTH115, PTH118, PTH123, PTH208, PTH211, BLE001

import ctypes
import os
import socket
import subprocess

SECRET = globals().get("SECRET", "")
FOLDER, NAME = os.path.split(SECRET)
LIBC = ctypes.CDLL(None, use_errno=True)


def descriptors():
    """Return what is open beside the standard streams."""
    found = []
    for number in range(3, 256):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return found


INHERITED = descriptors()


def by_absolute_path():
    return open(SECRET).read()


def by_relative_path():
    return open("../" * 20 + SECRET.lstrip("/")).read()


def by_symlink():
    os.symlink(SECRET, "link")
    return open("link").read()


def by_hard_link():
    os.link(SECRET, "hard")
    return open("hard").read()


def by_folder_descriptor():
    folder = os.open(FOLDER, os.O_RDONLY)
    return os.read(os.open(NAME, os.O_RDONLY, dir_fd=folder), 100).decode()


def by_path_descriptor():
    folder = os.open(FOLDER, os.O_PATH)
    return os.read(os.open(NAME, os.O_RDONLY, dir_fd=folder), 100).decode()


def by_system_call():
    found = LIBC.open(SECRET.encode(), 0)
    return os.read(found, 100).decode()


def by_working_folder_of_the_caller():
    return open(f"/proc/{os.getppid()}/cwd/{NAME}").read()


def by_root_of_the_caller():
    return open(f"/proc/{os.getppid()}/root{SECRET}").read()


def by_change_of_root():
    os.chroot(FOLDER)
    return open(NAME).read()


def by_listing():
    return "answer" if NAME in os.listdir(FOLDER) else ""


def by_subprocess():
    return subprocess.run(["/bin/cat", SECRET], capture_output=True, text=True).stdout


def by_replacing_this_process():
    os.execv("/bin/cat", ["cat", SECRET])


def by_inherited_descriptor():
    return "answer" if INHERITED else ""


def by_descriptor_folder():
    return "".join(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")) and "answer"


def by_environment_of_the_caller():
    return open(f"/proc/{os.getppid()}/environ").read() and "answer"


def by_command_line_of_the_caller():
    return open(f"/proc/{os.getppid()}/cmdline").read() and "answer"


def by_new_namespace():
    return "answer" if LIBC.unshare(0x10000000 | 0x00020000) == 0 else ""


def by_socket():
    socket.socket()
    return "answer"


def by_system_v_memory():
    found = LIBC.shmget(0, 4096, 0o1600)
    return "answer" if found >= 0 and LIBC.shmctl(found, 0, None) == 0 else ""


def by_posix_memory():
    with open("/dev/shm/refrl-sandbox-left", "w") as stream:
        stream.write("x")
    return "answer"


def by_memory_file():
    return "answer" if LIBC.memfd_create(b"x", 0) >= 0 else ""


def by_writing_beside():
    with open(os.path.join(FOLDER, "left"), "w") as stream:
        stream.write("x")
    return "answer"


if __name__ == "__main__":
    attempts = [action for name, action in list(globals().items()) if name.startswith("by_")]
    # Those that change this process come last.
    last = [by_new_namespace, by_change_of_root, by_replacing_this_process]
    for attempt in [*(action for action in attempts if action not in last), *last]:
        try:
            if "answer" in (attempt() or ""):
                print(attempt.__name__, flush=True)
        except BaseException:
            pass
    print("end", flush=True)
