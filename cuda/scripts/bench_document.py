"""What `kvbound bench --json` writes, read back (sim/figures/README.md)."""
import itertools


class Row(dict):
    """Keys and figures of a row of a cube; one that the document leaves out because it says nothing is None."""

    def __missing__(self, name):
        return None


def rows(part, cube):
    of = part["cubes"][cube]
    places = [[dict(zip(part["axes"][axis], values)) for values in zip(*part["axes"][axis].values())] for axis in of["axes"]]
    return [Row({key: value for place in row for key, value in place.items()} | dict(zip(of["columns"], values)))
            for row, values in zip(itertools.product(*places), zip(*of["columns"].values()))]


def read(document, command):
    """{a fact, `revision` or the name of a cube: its value or rows}; ValueError if it is not of this command."""
    if not isinstance(document, dict) or (document.get("schema"), document.get("command")) != ("kvbound-2", command):
        raise ValueError(f"schema: expected kvbound-2, of the command {command}")
    part, = document["parts"]
    return {"revision": document["provenance"]["revision"], "against": [], **part["facts"],
            **{cube: rows(part, cube) for cube in part["cubes"]}}


def key(row):
    """An operation as it is called: with its policy."""
    return row["operation"] + (f", {row['policy']}" if row["policy"] else "")
