#include "document.hpp"

#include <fmt/format.h>

#include <kvbound/sim/figures/document.hpp>
#include <kvbound/sim/figures/read_part.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/sha256.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 29;
// bench-model: bench --model
const std::initializer_list<std::string_view> kCommands{
    "replay", "diff", "check", "recall", "predict", "evaluate", "bench", "bench-model", "prove"};

// The command that wrote it.
std::string document_kind(const JsonField& root) {
  const JsonField schema = root.member("schema");
  if (schema.any_text() == kDocumentSchema) return root.member("command").one_of(kCommands);
  for (const std::string_view command : kCommands) {
    if (schema.any_text() == fmt::format("kvbound-{}-1", command))
      schema.refuse(
          fmt::format("is version 1 of a document, which is not read any more; write it again by kvbound {}",
                      command.substr(0, command.find('-'))));
  }
  return schema.one_of({kDocumentSchema});
}

}  // namespace

std::unique_ptr<const Document> read_document(const std::string& path, size_t& taken) {
  const std::string text = traces::whole_text(path, kMostBytes);
  auto document = std::make_unique<Document>();
  document->path = path;
  document->sha256 = traces::sha256_of(text);
  document->json =
      traces::parse_strict_json(path, 0, "", text, {.levels = 16, .items = kMostNumbers, .taken = &taken});
  document->kind = document_kind(document->root());
  return document;
}

}  // namespace kvbound::sim
