// Compiled for its precompiled headers, which all mutants share, and in place of a mutated source.
