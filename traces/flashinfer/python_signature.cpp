#include "python_signature.hpp"

#include <algorithm>
#include <cstddef>

namespace kvbound::traces {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// The first position behind the string literal that begins at `at`; npos if it does not end.
size_t behind_literal(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == text[at]) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// The first position from `at` on of one of `wanted` that is in no bracket and no
// literal; npos if there is none.
size_t find_outside(std::string_view text, size_t at, std::string_view wanted) {
  int64_t depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (depth == 0 && wanted.find(c) != std::string_view::npos) return at;
    if (c == '\'' || c == '"') {
      at = behind_literal(text, at);
      continue;
    }
    if (std::string_view("([{").find(c) != std::string_view::npos) ++depth;
    if (std::string_view(")]}").find(c) != std::string_view::npos && --depth < 0) break;
    ++at;
  }
  return std::string_view::npos;
}

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return c == '_' || ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
  });
}

std::optional<PythonParameter> parameter_of(std::string_view part, bool positional) {
  const size_t equals = find_outside(part, 0, "=");
  const std::string_view declared = part.substr(0, equals);
  PythonParameter parameter{
      std::string(trimmed(declared.substr(0, find_outside(declared, 0, ":")))), {}, positional};
  if (!is_name(parameter.name)) return std::nullopt;
  if (equals != std::string_view::npos) parameter.otherwise = trimmed(part.substr(equals + 1));
  return parameter;
}

}  // namespace

std::optional<std::vector<PythonParameter>> python_parameters(std::string_view signature) {
  if (!signature.starts_with('(')) return std::nullopt;
  std::vector<PythonParameter> parameters;
  bool positional = true;
  for (size_t begin = 1;;) {
    const size_t end = find_outside(signature, begin, ",)");
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view part = trimmed(signature.substr(begin, end - begin));
    if (part.starts_with('*')) {
      positional = false;
    } else if (!part.empty() && part != "/") {
      auto parameter = parameter_of(part, positional);
      if (!parameter) return std::nullopt;
      parameters.push_back(*std::move(parameter));
    }
    if (signature[end] == ')') return parameters;
    begin = end + 1;
  }
}

}  // namespace kvbound::traces
