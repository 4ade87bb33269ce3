#!/usr/bin/env python3
"""What a built program consists of and was built with: a bill of materials (SBOM), CycloneDX 1.5 in JSON, on standard output.

usage: sbom.py KVBOUND      KVBOUND: the program in its build folder, on the Debian or Ubuntu on which it was built

It lists the packages of sim/packages.sh that are built with, those of the libraries that the program loads, with their files' SHA-256,
D3, which pages of `kvbound report` carry with them, and the CUDA runtime, if that is linked. The same program on the same packages
gives the same bytes; a time is written only if SOURCE_DATE_EPOCH is set.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
# of the packages that are built with, those of which nothing is in the program
TOOLS = {"g++", "cmake", "ninja-build"}


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def sha256(path):
    return [{"alg": "SHA-256", "content": hashlib.sha256(Path(path).read_bytes()).hexdigest()}]


def licences(copyright_file):
    """The names of licences in a package's file `copyright`, if that is in Debian's format."""
    text = Path(copyright_file).read_text("utf-8", "replace") if Path(copyright_file).exists() else ""
    names = sorted(set(re.findall(r"^License: *(\S.*?) *$", text, re.MULTILINE))) if text.startswith("Format:") else []
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def owners(files):
    """{file: the package that it is of}. Packages name some files as they were before /lib became /usr/lib."""
    names = {file: {os.path.realpath(file), os.path.realpath(file).removeprefix("/usr")} for file in files}
    said = subprocess.run(["dpkg-query", "--search", *sorted(set().union(*names.values()))], capture_output=True, text=True, check=False).stdout
    found = {path: package for package, path in re.findall(r"^(?!diversion by )([^:,\s]+)[^/\n]*: (/.*)$", said, re.MULTILINE)}
    without = [file for file in files if not names[file] & found.keys()]
    if without:
        sys.exit(f"sbom.py: of no package: {', '.join(without)}")
    return {file: found[(names[file] & found.keys()).pop()] for file in files}


def component(package, libraries, distribution):
    """libraries: those of its files that the program loads, {name: path}"""
    name, version, architecture, maintainer = output_of(
        "dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\t${Maintainer}\n", package).splitlines()[0].split("\t")
    purl = f"pkg:deb/{distribution['ID']}/{quote(name)}@{quote(version, ':')}?arch={architecture}&distro={distribution['ID']}-{distribution['VERSION_ID']}"
    files = [{"type": "file", "name": library, "hashes": sha256(path)} for library, path in sorted(libraries.items())]
    return {"type": "application" if name in TOOLS else "library", "bom-ref": purl, "supplier": {"name": maintainer}, "name": name,
            "version": version, "scope": "excluded" if name in TOOLS else "required", **licences(f"/usr/share/doc/{name}/copyright"), "purl": purl,
            **({"components": files} if files else {})}


def packages(program):
    """{package: the libraries of it that the program loads}, with all that is built with."""
    built_with = output_of("bash", "-c", 'source "$0" && printf "%s\\n" "${build_packages[@]}"', HERE / "packages.sh").split()
    found = {package: {} for package in built_with}
    for path, package in owners(re.findall(r"(?:=> |^\s*)(/\S+) \(0x", output_of("ldd", program), re.MULTILINE)).items():
        found.setdefault(package, {})[Path(path).name] = path
    return found


def carried(cache):
    """What is in the program and is of no package that is built with: D3, and the CUDA runtime."""
    script = Path(cache["KVBOUND_D3"])
    version = re.search(r"v(\d[\d.]+)", script.read_text("utf-8"))[1]
    yield {"type": "library", "bom-ref": f"pkg:npm/d3@{version}", "name": "d3", "version": version, "hashes": sha256(script),
           **licences(cache["KVBOUND_D3_LICENSE"]), "purl": f"pkg:npm/d3@{version}"}
    if cache.get("KVBOUND_CUDA") == "ON" and not cache.get("CMAKE_CUDA_COMPILER", "NOTFOUND").endswith("NOTFOUND"):
        version = re.search(r"\bV(\d[\d.]+)", output_of(cache["CMAKE_CUDA_COMPILER"], "--version"))[1]
        purl = f"pkg:generic/cudart_static@{version}"
        yield {"type": "library", "bom-ref": purl, "supplier": {"name": "NVIDIA"}, "name": "cudart_static", "version": version, "purl": purl}


def document(program):
    version, revision = re.fullmatch(r"kvbound (\S+) \((.*)\)\n", output_of(program, "--version")).groups()
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (program.parent / "CMakeCache.txt").read_text("utf-8"), re.MULTILINE))
    distribution = dict(re.findall(r'^(\w+)="?(.*?)"?$', Path("/etc/os-release").read_text("utf-8"), re.MULTILINE))
    root = {"type": "application", "bom-ref": "kvbound", "name": "kvbound", "version": version, "hashes": sha256(program),
            "licenses": [{"license": {"id": "MIT"}}], "properties": [{"name": "kvbound:revision", "value": revision}]}
    components = sorted([*(component(*package, distribution) for package in packages(program).items()), *carried(cache)], key=lambda one: one["bom-ref"])
    refs = [one["bom-ref"] for one in components]
    when = os.environ.get("SOURCE_DATE_EPOCH")
    told = {"timestamp": datetime.fromtimestamp(int(when), timezone.utc).isoformat()} if when else {}
    content = {"metadata": {**told, "component": root}, "components": components,
               "dependencies": [{"ref": "kvbound", "dependsOn": refs}, *({"ref": ref} for ref in refs)]}
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1, **content}


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    print(json.dumps(document(Path(sys.argv[1]).resolve(strict=True)), indent=1, ensure_ascii=False))
