#include "recorded_work.hpp"

#include <utility>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::cuda::emulation {
namespace {

thread_local RecordedWork* list_of_thread = nullptr;

}  // namespace

RecordedWork* recorded_work() { return list_of_thread; }
RecordedWork* record_to(RecordedWork* list) { return std::exchange(list_of_thread, list); }

void require_not_recording(const char* call, CallSite where) {
  if (list_of_thread) throw DeviceError(call, "not possible while work is recorded", where.file, where.line);
}

}  // namespace kvbound::cuda::emulation
