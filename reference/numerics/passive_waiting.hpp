// How OpenMP's threads wait for work.
#pragma once

namespace kvbound::reference {

/// Lets threads sleep while they wait for work, which they otherwise do by spinning for some milliseconds: beside other programs
/// this takes several times the processor time that the work itself does. Does nothing if the environment says how threads wait
/// (OMP_WAIT_POLICY or GOMP_SPINCOUNT).
///
/// To be called first in main. libgomp reads the environment when it is loaded, before main: the process is therefore replaced by
/// a new run of the same program, once, with OMP_WAIT_POLICY=passive in its environment and that of the processes it starts.
/// Where this cannot be done, for want of /proc or because a dynamic loader was started with the program's name, threads go on
/// spinning. A debugger or profiler that does not follow a process into another program needs OMP_WAIT_POLICY set by hand.
///
/// arguments  main's argv
void wait_passively(char* const* arguments);

}  // namespace kvbound::reference
