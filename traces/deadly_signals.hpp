// Every signal that ends the program and can be caught removes its temporary files.
#pragma once

namespace kvbound::traces {

/// Handles those signals: temporary files are removed, and the program ends by the signal all the same. What the caller ignores, as
/// nohup has it, or a sanitizer handles, remains so. SIGPIPE and SIGXFSZ are ignored: a closed pipe, or a file above the size limit,
/// is reported as a write error like any other. To be called before there are other threads; a thread other than this one whose
/// stack is full ends the program before anything is removed.
void clean_up_on_deadly_signals();

}  // namespace kvbound::traces
