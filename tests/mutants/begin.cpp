// Compiled for its precompiled headers, with which every mutant begins.
