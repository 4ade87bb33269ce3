// The texts of a model's tokens, by which people are shown what it decoded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvbound::traces {

class GgufFile;

/// How a tokenizer writes a token's bytes.
enum class TokenSpelling {
  bytes,          ///< the token's number is the byte
  byte_level,     ///< a printable character for each byte, as GPT-2 has them: U+0120 is a space
  sentencepiece,  ///< U+2581 is a space, <0x0A> a byte
};

class TokenTexts {
 public:
  /// pieces  by the token's number, as the tokenizer spells them; none of `bytes`
  TokenTexts(TokenSpelling spelling, std::vector<std::string> pieces)
      : spelling_(spelling), pieces_(std::move(pieces)) {}

  /// The bytes of these tokens, one behind the other, which need not be UTF-8; of
  /// tokens without a piece, none.
  std::string text(std::span<const int64_t> tokens) const;

 private:
  TokenSpelling spelling_;
  std::vector<std::string> pieces_;
};

/// Those of a GGUF file's metadata; nullopt if it has no tokenizer, or one of another kind than byte-level
/// BPE and SentencePiece. Throws TraceError for ill-formed ones.
std::optional<TokenTexts> token_texts(const GgufFile& file);

/// Those of a tokenizer.json, likewise. Throws IoError if it cannot be read.
///
/// vocabulary  tokens' numbers are below it
std::optional<TokenTexts> token_texts(const std::string& path, int64_t vocabulary);

}  // namespace kvbound::traces
