// Synthetic traces of any size, whose keys and queries are constructed so that attention weights have a known
// shape. The same options give the same file, bit by bit, on every platform and for any number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>

namespace kvbound::traces {

/// An option of `generate` that is out of range, or inconsistent with another option.
class InvalidOption : public Error {
 public:
  using Error::Error;
};

/// The shape of a synthetic head's attention weights.
enum class AttentionKind { power_law, flat, sink, needle, tied, mixed };

struct AttentionKindTraits {
  AttentionKind kind;
  std::string_view name;
  std::string_view description;
};

inline constexpr std::array<AttentionKindTraits, 6> kAttentionKinds{{
    {AttentionKind::power_law, "power-law", "weights fall like a power of their rank: sparse heads"},
    {AttentionKind::flat, "flat", "nearly equal weights: dense heads"},
    {AttentionKind::sink, "sink", "the first 4 tokens take most of the weight and have tiny values"},
    {AttentionKind::needle, "needle",
     "4 positions hold nearly all the weight, the same ones for every query"},
    {AttentionKind::tied, "tied", "sets of 4 equal keys, hence tied scores; half of them with equal values"},
    {AttentionKind::mixed, "mixed", "the heads cycle through all of the above"},
}};

constexpr std::string_view name(AttentionKind kind) {
  return kAttentionKinds[static_cast<size_t>(kind)].name;
}

constexpr std::optional<AttentionKind> attention_kind_named(std::string_view name) {
  for (const AttentionKindTraits& candidate : kAttentionKinds) {
    if (candidate.name == name) return candidate.kind;
  }
  return std::nullopt;
}

struct GenerateOptions {
  AttentionKind kind = AttentionKind::power_law;
  int64_t tokens = 4096;  ///< of the prompt
  int64_t decode = 32;    ///< decode steps after it
  int64_t layers = 2;
  int64_t query_heads = 8;
  int64_t kv_heads = 2;  ///< divides query_heads
  int64_t head_dim = 64;
  int64_t model_dim = 512;
  int64_t window_queries = 32;  ///< recorded prompt queries, at most `tokens`
  Dtype dtype = Dtype::f32;     ///< F64, F32, F16 or BF16
  uint64_t seed = 1;
};

/// An integer option; --name on the command line.
struct CountOption {
  std::string_view name;
  int64_t GenerateOptions::*value;
  int64_t least;
  int64_t most;
  std::string_view description;
};

inline constexpr std::array<CountOption, 8> kCountOptions{{
    {"tokens", &GenerateOptions::tokens, 1, 131072, "tokens of the prompt"},
    {"decode", &GenerateOptions::decode, 0, 131072, "decode steps"},
    {"layers", &GenerateOptions::layers, 1, 4096, "layers"},
    {"query-heads", &GenerateOptions::query_heads, 1, 4096, "query heads, a multiple of kv-heads"},
    {"kv-heads", &GenerateOptions::kv_heads, 1, 4096, "KV heads"},
    {"head-dim", &GenerateOptions::head_dim, 1, 16384, "length of keys, values and queries"},
    {"model-dim", &GenerateOptions::model_dim, 1, 1048576, "columns of the output projection"},
    {"window-queries", &GenerateOptions::window_queries, 1, 131072,
     "prompt queries recorded, at most tokens"},
}};

/// The command that generates a trace with these options, without the output file;
/// stored as the trace's source.
std::string canonical_command(const GenerateOptions& options);

/// Writes a synthetic trace to `path`, a block of rows at a time.
///
/// Per KV head, u is a random unit vector, N the number of all tokens including decoded ones, and r_j the
/// rank of token j in a random order of them. mu, xi, eta and nu are near-normal of unit variance, the first
/// three without their components along u; E is exponential of mean 1; D is head_dim:
///
///     key_j   = z_j u + mu + xi_j/2         mu is common to all tokens: cosines of keys are around 0.8
///     value_j = (1/2 + E_j/2) xi'_j         sinks: xi'_j/50
///     z_j     = p ln(N/r_j) + nu_j/20       the intended logit of token j; r_j^-p is its weight
///
/// and per query head h and position x, with sharpness a in [0.88, 1.13) varying by head and query:
///
///     query_x = sqrt(D) a u + 0.6 b (mu'_h + eta_x)
///
/// so that query_x . key_j/sqrt(D) is a z_j, plus noise of standard deviation 0.42 b, plus a term common to
/// all j: weights fall as the power a p of their rank. Per kind:
///
///     power-law  p in [1, 1.4) by head, b = 1
///     flat       p = 0, b = 1/10: the logits' standard deviation is about 0.07
///     sink       p = 1/2, b = 1; tokens i = 0..3 have z_i = 1.2 ln N + 1.5 - i
///     needle     as flat, but 4 random tokens, i = 0..3, have z_i = 1.3 ln N + 2 - i/2: one from each
///                quarter of the positions that the first recorded query sees, or of the first half of the
///                prompt if that has more positions
///     tied       as power-law, but token j has the key of token j - j mod 64 + j mod 16; if j is even, its
///                value too
///     mixed      KV head h of layer l is of kind (l * kv_heads + h) mod 5 of the above
///
/// The output projection is normal, divided by sqrt(query_heads * head_dim). With head_dim 1 there is no
/// direction orthogonal to u, so the noise vanishes.
///
/// progress  if not empty, called after each block with the bytes of tensor data written, and their total
/// throws    InvalidOption for options out of range; IoError if the file cannot be
///           written; no file is left then
void generate(const GenerateOptions& options, const std::string& path,
              const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace kvbound::traces
