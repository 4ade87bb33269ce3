#include "synthetic_heads.hpp"

#include <algorithm>
#include <cmath>

namespace kvbound::traces {

namespace {

constexpr int64_t kLandmarks = 4;   // sinks or needles per head
constexpr int64_t kTieBlock = 64;   // tied tokens lie in one block of this many,
constexpr int64_t kTieStride = 16;  // this many apart

/// The random quantities; each has separate streams. Changing a number changes every generated file.
enum class Draw : uint64_t {
  direction = 1,
  exponent = 2,
  needle = 3,
  rank = 4,
  logit_noise = 5,
  key_mean = 6,
  key = 7,
  value_size = 8,
  value = 9,
  head_sharpness = 10,
  query_sharpness = 11,
  query_mean = 12,
  query = 13,
  projection = 14,
};

Stream stream(const GenerateOptions& options, int64_t layer, int64_t head, Draw draw) {
  return Stream(options.seed)
      .child(static_cast<uint64_t>(layer))
      .child(static_cast<uint64_t>(head))
      .child(static_cast<uint64_t>(draw));
}

/// Writes row `index` of the unbounded matrix of near-normal numbers that `random` defines.
void fill_normal(const Stream& random, int64_t index, std::span<double> row) {
  const uint64_t first = static_cast<uint64_t>(index) * row.size();
  for (size_t i = 0; i < row.size(); ++i) row[i] = random.normal(first + i);
}

std::vector<double> normal_vector(const Stream& random, int64_t size) {
  std::vector<double> vector(size);
  fill_normal(random, 0, vector);
  return vector;
}

/// A vector with components of random sign and of magnitudes uniform in (1/2, 3/2), normalised to length 1.
std::vector<double> unit_vector(const Stream& random, int64_t size) {
  std::vector<double> vector(size);
  double squares = 0;
  for (size_t i = 0; i < vector.size(); ++i) {
    const double magnitude = 0.5 + random.uniform(2 * i);
    vector[i] = random.bits(2 * i + 1) >> 63 ? -magnitude : magnitude;
    squares += magnitude * magnitude;
  }
  const double length = std::sqrt(squares);
  for (double& component : vector) component /= length;
  return vector;
}

/// Changes `row` along the unit vector `direction` so that their dot product is `component`.
void set_component(std::span<double> row, VectorView direction, double component) {
  double present = 0;
  for (size_t i = 0; i < row.size(); ++i) present += row[i] * direction[i];
  const double change = component - present;
  for (size_t i = 0; i < row.size(); ++i) row[i] += change * direction[i];
}

int64_t all_tokens(const GenerateOptions& options) { return options.tokens + options.decode; }

std::vector<Landmark> sinks(const GenerateOptions& options) {
  const int64_t tokens = all_tokens(options);
  const double logit = 1.2 * natural_log(static_cast<double>(tokens)) + 1.5;
  std::vector<Landmark> landmarks;
  for (int64_t i = 0; i < std::min(kLandmarks, tokens); ++i) {
    landmarks.push_back({.token = i, .logit = logit - static_cast<double>(i), .value_size = 0.02});
  }
  return landmarks;
}

std::vector<Landmark> needles(const GenerateOptions& options, const Stream& random) {
  const double logit = 1.3 * natural_log(static_cast<double>(all_tokens(options))) + 2;
  const int64_t region = std::max(options.tokens - options.window_queries + 1, (options.tokens + 1) / 2);
  const int64_t count = std::min(kLandmarks, region);
  std::vector<Landmark> landmarks;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = region * i / count;
    const int64_t size = region * (i + 1) / count - first;
    const uint64_t chosen = random.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(size);
    landmarks.push_back(
        {.token = first + static_cast<int64_t>(chosen), .logit = logit - 0.5 * static_cast<double>(i)});
  }
  return landmarks;
}

AttentionKind kind_of_head(const GenerateOptions& options, int64_t layer, int64_t head) {
  if (options.kind != AttentionKind::mixed) return options.kind;
  constexpr auto kUnmixed = static_cast<int64_t>(AttentionKind::mixed);
  return static_cast<AttentionKind>((layer * options.kv_heads + head) % kUnmixed);
}

HeadDesign design_of_head(const GenerateOptions& options, int64_t layer, int64_t head) {
  const AttentionKind kind = kind_of_head(options, layer, head);
  HeadDesign design;
  if (kind == AttentionKind::power_law || kind == AttentionKind::tied) {
    design.exponent = 1 + 0.4 * stream(options, layer, head, Draw::exponent).uniform(0);
    design.tied = kind == AttentionKind::tied;
  } else if (kind == AttentionKind::sink) {
    design.exponent = 0.5;
    design.landmarks = sinks(options);
  } else {
    design.query_noise = 0.1;
    if (kind == AttentionKind::needle) {
      design.landmarks = needles(options, stream(options, layer, head, Draw::needle));
    }
  }
  return design;
}

int64_t first_of_tied(int64_t token) { return token - token % kTieBlock + token % kTieStride; }

}  // namespace

SyntheticKvHead::SyntheticKvHead(const GenerateOptions& options, int64_t layer, int64_t head)
    : design_(design_of_head(options, layer, head)),
      direction_(unit_vector(stream(options, layer, head, Draw::direction), options.head_dim)),
      key_mean_(normal_vector(stream(options, layer, head, Draw::key_mean), options.head_dim)),
      tokens_(all_tokens(options)),
      rank_(stream(options, layer, head, Draw::rank), tokens_),
      logit_noise_(stream(options, layer, head, Draw::logit_noise)),
      key_(stream(options, layer, head, Draw::key)),
      value_size_(stream(options, layer, head, Draw::value_size)),
      value_(stream(options, layer, head, Draw::value)) {}

const Landmark* SyntheticKvHead::landmark(int64_t token) const {
  const auto found = std::ranges::find(design_.landmarks, token, &Landmark::token);
  return found == design_.landmarks.end() ? nullptr : &*found;
}

double SyntheticKvHead::logit(int64_t token) const {
  if (const Landmark* special = landmark(token)) return special->logit;
  const double rank = static_cast<double>(rank_(token) + 1);
  return design_.exponent * natural_log(static_cast<double>(tokens_) / rank) +
         0.05 * logit_noise_.normal(static_cast<uint64_t>(token));
}

void SyntheticKvHead::fill_key(int64_t token, std::span<double> key) const {
  const int64_t source = design_.tied ? first_of_tied(token) : token;
  fill_normal(key_, source, key);
  for (size_t i = 0; i < key.size(); ++i) key[i] = key_mean_[i] + 0.5 * key[i];
  set_component(key, direction_, logit(source));
}

void SyntheticKvHead::fill_value(int64_t token, std::span<double> value) const {
  const bool shared = design_.tied && token % 2 == 0;
  const int64_t source = shared ? first_of_tied(token) : token;
  const Landmark* special = landmark(token);
  const double size =
      special ? special->value_size : 0.5 + 0.5 * value_size_.exponential(static_cast<uint64_t>(source));
  fill_normal(value_, source, value);
  for (double& component : value) component *= size;
}

SyntheticQueryHead::SyntheticQueryHead(const GenerateOptions& options, int64_t layer, int64_t head,
                                       const SyntheticKvHead& kv_head)
    : direction_(kv_head.direction()),
      query_mean_(normal_vector(stream(options, layer, head, Draw::query_mean), options.head_dim)),
      noise_(0.6 * kv_head.design().query_noise),
      sharpness_(std::sqrt(static_cast<double>(options.head_dim)) *
                 (0.92 + 0.16 * stream(options, layer, head, Draw::head_sharpness).uniform(0))),
      query_sharpness_(stream(options, layer, head, Draw::query_sharpness)),
      query_(stream(options, layer, head, Draw::query)) {}

void SyntheticQueryHead::fill_query(int64_t position, std::span<double> query) const {
  fill_normal(query_, position, query);
  for (size_t i = 0; i < query.size(); ++i) query[i] = noise_ * (query_mean_[i] + query[i]);
  const double variation = 0.96 + 0.08 * query_sharpness_.uniform(static_cast<uint64_t>(position));
  set_component(query, direction_, sharpness_ * variation);
}

SyntheticProjection::SyntheticProjection(const GenerateOptions& options, int64_t layer)
    : size_(1 / std::sqrt(static_cast<double>(options.query_heads * options.head_dim))),
      projection_(stream(options, layer, 0, Draw::projection)) {}

void SyntheticProjection::fill_row(int64_t row, std::span<double> projection) const {
  fill_normal(projection_, row, projection);
  for (double& number : projection) number *= size_;
}

}  // namespace kvbound::traces
