"""The bill of materials of sim/sbom.py is CycloneDX 1.5, complete and the same each time.

usage: sbom_test.py KVBOUND      KVBOUND: the program's path, in its build folder
"""
import copy
import functools
import json
import os
import re
import subprocess

from support import kvbound_cli
from support.kvbound_cli import REPOSITORY, CommandLineTest

SCRIPT = REPOSITORY / "sim" / "sbom.py"
# What the specification requires, of the members that are used here.
COMPONENT = {"type", "bom-ref", "supplier", "name", "version", "scope", "hashes", "licenses", "purl", "components", "properties"}
TYPES = {"application", "library", "file"}
SERIAL = re.compile(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
PURL = re.compile(r"pkg:(?:deb/(?:debian|ubuntu)|npm|generic)/(?:[\w.~-]|%[0-9A-F]{2})+@(?:[\w.:~-]|%[0-9A-F]{2})+(?:\?[a-z]+=[\w.~-]+(?:&[a-z]+=[\w.~-]+)*)?", re.ASCII)


def wrong_in(component):
    """What is wrong with a component and those inside it."""
    if not (set(component) <= COMPONENT and component.get("type") in TYPES and component.get("name")):
        yield f"members of {component}"
    if component.get("scope", "required") not in ("required", "excluded"):
        yield f"scope of {component}"
    if "purl" in component and not PURL.fullmatch(component["purl"]):
        yield f"purl of {component}"
    if not all(set(each) == {"alg", "content"} and each["alg"] == "SHA-256" and re.fullmatch("[0-9a-f]{64}", each["content"])
               for each in component.get("hashes", [])):
        yield f"hashes of {component}"
    if not all(set(each) == {"license"} and len(each["license"]) == 1 and set(each["license"]) <= {"id", "name"} for each in component.get("licenses", [])):
        yield f"licences of {component}"
    for inner in component.get("components", []):
        yield from wrong_in(inner)


def wrong(document):
    """What is wrong with a document; the first thing, or None."""
    if not (list(document) == ["bomFormat", "specVersion", "serialNumber", "version", "metadata", "components", "dependencies"]
            and (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.5", 1)):
        return "members"
    if not SERIAL.fullmatch(document["serialNumber"]):
        return "serial number"
    parts = [document["metadata"]["component"], *document["components"]]
    refs = [part.get("bom-ref") for part in parts]
    depends = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    if len(set(refs)) < len(refs) or set(depends) != set(refs) or sorted(depends["kvbound"]) != sorted(refs[1:]):
        return "references"
    return next((found for part in parts for found in wrong_in(part)), None)


@functools.cache
def made(**environment):
    undated = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    return subprocess.run(["/usr/bin/python3", SCRIPT, kvbound_cli.program], check=True, capture_output=True, text=True,
                          env={**undated, **environment}).stdout


class Sbom(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.document = json.loads(made())

    def test_it_is_cyclonedx(self):
        self.assertIsNone(wrong(self.document))

    def test_it_is_the_same_each_time(self):
        self.assertEqual(made(PYTHONHASHSEED="7", LC_ALL="C", TZ="Pacific/Chatham"), made())
        dated = json.loads(made(SOURCE_DATE_EPOCH="86400"))
        self.assertEqual(dated["metadata"].pop("timestamp"), "1970-01-02T00:00:00+00:00")
        self.assertNotEqual(dated.pop("serialNumber"), self.document.pop("serialNumber"))
        self.assertEqual(dated, self.document)

    def test_the_program_itself(self):
        root = self.document["metadata"]["component"]
        self.assertEqual(f"kvbound {root['version']} ({root['properties'][0]['value']})\n", self.passes("--version"))
        self.assertIn(root["hashes"][0]["content"], subprocess.run(["sha256sum", kvbound_cli.program], check=True, capture_output=True, text=True).stdout)

    def test_every_package_that_is_built_with(self):
        listed = re.search(r"build_packages=\((.*?)\)", (REPOSITORY / "sim" / "packages.sh").read_text("utf-8"), re.DOTALL)[1].split()
        self.assertGreater(len(listed), 10)
        found = {part["name"]: part["version"] for part in self.document["components"]}
        versions = subprocess.run(["dpkg-query", "-W", "-f", "${Package}=${Version}\n", *listed], check=True, capture_output=True, text=True).stdout.split()
        self.assertEqual([each for each in versions if each not in {f"{name}={version}" for name, version in found.items()}], [])
        self.assertRegex(found["d3"], r"5\.[0-9.]+")

    def test_every_library_that_is_loaded(self):
        said = subprocess.run(["readelf", "--dynamic", kvbound_cli.program], check=True, capture_output=True, text=True, env={"LC_ALL": "C"}).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", said))
        self.assertIn("libc.so.6", needed)
        self.assertLessEqual(needed, {file["name"] for part in self.document["components"] for file in part.get("components", [])})

    def test_what_is_wrong_is_found(self):
        def change(path, value):
            document = copy.deepcopy(self.document)
            *inner, last = path
            part = document
            for name in inner:
                part = part[name]
            part[last] = value
            return wrong(document)
        for path, value in ((["specVersion"], "1.4"), (["serialNumber"], "urn:uuid:1"), (["components", 0, "bom-ref"], "kvbound"),
                            (["dependencies", 0, "dependsOn"], []), (["components", 0, "purl"], "pkg:deb/debian/g++@1"), (["components", 0, "type"], "thing"),
                            (["components", 0, "name"], ""), (["components", 0, "scope"], "some"), (["components", 0, "homepage"], "x"),
                            (["metadata", "component", "hashes", 0, "content"], "abc"), (["metadata", "component", "licenses", 0, "license"], {})):
            with self.subTest(path):
                self.assertIsNotNone(change(path, value))


if __name__ == "__main__":
    kvbound_cli.main()
