#include "document.hpp"

#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/sha256.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 29;
}  // namespace

std::unique_ptr<const Document> read_document(const std::string& path, size_t& taken) {
  const std::string text = traces::whole_text(path, kMostBytes);
  auto document = std::make_unique<Document>();
  document->path = path;
  document->sha256 = traces::sha256_of(text);
  document->json =
      traces::parse_strict_json(path, 0, "", text, {.levels = 16, .items = 200'000, .taken = &taken});
  document->schema = document->root().member("schema").one_of(
      {"kvbound-replay-1", "kvbound-recall-1", "kvbound-predict-1", "kvbound-evaluate-1", "kvbound-bench-1",
       "kvbound-bench-model-1", "kvbound-diff-1", "kvbound-prove-1"});
  return document;
}

}  // namespace kvbound::sim
