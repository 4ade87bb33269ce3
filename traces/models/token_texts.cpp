#include "token_texts.hpp"

#include <algorithm>
#include <map>
#include <string_view>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/input_file.hpp>

#include "../json_field.hpp"
#include "gguf.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kMostTokenizerBytes = int64_t{256} << 20;  // those of large models have some 10^7
constexpr size_t kMostTokenizerItems = size_t{1} << 22;      // of a list: merges

// GPT-2's characters of the bytes that are not printable in Latin-1, from U+0100 on,
// in the order of the bytes.
bool is_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}
std::map<std::string, char, std::less<>> byte_characters() {
  std::map<std::string, char, std::less<>> characters;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code = is_itself(byte) ? byte : next++;
    const std::string character = code < 0x80 ? std::string(1, static_cast<char>(code))
                                              : std::string{static_cast<char>(0xc0 | code >> 6),
                                                            static_cast<char>(0x80 | (code & 0x3f))};
    characters[character] = static_cast<char>(byte);
  }
  return characters;
}

// Characters that stand for no byte, as in special tokens, stay.
std::string of_byte_level(std::string_view piece) {
  static const auto kBytes = byte_characters();
  std::string text;
  while (!piece.empty()) {
    const size_t length = static_cast<unsigned char>(piece.front()) >= 0xc0 ? 2 : 1;
    const std::string_view character = piece.substr(0, length);
    const auto byte = kBytes.find(character);
    if (byte == kBytes.end()) {
      text += character;
    } else {
      text += byte->second;
    }
    piece.remove_prefix(character.size());
  }
  return text;
}

std::string of_sentencepiece(std::string_view piece) {
  constexpr std::string_view kSpace = "\xe2\x96\x81", kByte = "<0x";
  if (piece.size() == 6 && piece.starts_with(kByte) && piece.back() == '>') {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    const size_t high = kDigits.find(piece[3]), low = kDigits.find(piece[4]);
    if (high < 16 && low < 16) return std::string(1, static_cast<char>(high << 4 | low));
  }
  std::string text(piece);
  for (size_t at = text.find(kSpace); at != std::string::npos; at = text.find(kSpace, at))
    text.replace(at, kSpace.size(), " ");
  return text;
}

// Whether a decoder of tokenizer.json, or one that it consists of, is of that type.
bool has_type(const JsonField& decoder, std::string_view type, int levels) {
  if (!decoder.is_object() || levels == 0) return false;
  const auto own = decoder.find("type");
  if (own && own->is_text() && own->any_text() == type) return true;
  const auto parts = decoder.find("decoders");
  if (!parts || !parts->is_list()) return false;
  return std::ranges::any_of(parts->structured_parts(),
                             [&](const JsonField& part) { return has_type(part, type, levels - 1); });
}

// A tokenizer may know more tokens than the model.
void add_piece(std::vector<std::string>& pieces, const JsonField& number, const std::string& piece) {
  const auto token = static_cast<size_t>(number.integer(0, INT64_MAX, "a token"));
  if (token < pieces.size()) pieces[token] = piece;
}

}  // namespace

std::string TokenTexts::text(std::span<const int64_t> tokens) const {
  std::string text;
  for (const int64_t token : tokens) {
    if (spelling_ == TokenSpelling::bytes) {
      text += static_cast<char>(token);
    } else if (token >= 0 && token < std::ssize(pieces_)) {
      const std::string& piece = pieces_[static_cast<size_t>(token)];
      text += spelling_ == TokenSpelling::byte_level ? of_byte_level(piece) : of_sentencepiece(piece);
    }
  }
  return text;
}

std::optional<TokenTexts> token_texts(const GgufFile& file) {
  constexpr const char *kKind = "tokenizer.ggml.model", *kTokens = "tokenizer.ggml.tokens";
  const auto kind = file.metadata().find(kKind), tokens = file.metadata().find(kTokens);
  if (kind == file.metadata().end() || tokens == file.metadata().end()) return std::nullopt;
  const auto* name = std::get_if<std::string>(&kind->second.value);
  const auto* array = std::get_if<GgufArray>(&tokens->second.value);
  if (!name || !array) return std::nullopt;
  if (*name != "gpt2" && *name != "llama") return std::nullopt;
  std::vector<std::string> pieces;
  for (const GgufValue& item : file.items(kTokens, *array)) {
    const auto* piece = std::get_if<std::string>(&item.value);
    if (!piece) throw TraceError(file.path(), item.offset, kTokens, "has an item that is no text");
    pieces.push_back(*piece);
  }
  return TokenTexts(*name == "gpt2" ? TokenSpelling::byte_level : TokenSpelling::sentencepiece,
                    std::move(pieces));
}

std::optional<TokenTexts> token_texts(const std::string& path, int64_t vocabulary) {
  const Json json = parse_strict_json(path, 0, "", whole_text(path, kMostTokenizerBytes),
                                      {.levels = 16, .items = kMostTokenizerItems, .python = true});
  const JsonField root(path, "", json);
  const auto decoder = root.optional_member("decoder");
  constexpr int kLevels = 4;
  const auto is = [&](std::string_view type) { return decoder && has_type(*decoder, type, kLevels); };
  const bool byte_level = is("ByteLevel");
  if (!byte_level && !is("ByteFallback") && !is("Metaspace")) return std::nullopt;
  if (vocabulary > int64_t{kMostTokenizerItems}) return std::nullopt;
  std::vector<std::string> pieces(static_cast<size_t>(vocabulary));
  const JsonField words = root.member("model").member("vocab");
  if (!words.is_object()) return std::nullopt;
  for (const auto& [piece, number] : words.members()) add_piece(pieces, number, piece);
  if (const auto added = root.optional_member("added_tokens")) {
    for (const JsonField& token : added->items(true))
      add_piece(pieces, token.member("id"), token.member("content").any_text());
  }
  return TokenTexts(byte_level ? TokenSpelling::byte_level : TokenSpelling::sentencepiece, std::move(pieces));
}

}  // namespace kvbound::traces
