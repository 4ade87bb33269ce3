"""traces/scripts/record_hf.py and kvbound record on a trained model whose trace is known: what they record is that trace,
within rounding.

usage: pocket_test.py KVBOUND CHECKPOINT TRACE      CHECKPOINT: the folder of `pocket`; TRACE: pocket-gqa.safetensors, BF16
"""
import subprocess
import sys
from pathlib import Path

import numpy as np
from hf import forward
from support import kvbound_cli
from support.kvbound_cli import PASS, CommandLineTest

SCRIPTS = kvbound_cli.REPOSITORY / "traces" / "scripts"
checkpoint = known_trace = None


class Pocket(CommandLineTest):
    def test_is_recorded_as_it_was(self):
        for recorder, command in (("record_hf.py", [sys.executable, SCRIPTS / "record_hf.py"]),
                                  ("kvbound record", [kvbound_cli.program, "record", "--quiet"])):
            with self.subTest(recorder):
                self.require_known(recorder, command)

    def require_known(self, recorder, command):
        metadata, known = forward.read_safetensors(known_trace)
        prompt, steps = int(metadata["prompt_tokens"]), int(metadata["decode_tokens"])
        text, path = self.folder / "text", self.folder / f"{recorder}.safetensors"
        text.write_bytes(bytes(known["tokens"][:prompt].tolist()))
        result = subprocess.run(
            [*command, checkpoint, "--bytes", text, "--prompt", str(prompt), "--steps", str(steps), "--window",
             metadata["window_queries"], "--dtype", "BF16", path], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr), (PASS, ""))
        self.passes("inspect", path, "--verify")
        _, recorded = forward.read_safetensors(path)
        # greedy: the needle's number
        self.assertEqual(bytes(recorded["tokens"].tolist()), bytes(known["tokens"].tolist()))
        self.assertEqual(recorded.keys(), known.keys())
        print(f"{recorder}:")
        for name in sorted(known.keys() - {"tokens"}):
            self.require_same_within_rounding(name, recorded[name], known[name])
        self.require_first_keys(recorded, known)

    def require_same_within_rounding(self, name, recorded, known):
        """Both recordings round to 8 bits before attention, where their float32 numbers differ in the last places: an
        element may fall to either side, and later layers see that. No query, key or value may differ by more than a unit
        in the last place of the tensor's largest number; attention outputs, which are not rounded, were verified."""
        difference, largest = np.abs(recorded - known), np.abs(known).max()
        if name.endswith("output_projection"):
            np.testing.assert_array_equal(recorded, known, name)
            return
        unit = 2.0 ** (np.floor(np.log2(largest)) - 7)
        if not name.endswith("attention_output"):
            self.assertLessEqual(difference.max(), unit, name)
        self.assertLess(np.median(difference), unit / 64, name)
        print(f"{name}: {(difference > 0).mean():.2%} of the elements differ, by {difference.max() / unit:.3f} units of "
              "the largest number at most")

    def require_first_keys(self, recorded, known):
        """Layer 0's queries, keys and values depend on embeddings alone: both are within float32's bound,
        rounded, of double precision."""
        predicted = forward.first_layer(checkpoint, recorded["tokens"], "BF16")
        for name in ("query", "key", "value"):
            value, bound = (part[:, -recorded[f"layers.0.{name}"].shape[1]:] for part in predicted[f"layers.0.{name}"])
            for tensor in (recorded, known):
                self.assertTrue((np.abs(tensor[f"layers.0.{name}"] - value) <= bound).all(), name)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    checkpoint, known_trace = (Path(sys.argv.pop(2)).resolve(strict=True) for _ in range(2))
    kvbound_cli.main()
