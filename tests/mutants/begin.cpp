// Compiled for its precompiled headers, which all mutants share.
