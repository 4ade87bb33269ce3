// Files of tasks: prompts, and what a model is to say after them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvbound::sim {

/// A prompt, and what follows it. The cache is compressed when the first `compress_at` tokens have been read;
/// the model reads the rest of the prompt, and decodes the target, through the compressed cache.
struct Task {
  std::string id;
  std::string kind;             // groups the rows of tables
  std::vector<int64_t> prompt;  // at least one token
  std::vector<int64_t> target;  // at least one token
  bool is_answer = false;       // greedy decoding must give the target; otherwise its likelihood is measured
  int64_t compress_at = 0;      // in 1..prompt.size()
  std::optional<double> depth;  // where in the context the needle is: from 0, the beginning, to 1, the end
};

/// Tasks that tables put together: answers, or continuations, of one kind.
struct TaskKind {
  std::string name;
  bool answers = false;
  std::vector<size_t> tasks;  // indices
};

/// Every task is in one of them; in the order of their first tasks.
std::vector<TaskKind> kinds_of(const std::vector<Task>& tasks);

/// The bytes of a file of tasks, which may be a pipe; `-` is standard input. Throws TraceError for a file of
/// more than 1 GiB or a directory; IoError.
std::string task_text(const std::string& path);

/// The tasks of a file's text: one JSON object a line, in UTF-8. Its members:
///
///     id             a string, not empty, unlike every other in the file
///     prompt         token ids; or prompt_text, a string whose bytes in UTF-8 are the tokens
///     continuation   token ids (or continuation_text), whose likelihood is measured; or, instead of it,
///     answer         token ids (or answer_text), which greedy decoding must give
///     compress_at    optional, an integer in 1..tokens of the prompt (default: all tokens)
///     kind           optional, a string, not empty (default: "continuation" or "answer")
///     depth          optional, a number in 0..1
///
/// A task without any token that goes through the compressed cache is refused: it compresses behind the
/// prompt, whose last token predicts the first of the target, and has a target of one token. Lines may end in
/// CR LF, and the last one need not end; blank lines are refused.
///
/// path        of the file, for messages
/// vocabulary  ids are below it; the members of text are refused unless it is 256
/// returns     in the order of lines, at least one
/// throws      TraceError, naming line, byte and member, for anything else: a byte order mark, unknown or
///             repeated members, more than 2^22 tokens in a member
std::vector<Task> tasks_of(const std::string& path, std::string_view text, int64_t vocabulary);
/// The tasks of a file.
inline std::vector<Task> read_tasks(const std::string& path, int64_t vocabulary) {
  return tasks_of(path, task_text(path), vocabulary);
}

/// Leaves only the first tokens of continuations.
void shorten(std::vector<Task>& tasks, int64_t tokens);

}  // namespace kvbound::sim
