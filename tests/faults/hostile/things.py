"""What may stand in the place of a file: a folder, a FIFO, a socket, links, devices, a sparse file of a terabyte, nothing. And names."""
import os
import socket

DEVICES = "/dev/null", "/dev/zero", "/dev/full", "/dev/stdin", "/proc/self/mem", "/proc/self/environ", "/dev/fd/9"


def folder(path):
    path.mkdir()


def full_folder(path):
    path.mkdir()
    (path / "a file").write_bytes(b"x")


def fifo(path):
    os.mkfifo(path)


def local_socket(path):
    """Bound by a relative name, because paths of sockets are short."""
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name[:20]}")
    finally:
        os.close(here)
    (path.parent / path.name[:20]).rename(path)


def loop(path):
    path.symlink_to(path.name)


def dangling(path):
    path.symlink_to("nowhere")


def sparse(path):
    path.touch()
    os.truncate(path, 1 << 40)


def nothing(path):
    pass


def device(name):
    def place(path):
        path.symlink_to(name)
    place.__name__ = name
    return place


THINGS = folder, full_folder, fifo, local_socket, loop, dangling, sparse, nothing, *map(device, DEVICES)

# Names of files; those that may be looked for are not there unless something is put there.
NAMES = ("", "-", "--", ".", "..", "/", "./", "a/", "no/such/folder", "out.json/", "~", "*", "$HOME", "`id`", "a b", "a\nb", "a\rb",
         "tab\t", "\x01\x7f", "\x1b[31mred\x1b[0m",
         "\x1b]0;title\x07", "\u009b31m", "\u0085\u0090", "\u202egnp", "\u2028\u2029", "\u00fcber \u4e2d\u6587", b"\xff\xfe\x80", b"\xc2",
         b"\xc2\x9b31m", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
         "x" * 255, "x" * 256, "y" * 5000, "z/" * 2100, "\u009b" * 100, "%s%n{}", "sub/../name", "../case/name", ".hidden",
         ".out.json.1-0-0.tmp", "name.index.json", "name.json",
         "-name", "--json", "name=x", *DEVICES)
