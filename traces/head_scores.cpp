#include "head_scores.hpp"

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "input_file.hpp"
#include "json_field.hpp"
#include "sha256.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 24;
constexpr size_t kMostItems = 1 << 16;  // layers, or heads of one
constexpr size_t kMostCharacters = 64;
constexpr double kLeast = 1e-300;  // whose decimals are exact with reasonable effort

std::string score_of(const JsonField& field) {
  const double number = field.number();
  std::string text = field.description();
  if (number < 0 || (number > 0 && number < kLeast)) field.expected("0, or a finite number from 1e-300");
  if (text.size() > kMostCharacters)
    field.refuse("is printed with " + std::to_string(text.size()) + " characters; expected at most " +
                 std::to_string(kMostCharacters));
  return text;
}

std::vector<std::vector<std::string>> scores_of(const JsonField& field) {
  std::vector<std::vector<std::string>> scores;
  bool any = false;
  for (const JsonField& layer : field.items()) {
    std::vector<std::string>& own = scores.emplace_back();
    for (const JsonField& head : layer.items()) {
      own.push_back(score_of(head));
      any = any || head.number() > 0;
    }
    if (own.size() != scores.front().size())
      layer.refuse("has " + std::to_string(own.size()) + " heads, but the first layer has " +
                   std::to_string(scores.front().size()));
  }
  if (!any) field.refuse("are all 0; expected a positive one");
  return scores;
}

}  // namespace

std::shared_ptr<const HeadScores> parse_head_scores(const std::string& path, std::string text) {
  constexpr auto kMembers = std::to_array<std::string_view>({"format", "version", "model", "scores"});
  const Json json = parse_strict_json(path, 0, "", text, {.levels = 3, .items = kMostItems});
  const JsonField root(path, "", json);
  root.require_known(kMembers, "a file of heads' scores");
  root.member("format").one_of({"kvbound-head-scores"});
  root.member("version").integer(1, 1);
  HeadScores scores;
  scores.path = std::filesystem::absolute(path).lexically_normal().string();
  scores.sha256 = sha256_of(text);
  scores.model = root.member("model").any_text();
  scores.scores = scores_of(root.member("scores"));
  scores.text = std::move(text);
  return std::make_shared<const HeadScores>(std::move(scores));
}

std::shared_ptr<const HeadScores> read_head_scores(const std::string& path) {
  return parse_head_scores(path, whole_input(path, kMostBytes));
}

}  // namespace kvbound::traces
