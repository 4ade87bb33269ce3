#include "tasks.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/strict_json.hpp>

namespace kvbound::sim {
namespace {

using traces::Json;

constexpr int64_t kMostTaskFileBytes = int64_t{1} << 30;
constexpr size_t kMostTaskTokens = size_t{1} << 22;
constexpr int64_t kByteVocabulary = 256;
constexpr std::array<std::string_view, 10> kTaskMembers{
    "id",     "prompt",      "prompt_text", "continuation", "continuation_text",
    "answer", "answer_text", "compress_at", "kind",         "depth"};

/// A member of a line; value is null if the line does not have it.
struct TaskMember {
  std::string_view name;
  const Json* value = nullptr;
};

/// One line of the file: its members, and errors that name it.
class TaskLine {
 public:
  TaskLine(const std::string& path, int64_t number, int64_t offset, std::string_view text)
      : path_(path), name_(fmt::format("line {}", number)), offset_(offset) {
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) {
      refuse("is blank; expected a JSON object");
    }
    const traces::JsonLimits limits{.levels = 2, .items = kMostTaskTokens};
    json_ = traces::parse_strict_json(path_, offset_, name_, text, limits);
    for (const auto& [name, value] : *json_.object()) {
      if (std::ranges::find(kTaskMembers, name) != kTaskMembers.end()) continue;
      throw TraceError(path_, value.offset, name_,
                       fmt::format("{} is unknown; the members of a task are {}", traces::in_quotes(name),
                                   fmt::join(kTaskMembers, ", ")));
    }
  }

  TaskMember member(std::string_view name) const { return {name, json_.member(name)}; }

  /// The one of these members that the line has.
  TaskMember one_of(std::initializer_list<std::string_view> names) const {
    TaskMember found;
    for (const std::string_view name : names) {
      const TaskMember next = member(name);
      if (!next.value) continue;
      if (found.value) refuse(fmt::format("has {} and {}; expected one of them", found.name, name));
      found = next;
    }
    if (!found.value) refuse(fmt::format("has none of {}; expected one of them", fmt::join(names, ", ")));
    return found;
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    throw TraceError(path_, offset_, name_, problem);
  }
  [[noreturn]] void refuse(const TaskMember& member, const Json& place, const std::string& problem) const {
    throw TraceError(path_, place.offset, fmt::format("{}: {}", name_, member.name), problem);
  }
  [[noreturn]] void refuse_value(const TaskMember& member, const std::string& expected) const {
    refuse(member, *member.value,
           fmt::format("is {}; expected {}", traces::description(*member.value), expected));
  }

 private:
  const std::string& path_;
  std::string name_;
  int64_t offset_;
  Json json_;
};

std::vector<int64_t> text_tokens(const TaskLine& line, const TaskMember& member, int64_t vocabulary) {
  const std::string* text = member.value->text();
  if (!text) line.refuse_value(member, "a string");
  if (vocabulary != kByteVocabulary) {
    line.refuse(
        member, *member.value,
        fmt::format("is text, which is for byte-level models, whose vocabulary is {}; this model's is "
                    "{}: expected token ids",
                    kByteVocabulary, vocabulary));
  }
  if (text->size() > kMostTaskTokens) {
    line.refuse(member, *member.value,
                fmt::format("has {} bytes; expected at most {}", text->size(), kMostTaskTokens));
  }
  std::vector<int64_t> tokens;
  tokens.reserve(text->size());
  for (const char c : *text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::vector<int64_t> id_tokens(const TaskLine& line, const TaskMember& member, int64_t vocabulary) {
  const Json::Array* ids = member.value->array();
  if (!ids) line.refuse_value(member, "an array of token ids");
  std::vector<int64_t> tokens;
  tokens.reserve(ids->size());
  for (const Json& id : *ids) {
    const uint64_t* number = id.number();
    if (!number || *number >= static_cast<uint64_t>(vocabulary)) {
      line.refuse(member, id,
                  fmt::format("item {} is {}; expected a token id from 0 to {}", tokens.size(),
                              traces::description(id), vocabulary - 1));
    }
    tokens.push_back(static_cast<int64_t>(*number));
  }
  return tokens;
}

/// At least one token.
std::vector<int64_t> tokens_of(const TaskLine& line, const TaskMember& member, int64_t vocabulary) {
  std::vector<int64_t> tokens = member.name.ends_with("_text") ? text_tokens(line, member, vocabulary)
                                                               : id_tokens(line, member, vocabulary);
  if (tokens.empty()) line.refuse(member, *member.value, "is empty; expected at least one token");
  return tokens;
}

std::string name_in(const TaskLine& line, const TaskMember& member) {
  if (!member.value) line.refuse(fmt::format("has no {}", member.name));
  const std::string* text = member.value->text();
  if (!text || text->empty()) line.refuse_value(member, "a string that is not empty");
  return *text;
}

int64_t compress_at(const TaskLine& line, int64_t prompt, int64_t target) {
  const TaskMember member = line.member("compress_at");
  if (member.value) {
    const uint64_t* number = member.value->number();
    if (!number || *number < 1 || *number > static_cast<uint64_t>(prompt)) {
      line.refuse_value(member, fmt::format("an integer from 1 to the prompt's {} tokens", prompt));
    }
  }
  const int64_t position = member.value ? static_cast<int64_t>(*member.value->number()) : prompt;
  if (position == prompt && target == 1) {
    line.refuse(
        "compresses behind its prompt, which predicts the only token of its target: nothing goes "
        "through the compressed cache; expected a smaller compress_at or a target of two tokens");
  }
  return position;
}

std::optional<double> depth_of(const TaskLine& line) {
  const TaskMember member = line.member("depth");
  if (!member.value) return std::nullopt;
  std::optional<double> depth;
  if (const uint64_t* number = member.value->number()) depth = static_cast<double>(*number);
  if (const auto* other = std::get_if<Json::Other>(&member.value->value)) depth = parse_real(other->text);
  if (!depth || !(0 <= *depth && *depth <= 1)) line.refuse_value(member, "a number from 0 to 1");
  return depth;
}

Task task_of(const TaskLine& line, int64_t vocabulary) {
  const TaskMember target = line.one_of({"continuation", "continuation_text", "answer", "answer_text"});
  Task task;
  task.id = name_in(line, line.member("id"));
  task.prompt = tokens_of(line, line.one_of({"prompt", "prompt_text"}), vocabulary);
  task.target = tokens_of(line, target, vocabulary);
  task.is_answer = target.name.starts_with("answer");
  task.compress_at = compress_at(line, std::ssize(task.prompt), std::ssize(task.target));
  const TaskMember kind = line.member("kind");
  task.kind = kind.value ? name_in(line, kind) : task.is_answer ? "answer" : "continuation";
  task.depth = depth_of(line);
  return task;
}

std::string task_file(const std::string& path) {
  const traces::InputFile file(path);
  if (file.size() > kMostTaskFileBytes) {
    throw TraceError(path, -1, "", fmt::format("has {} bytes; expected at most 1 GiB", file.size()));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text, "");
  return text;
}

}  // namespace

std::vector<TaskKind> kinds_of(const std::vector<Task>& tasks) {
  std::vector<TaskKind> kinds;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto is_same = [&](const TaskKind& kind) {
      return kind.name == tasks[i].kind && kind.answers == tasks[i].is_answer;
    };
    auto found = std::ranges::find_if(kinds, is_same);
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {tasks[i].kind, tasks[i].is_answer, {}});
    found->tasks.push_back(i);
  }
  return kinds;
}

std::vector<Task> read_tasks(const std::string& path, int64_t vocabulary) {
  const std::string text = task_file(path);
  if (text.empty()) throw TraceError(path, 0, "", "is empty; expected a task a line");
  std::vector<Task> tasks;
  std::unordered_map<std::string, size_t> lines;  // id -> its line's number
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const size_t number = tasks.size() + 1;
    const TaskLine line(path, static_cast<int64_t>(number), static_cast<int64_t>(begin),
                        std::string_view(text).substr(begin, end - begin));
    tasks.push_back(task_of(line, vocabulary));
    const std::string& id = tasks.back().id;
    if (const auto [first, is_new] = lines.emplace(id, number); !is_new) {
      line.refuse(line.member("id"), *line.member("id").value,
                  fmt::format("is {}, which line {} has, too", traces::in_quotes(id), first->second));
    }
    begin = end + 1;
  }
  return tasks;
}

}  // namespace kvbound::sim
