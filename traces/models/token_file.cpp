#include "token_file.hpp"

#include <optional>
#include <string_view>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/input_file.hpp>

#include "../messages.hpp"
#include "../number_in.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kMostTokenFileBytes = int64_t{1} << 27;  // of which every one may be a token of eight bytes

int64_t require_token(const std::string& path, size_t offset, const std::string& said,
                      std::optional<int64_t> token, int64_t vocabulary) {
  if (token && 0 <= *token && *token < vocabulary) return *token;
  throw TraceError(path, static_cast<int64_t>(offset), "token",
                   "is " + said + "; expected a number from 0 to " + std::to_string(vocabulary - 1));
}

std::vector<int64_t> require_some(const std::string& path, std::vector<int64_t> tokens) {
  if (tokens.empty()) throw TraceError(path, 0, "", "has no tokens");
  return tokens;
}

}  // namespace

std::vector<int64_t> read_token_ids(const std::string& path, int64_t vocabulary) {
  constexpr std::string_view kBetween = " \t\r\n,";
  const std::string text = whole_input(path, kMostTokenFileBytes);
  std::vector<int64_t> tokens;
  for (size_t begin = text.find_first_not_of(kBetween); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    tokens.push_back(require_token(path, begin, in_quotes(word), number_in<int64_t>(word), vocabulary));
    begin = text.find_first_not_of(kBetween, end);
  }
  return require_some(path, std::move(tokens));
}

std::vector<int64_t> read_bytes_as_tokens(const std::string& path, int64_t vocabulary) {
  const std::string text = whole_input(path, kMostTokenFileBytes);
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) {
    const int64_t token = static_cast<unsigned char>(c);
    tokens.push_back(require_token(path, tokens.size(), "byte " + std::to_string(token), token, vocabulary));
  }
  return require_some(path, std::move(tokens));
}

}  // namespace kvbound::traces
