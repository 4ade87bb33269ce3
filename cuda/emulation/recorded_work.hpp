// What is recorded on a thread instead of being run at once.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <kvbound/reference/core/call_site.hpp>

namespace kvbound::cuda::emulation {

using RecordedWork = std::vector<std::function<void()>>;

/// The list that the calling thread records to; null: it runs everything at once.
RecordedWork* recorded_work();
/// Sets the list; returns the one before.
RecordedWork* record_to(RecordedWork* list);

/// Runs a piece of work, or adds it to the list.
template <class Work>
void run_or_record(Work work) {
  if (RecordedWork* const list = recorded_work()) {
    list->emplace_back(std::move(work));
  } else {
    work();
  }
}

/// Throws DeviceError if the thread is recording: a CUDA graph cannot hold the call.
void require_not_recording(const char* call, CallSite where = CallSite::current());

}  // namespace kvbound::cuda::emulation
