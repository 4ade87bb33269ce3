#include "tasks.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/json_field.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

using traces::JsonField;

constexpr int64_t kMostTaskFileBytes = int64_t{1} << 29;
constexpr size_t kMostTaskTokens = size_t{1} << 22, kMostTokens = size_t{1} << 26;  // of a task, of all
constexpr size_t kMostTasks = 1'000'000;
constexpr int64_t kByteVocabulary = 256;
constexpr std::array<std::string_view, 10> kTaskMembers{
    "id",     "prompt",      "prompt_text", "continuation", "continuation_text",
    "answer", "answer_text", "compress_at", "kind",         "depth"};

/// A member of a line with its name.
using TaskMember = std::pair<std::string_view, JsonField>;

/// The one of these members that the line has.
TaskMember one_of(const JsonField& line, std::initializer_list<std::string_view> names) {
  std::optional<TaskMember> found;
  for (const std::string_view name : names) {
    const auto member = line.find(name);
    if (!member) continue;
    if (found) line.refuse(fmt::format("has {} and {}; expected one of them", found->first, name));
    found.emplace(name, *member);
  }
  if (!found) line.refuse(fmt::format("has none of {}; expected one of them", fmt::join(names, ", ")));
  return *found;
}

std::vector<int64_t> text_tokens(const JsonField& field, int64_t vocabulary) {
  const std::string text = field.any_text();
  if (vocabulary != kByteVocabulary) {
    field.refuse(
        fmt::format("is text, which is for byte-level models, whose vocabulary is {}; this model's is "
                    "{}: expected token ids",
                    kByteVocabulary, vocabulary));
  }
  if (text.size() > kMostTaskTokens)
    field.refuse(fmt::format("has {} bytes; expected at most {}", text.size(), kMostTaskTokens));
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// At least one token.
std::vector<int64_t> tokens_of(const TaskMember& member, int64_t vocabulary) {
  const auto& [name, field] = member;
  std::vector<int64_t> tokens = name.ends_with("_text") ? text_tokens(field, vocabulary)
                                                        : field.integers(0, vocabulary - 1, "a token id");
  if (tokens.empty()) field.refuse("is empty; expected at least one token");
  return tokens;
}

int64_t compress_at(const JsonField& line, int64_t prompt, int64_t target) {
  const auto member = line.find("compress_at");
  const int64_t position = member ? member->integer(1, prompt, "a number of the prompt's tokens") : prompt;
  if (position == prompt && target == 1) {
    line.refuse(
        "compresses behind its prompt, which predicts the only token of its target: nothing goes "
        "through the compressed cache; expected a smaller compress_at or a target of two tokens");
  }
  return position;
}

Task task_of(const JsonField& line, int64_t vocabulary) {
  line.require_known(kTaskMembers, "a task");
  const TaskMember target = one_of(line, {"continuation", "continuation_text", "answer", "answer_text"});
  Task task;
  task.id = line.member("id").text();
  task.prompt = tokens_of(one_of(line, {"prompt", "prompt_text"}), vocabulary);
  task.target = tokens_of(target, vocabulary);
  task.is_answer = target.first.starts_with("answer");
  task.compress_at = compress_at(line, std::ssize(task.prompt), std::ssize(task.target));
  const auto kind = line.find("kind"), depth = line.find("depth");
  task.kind = kind ? kind->text() : task.is_answer ? "answer" : "continuation";
  if (depth) task.depth = depth->number(0, 1);
  return task;
}

}  // namespace

std::vector<TaskKind> kinds_of(const std::vector<Task>& tasks) {
  std::vector<TaskKind> kinds;
  std::array<std::unordered_map<std::string_view, size_t>, 2> numbers;  // [is_answer]: of a kind's name
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    const auto [found, is_new] = numbers[task.is_answer].emplace(task.kind, kinds.size());
    if (is_new) kinds.push_back({task.kind, task.is_answer, {}});
    kinds[found->second].tasks.push_back(i);
  }
  return kinds;
}

std::string task_text(const std::string& path) { return traces::whole_input(path, kMostTaskFileBytes); }

std::vector<Task> tasks_of(const std::string& path, std::string_view text, int64_t vocabulary) {
  if (text.empty()) throw TraceError(path, 0, "", "is empty; expected a task a line");
  std::vector<Task> tasks;
  std::unordered_map<std::string, size_t> lines;  // id -> its line's number
  size_t tokens = 0;
  for (size_t begin = 0; begin < text.size();) {
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    const size_t number = tasks.size() + 1;
    const std::string name = fmt::format("line {}", number);
    const auto offset = static_cast<int64_t>(begin);
    if (number > kMostTasks)
      throw TraceError(path, offset, name,
                       fmt::format("is one too many; expected at most {} tasks", kMostTasks));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos)
      throw TraceError(path, offset, name, "is blank; expected a JSON object");
    const traces::Json json =
        traces::parse_strict_json(path, offset, name, line, {.levels = 2, .items = kMostTaskTokens});
    const JsonField field(path, name, json, ": ");
    tasks.push_back(task_of(field, vocabulary));
    tokens += tasks.back().prompt.size() + tasks.back().target.size();
    if (tokens > kMostTokens)
      field.refuse(fmt::format("has with those before it more than {} tokens", kMostTokens));
    const std::string& id = tasks.back().id;
    if (const auto [first, is_new] = lines.emplace(id, number); !is_new) {
      field.member("id").refuse(
          fmt::format("is {}, which line {} has, too", traces::in_quotes(id), first->second));
    }
    begin += line.size() + 1;
  }
  return tasks;
}

void shorten(std::vector<Task>& tasks, int64_t tokens) {
  for (Task& task : tasks) {
    if (!task.is_answer && std::ssize(task.target) > tokens) task.target.resize(static_cast<size_t>(tokens));
  }
}

}  // namespace kvbound::sim
