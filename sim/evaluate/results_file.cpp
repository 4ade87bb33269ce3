#include "results_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/fields.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/system_call.hpp>

#include "task_result_json.hpp"

namespace kvbound::sim {
namespace {

using Document = nlohmann::ordered_json;

// The first line.
struct Header {
  Document evaluation;
};

}  // namespace

template <>
struct Fields<Header> {
  static void visit(auto& header, const auto& visit) {
    visit.fixed("format", "kvbound-evaluate-results");
    visit.fixed("version", "1");
    visit("evaluation", header.evaluation);
  }
};

namespace {

constexpr int64_t kMostFileBytes = int64_t{1} << 29;
constexpr WrittenLimits kLineLimits{.bytes = size_t{1} << 29};
constexpr size_t kMostTaken = size_t{1} << 31;  // by all lines, each while it is read; results keep a quarter

// Every results file begins so.
constexpr std::string_view kBeginning = R"({"format":"kvbound-evaluate-results")";

// What is not UTF-8, such as a path, becomes U+FFFD.
std::string text_of(const Document& json) {
  return json.dump(-1, ' ', false, Document::error_handler_t::replace);
}

// Throws TraceError naming the first field, or item of a list, in which a file's evaluation is another one.
void require_same(const std::string& path, const std::string& name, const Document& expected,
                  const Document& found) {
  if (expected == found) return;
  if (expected.is_object()) {
    for (const auto& [field, value] : expected.items())
      require_same(path, field, value, found.is_object() ? found.value(field, Document()) : Document());
    return;
  }
  if (expected.is_array() && found.is_array()) {
    for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
      const auto item = [i](const Document& list) { return i < list.size() ? list[i] : Document(); };
      require_same(path, fmt::format("{}[{}]", name, i), item(expected), item(found));
    }
  }
  const auto text = [](const Document& json) {
    return json.is_null() ? "none" : traces::printable(text_of(json), traces::kMostQuoted);
  };
  throw TraceError(path, -1, name,
                   fmt::format("is {} in these results and {} now: they are of another evaluation",
                               text(found), text(expected)));
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path, const Document& evaluation) : path_(path) {
  descriptor_ = traces::uninterrupted(
      [&] { return open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666); });
  if (descriptor_ < 0) throw traces::io_error("open", path, errno);
  try {
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK)
        throw IoError("cannot use " + without_middle(path) + ": another process does");
      throw traces::io_error("lock", path, errno);
    }
    read(Document::parse(text_of(evaluation)));  // as it is written
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

ResultsFile::~ResultsFile() { close(descriptor_); }

const TaskResult* ResultsFile::find(const std::string& id) const {
  const auto found = results_.find(id);
  return found == results_.end() ? nullptr : &found->second;
}

void ResultsFile::add(const TaskResult& result) {
  append(to_json(result));
  results_.emplace(result.id, result);
}

void ResultsFile::read(const Document& evaluation) {
  const std::string text = traces::whole_text(path_, kMostFileBytes);
  const std::string_view beginning = std::string_view(text).substr(0, kBeginning.size());
  if (!kBeginning.starts_with(beginning))
    throw TraceError(path_, 0, "line 1",
                     "is not of a results file of kvbound evaluate; the file is left as it is");
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  size_t all_taken = 0;
  for (size_t begin = 0, number = 1; begin < whole; ++number) {
    const size_t end = text.find('\n', begin);
    const std::string name = fmt::format("line {}", number);
    try {
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      if (number == 1) {
        require_same(path_, name, evaluation, parse_fields<Header>("the header", line).evaluation);
      } else {
        size_t taken = 0;
        TaskResult result = task_result_of(line, kLineLimits, &taken);
        all_taken += taken;
        if (all_taken > kMostTaken) throw Error("with the lines before it takes too much memory");
        std::string id = result.id;
        if (!results_.emplace(std::move(id), std::move(result)).second)
          throw TraceError(path_, static_cast<int64_t>(begin), name, "has a task that an earlier line has");
      }
    } catch (const TraceError&) {
      throw;
    } catch (const Error& error) {
      throw TraceError(
          path_, static_cast<int64_t>(begin), name,
          "is no line of a results file: " + traces::printable(error.what(), traces::kMostQuoted));
    }
    begin = end + 1;
  }
  if (whole < text.size() && ftruncate(descriptor_, static_cast<off_t>(whole)) != 0)
    throw traces::io_error("shorten", path_, errno);
  if (whole == 0) append(fields_of(Header{evaluation}));
}

void ResultsFile::append(const Document& json) {
  const std::string line = text_of(json) + "\n";
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t written = write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw traces::io_error("write", path_, errno);
    rest.remove_prefix(static_cast<size_t>(written));
  }
  if (traces::uninterrupted([&] { return fsync(descriptor_); }) != 0 && errno != EINVAL)
    throw traces::io_error("flush", path_, errno);
}

}  // namespace kvbound::sim
