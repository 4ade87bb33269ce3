"""Every command runs the OpenBLAS kernels that it should, and the report names them.

usage: blas_core_test.py KVBOUND OLD_OPENBLAS
       KVBOUND: the program's path; OLD_OPENBLAS: the path of the library built from support/old_openblas.cpp
"""
import os
import sys
from pathlib import Path

from support import kvbound_cli
from support.documents import parts, provenance, read
from support.kvbound_cli import SAMPLES, USAGE, CommandLineTest, contents

LEVELS = {"Prescott": 0, "Sandybridge": 1, "Haswell": 2, "Zen": 2, "SkylakeX": 3, "Cooperlake": 3, "SapphireRapids": 3}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
old_openblas = None


def processor_level():
    """The processor's level, 0 to 3 as in LEVELS, by the flags that the operating system reports, not by the program.
    """
    flags = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":")[1].split())
            break
    levels = ({"avx"}, {"avx2", "fma"}, {"bmi1", "bmi2", *(f"avx512{part}" for part in ("f", "dq", "bw", "vl", "cd"))})
    return next((level for level, needed in enumerate(levels) if not needed <= flags), 3)


class BlasCore(CommandLineTest):
    REPLAY = ("replay", SAMPLES / "pocket-mha.safetensors", "--policy", "snapkv+critical,h2o:recent=8+keepkv:threshold=0.3",
              "--budget", "20%", "--layers", "1", "--steps", "3")

    def setUp(self):
        super().setUp()
        self.runs = 0

    def old(self, kind, **environment):
        preload = {"LD_PRELOAD": str(old_openblas), "KVBOUND_OLD_OPENBLAS": kind,
                   "ASAN_OPTIONS": ":".join([*filter(None, [os.environ.get("ASAN_OPTIONS")]), "verify_asan_link_order=0"])}
        return {**preload, **environment}

    def replay(self, **environment):
        """Replays, and returns the report's "blas" object, which describes the matrix library, and the dumps."""
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        self.passes(*self.REPLAY, "--json", folder / "out.json", "--dump", folder / "dumps/", "--quiet",
                    env={**ENVIRONMENT, **environment})
        dumps = contents(folder / "dumps")
        self.assertEqual(len(dumps), 2)
        return read(folder / "out.json")["provenance"]["blas"], dumps

    def is_openblas(self):
        blas, _ = self.replay()
        several = "DYNAMIC_ARCH" in blas["name"]
        if not several:  # a portable program, or a library for one processor: it has only one set of kernels
            self.assertEqual((blas["core_chosen_by"], blas["core_at_load"]), ("library", blas["core"]))
        return several

    def test_the_kernels_are_as_fast_as_the_processor_allows(self):
        if not self.is_openblas():
            return
        blas, _ = self.replay()
        self.assertEqual(LEVELS.get(blas["core"], 0), processor_level(), blas)
        self.assertEqual((blas["core_type_override"], blas["faster_core"]), (None, None))
        self.assertEqual(blas["core_chosen_by"], "library" if blas["core"] == blas["core_at_load"] else "kvbound")

    def test_the_core_type_of_the_user_is_respected(self):
        if not self.is_openblas():
            return
        dumps = {}
        for core in ("Prescott", "Sandybridge", "Haswell", "SkylakeX"):
            if LEVELS[core] > processor_level():
                continue
            for environment in ({}, self.old("unknown-processor")):
                blas, dumps[core] = self.replay(OPENBLAS_CORETYPE=core, **environment)
                self.assertEqual([blas[name] for name in ("core", "core_at_load", "core_chosen_by", "core_type_override")],
                                 [core, core, "OPENBLAS_CORETYPE", core])
                self.assertEqual(blas["faster_core"] is None, LEVELS[core] == processor_level())
        if len(dumps) > 1:
            self.assertNotEqual(*list(dumps.values())[::len(dumps) - 1], "as though one core had run")

    def test_an_empty_core_type_is_none(self):
        if not self.is_openblas():
            return
        blas, _ = self.replay(OPENBLAS_CORETYPE="")
        self.assertEqual(LEVELS.get(blas["core"], 0), processor_level())
        self.assertNotEqual(blas["core_chosen_by"], "OPENBLAS_CORETYPE")

    def test_a_processor_that_openblas_does_not_know_gets_kernels_that_fit(self):
        if not self.is_openblas() or not processor_level():
            return
        core = (None, "Sandybridge", "Haswell", "SkylakeX")[processor_level()]
        blas, dumps = self.replay(**self.old("unknown-processor"))
        names = "core", "core_at_load", "core_chosen_by", "core_type_override", "faster_core"
        self.assertEqual([blas[name] for name in names], [core, "Prescott", "kvbound", None, None])
        self.assertEqual(dumps, self.replay(OPENBLAS_CORETYPE=core)[1], "not the bits of that core")
        trace = self.REPLAY[1]
        for command in (("inspect", trace), ("recall", trace), ("predict", trace, "--policy", "tova", "--steps", "1")):
            self.passes(*command, "--json", "out.json", env={**ENVIRONMENT, **self.old("unknown-processor")})
            self.assertEqual(provenance(read(self.folder / "out.json"))["blas"]["core"], core, command)

    def test_any_number_of_threads_gives_the_same_bits(self):
        if not self.is_openblas():
            return
        dumps = [self.replay(OMP_NUM_THREADS=str(threads), **self.old("unknown-processor"))[1] for threads in (1, 2, 5)]
        self.assertEqual(dumps[1:], dumps[:1] * 2)

    def test_a_library_for_one_processor_is_left_as_it_is(self):
        if not self.is_openblas() or not processor_level():
            return
        blas, _ = self.replay(**self.old("one-core"))
        self.assertEqual([blas[name] for name in ("core", "core_at_load", "core_chosen_by")],
                         ["Prescott", "Prescott", "library"])
        self.assertEqual(LEVELS[blas["faster_core"]], processor_level())
        result = self.run_program("bench", "selection", "--shape", "pocket:256", "--repeats", "1",
                                  env={**ENVIRONMENT, **self.old("one-core")})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"faster kernels than Prescott's, {blas['faster_core']}'s for one", result.stderr)

    def test_bench_measures_against_the_fastest_core_and_names_it(self):
        if not self.is_openblas() or not processor_level():
            return
        for options, core in (((), None), (("--blas-core", "Prescott"), "Prescott")):
            stdout = self.passes("bench", "projected-value-norms", "--shape", "pocket:256", "--repeats", "1", "--quiet",
                                 "--json", "out.json", *options, env={**ENVIRONMENT, **self.old("unknown-processor")})
            document = read(self.folder / "out.json")
            part, blas = parts(document)[0], document["provenance"]["blas"]
            fastest = part.facts["fastest_core"]
            self.assertEqual(LEVELS[fastest], processor_level())
            self.assertEqual(blas["core"], core or fastest)
            self.assertEqual(blas["core_chosen_by"], "--blas-core" if core else "kvbound")
            roofline = part.rows("against")[0]["timed"]
            self.assertTrue(roofline.startswith(f"{fastest} DGEMM, 256-cube"), roofline)
            self.assertIn(roofline, stdout)

    def test_exit_codes_and_messages_are_those_of_the_command(self):
        for environment in ({}, self.old("unknown-processor")):
            self.refuses(USAGE, "no subcommand 'none'", "none", env={**ENVIRONMENT, **environment})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} KVBOUND OLD_OPENBLAS [unittest's options]")
    old_openblas = Path(sys.argv.pop(2)).resolve(strict=True)
    kvbound_cli.main()
