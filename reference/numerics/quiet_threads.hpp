// Threads that libraries start by themselves, or that wait for work.
#pragma once

namespace kvbound::reference {

/// Lets OpenMP's threads sleep while they wait for work, which they otherwise do by spinning for some
/// milliseconds: beside other programs this takes several times the processor time that the work itself does.
/// Keeps OpenBLAS from starting threads of its own, which products never use, and which under a limit of
/// virtual memory (ulimit -v) try for ever to get 128 MiB each, the program's end included.
///
/// To be called first in main. Libraries read the environment when they are loaded, before main: the process
/// is therefore replaced by a new run of the same program, once, with OMP_WAIT_POLICY=passive and
/// OPENBLAS_NUM_THREADS=1 in its environment and that of the processes it starts. That is not done if the
/// environment says how threads wait (OMP_WAIT_POLICY or GOMP_SPINCOUNT), unless virtual memory is limited
/// and OpenBLAS may have threads. Where it cannot be done, for want of /proc or because a dynamic loader was
/// started with the program's name, threads are as they are. A debugger or profiler that does not follow a
/// process into another program needs OMP_WAIT_POLICY set by hand.
///
/// arguments  main's argv
void quiet_threads(char* const* arguments);

}  // namespace kvbound::reference
