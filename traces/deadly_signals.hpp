// Every signal that ends the program and can be caught removes its temporary files.
#pragma once

namespace kvbound::traces {

/// Handles those signals: temporary files are removed, and the program ends by the signal all the same. What
/// the caller ignores, as nohup has it, or a sanitizer handles, remains so. SIGPIPE and SIGXFSZ are ignored:
/// a closed pipe, or a file above the size limit, is reported as a write error like any other. To be called
/// before there are other threads.
///
/// Only the calling thread has a stack for the handlers: where the stack of another one is full, the program
/// ends before anything is removed, as by kill -9, and the next run that writes into the folder removes it.
/// A stack for each of them would have to be set up by code that runs in every thread that OpenMP and
/// OpenBLAS start, and would guard against nothing: what depth a file can ask for, nesting, is limited, and
/// read by the first thread.
void clean_up_on_deadly_signals();

}  // namespace kvbound::traces
