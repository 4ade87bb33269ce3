#include "judged_call.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <iostream>
#include <vector>

#include <fmt/format.h>

#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/traces/safetensors_writer.hpp>

namespace kvbound::sim {
namespace {

using traces::NonFiniteNumbers, traces::SafetensorsWriter;

// The exit code of a program; -1 if it was not started, or did not end by itself.
int exit_code_of(std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  std::cout << std::flush;
  pid_t process = 0;
  if (posix_spawn(&process, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) return -1;
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool is_right(const std::string& operation, SafetensorsWriter& writer, const CallFile& file) {
  constexpr int kRight = 0, kWrong = 1;  // kvbound's exit codes
  writer.finish();
  const int code = exit_code_of({file.judge, "check", operation, file.path, "--quiet"});
  if (code != kRight && code != kWrong)
    throw IoError(fmt::format("{} could not judge {}: exit code {}", file.judge, file.path, code));
  return code == kRight;
}

void append_rows(SafetensorsWriter& file, const char* name, TensorView tensor, int64_t rows) {
  for (int64_t slice = 0; slice < tensor.slices; ++slice) {
    for (int64_t row = 0; row < rows; ++row) file.append(name, tensor.slice(slice).row(row));
  }
}

}  // namespace

bool attention_is_right(const CallFile& file, const KernelLibrary& library, TensorView query, TensorView keys,
                        TensorView values, int64_t tokens, std::span<const cuda::Bfloat16> output) {
  const std::vector<int64_t> queries{1, query.rows, query.cols}, cache{1, keys.slices, tokens, keys.cols};
  SafetensorsWriter writer(file.path,
                           {{"kv_layout", "HND"},
                            {"weights", std::string(library.weights)},
                            {"partials", std::string(library.partials)}},
                           {{"q", Dtype::bf16, queries},
                            {"k", Dtype::bf16, cache},
                            {"v", Dtype::bf16, cache},
                            {"out", Dtype::bf16, queries}});
  append_rows(writer, "q", query, query.rows);
  append_rows(writer, "k", keys, tokens);
  append_rows(writer, "v", values, tokens);
  std::vector<double> numbers;
  for (const cuda::Bfloat16 number : output) numbers.push_back(cuda::unstored(number));
  writer.append("out", numbers, NonFiniteNumbers::allowed);
  return is_right("attention", writer, file);
}

bool top_is_right(const CallFile& file, std::span<const float> scores, int64_t rows,
                  std::span<const int32_t> indices, int64_t stride, int64_t k, const std::string& order) {
  SafetensorsWriter writer(
      file.path, {{"order", order}},
      {{"scores", Dtype::f32, {rows, std::ssize(scores) / rows}}, {"indices", Dtype::i64, {rows, k}}});
  writer.append("scores", std::vector<double>(scores.begin(), scores.end()));
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = indices.begin() + row * stride;
    writer.append("indices", std::vector<int64_t>(first, first + k));
  }
  return is_right("topk", writer, file);
}

}  // namespace kvbound::sim
