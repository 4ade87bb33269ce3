// FlashInfer's dumps.
#include <algorithm>
#include <string>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/flashinfer/attention_call.hpp>
#include <kvbound/traces/flashinfer/attention_function.hpp>
#include <kvbound/traces/flashinfer/python_signature.hpp>
#include <kvbound/traces/flashinfer/recorded_session.hpp>
#include <kvbound/traces/generate.hpp>

#include "reader.hpp"

namespace kvbound::fuzz {
namespace {

// Writes the files of a call, if its name is one that a folder of dumps may hold. Control characters in names
// are not for the readers: the program escapes what it prints.
void write_call(Folder& folder, Parts parts) {
  const std::string name(parts[0]);
  const bool usable = !name.empty() && name.size() < 200 && name != "." && name != ".." &&
                      std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~' && c != '/'; });
  if (!usable || !folder.make_folder(name)) return;
  folder.write(name + "/metadata.jsonl", parts[1]);
  if (!parts[2].empty()) folder.write(name + "/inputs.safetensors", parts[2]);
  if (!parts[3].empty()) folder.write(name + "/outputs.safetensors", parts[3]);
}

void read_call(const traces::RecordedSession& session, int64_t number) {
  if (!traces::attention_function_named(session.call(number).function())) return;
  const traces::AttentionCall call(session, number, {});
  for (int64_t r = 0; r < call.requests(); ++r) {
    const auto request = call.request(r);
    call.keys(request);
    call.values(request);
    call.queries(request);
    call.outputs(request);
  }
}

}  // namespace

// Every request of every call that can be imported, each judged by itself: one that is
// refused says nothing of others.
void read_flashinfer(Folder& folder, Parts parts) {
  for (; !parts.empty(); parts = parts.subspan(4)) write_call(folder, parts);
  const traces::RecordedSession session(folder.path());
  std::exception_ptr last;
  for (int64_t number = 1; number <= session.size(); ++number) try {
      read_call(session, number);
    } catch (const TraceError&) {
      last = std::current_exception();
    } catch (const traces::InvalidOption&) {  // what an option would have to say
      last = std::current_exception();
    }
  if (last) std::rethrow_exception(last);
}

void read_python_signature(Folder&, Parts parts) {
  if (!traces::python_parameters(parts[0])) throw InvalidPolicy("no signature");
}

}  // namespace kvbound::fuzz
