#include "check_file.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

using traces::printable;
using traces::TensorEntry;

namespace {

// Settings that change what attention computes, by the names that libraries give them.
constexpr std::array<std::string_view, 33> kUnsupported{"alibi_slopes",
                                                        "attention_bias",
                                                        "attention_mask",
                                                        "attn_bias",
                                                        "attn_mask",
                                                        "bias",
                                                        "block_mask",
                                                        "custom_mask",
                                                        "dropout",
                                                        "is_causal",
                                                        "k_descale",
                                                        "k_scale",
                                                        "key_padding_mask",
                                                        "kv_scale",
                                                        "logits_cap",
                                                        "logits_soft_cap",
                                                        "mask",
                                                        "pos_encoding_mode",
                                                        "q_descale",
                                                        "q_scale",
                                                        "rope_scale",
                                                        "rope_theta",
                                                        "s_aux",
                                                        "scale",
                                                        "sinks",
                                                        "sliding_window",
                                                        "soft_cap",
                                                        "softcap",
                                                        "softmax_scale",
                                                        "temperature",
                                                        "v_descale",
                                                        "v_scale",
                                                        "window_size"};
// What such a setting is where it changes nothing.
constexpr std::array<std::string_view, 7> kNeutral{"", "0", "0.0", "none", "None", "NONE", "false"};

template <size_t size>
bool holds(const std::array<std::string_view, size>& all, std::string_view name) {
  return std::ranges::find(all, name) != all.end();
}

// "a, b, c and 17 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 10;
  const std::span shown = std::span(names).first(std::min(kMost, names.size()));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

}  // namespace

CheckFile::CheckFile(const std::string& path, int64_t header_limit,
                     const std::map<std::string, std::string>& options)
    : CheckFile(traces::open_tensors(path, header_limit), options) {}

CheckFile::CheckFile(std::unique_ptr<traces::TensorFile> tensors,
                     const std::map<std::string, std::string>& options)
    : tensors_(std::move(tensors)), options_(tensors_->metadata()) {
  options_.path = tensors_->path();
  for (const auto& [name, text] : options) options_.strings.insert_or_assign(name, text);
}

const TensorEntry& CheckFile::find(const std::string& name) {
  read_.insert(name);
  if (const TensorEntry* entry = tensors_->find(name)) return *entry;
  if (const auto text = options_.strings.find(name); text != options_.strings.end()) {
    throw TraceError(path(), -1, name,
                     fmt::format("is {}; expected a tensor", traces::in_quotes(text->second)));
  }
  std::vector<std::string> names;
  for (const TensorEntry& entry : tensors_->tensors()) names.push_back(printable(entry.name));
  throw TraceError(path(), -1, name,
                   "this tensor is missing; the file has " + (names.empty() ? "none" : listed(names)));
}

const TensorEntry& CheckFile::real(const std::string& name, const Dimensions& shape) {
  const TensorEntry& entry = any(name, shape);
  if (!is_real(entry.dtype))
    refuse(entry, ".dtype", fmt::format("is {}; expected F64, F32, F16 or BF16", kvbound::name(entry.dtype)));
  return entry;
}

const TensorEntry& CheckFile::integral(const std::string& name, const Dimensions& shape) {
  const TensorEntry& entry = any(name, shape);
  if (entry.dtype != Dtype::i64 && entry.dtype != Dtype::i32)
    refuse(entry, ".dtype", fmt::format("is {}; expected I64 or I32", kvbound::name(entry.dtype)));
  return entry;
}

const TensorEntry& CheckFile::any(const std::string& name, const Dimensions& shape) {
  const TensorEntry& entry = find(name);
  require_shape(entry, shape);
  return entry;
}

void CheckFile::require_shape(const TensorEntry& entry, const Dimensions& shape) {
  std::vector<std::string> names, reasons;
  bool fits = entry.shape.size() == shape.size();
  for (size_t d = 0; d < shape.size(); ++d) {
    names.push_back(shape[d].name);
    const auto known = lengths_.find(shape[d].name);
    const std::optional<int64_t> expected = shape[d].length           ? shape[d].length
                                            : known == lengths_.end() ? std::nullopt
                                                                      : std::optional(known->second.first);
    if (!expected || (d < entry.shape.size() && entry.shape[d] == *expected)) continue;
    fits = false;
    reasons.push_back(shape[d].length ? fmt::format("{} = {}", shape[d].name, *expected)
                                      : fmt::format("{} = {} as {} has it", shape[d].name, *expected,
                                                    known->second.second));
  }
  require_plausible(entry);
  if (!fits) {
    refuse(entry, ".shape",
           fmt::format("is {}; expected [{}]{}{}", traces::shape_text(entry.shape), fmt::join(names, ", "),
                       reasons.empty() ? "" : " with ", fmt::join(reasons, ", ")));
  }
  for (size_t d = 0; d < shape.size(); ++d)
    lengths_.try_emplace(shape[d].name, entry.shape[d], printable(entry.name));
}

// Without numbers any shape fits into a file.
void CheckFile::require_plausible(const TensorEntry& entry) const {
  constexpr int64_t kMostEmpty = int64_t{1} << 24;
  if (entry.elements > 0) return;
  for (const int64_t length : entry.shape) {
    if (length > kMostEmpty) {
      refuse(entry, ".shape",
             fmt::format("is {}, but the tensor is empty; expected at most {}",
                         traces::shape_text(entry.shape), kMostEmpty));
    }
  }
}

RealClaim CheckFile::claim(const TensorEntry& entry) const {
  RealClaim claim{entry.shape, std::vector<double>(static_cast<size_t>(entry.elements)), entry.dtype};
  tensors_->read(entry, 0, std::span(claim.numbers), traces::NonFiniteNumbers::allowed);
  return claim;
}

std::vector<int64_t> CheckFile::integers(const TensorEntry& entry) const {
  std::vector<int64_t> numbers(static_cast<size_t>(entry.elements));
  tensors_->read(entry, 0, std::span(numbers));
  return numbers;
}

std::vector<int64_t> CheckFile::offsets(const std::string& name, const Dimensions& shape, int64_t most,
                                        bool exactly) {
  const TensorEntry& entry = integral(name, shape);
  std::vector<int64_t> offsets = integers(entry);
  const bool fits = !offsets.empty() && offsets.front() == 0 && std::ranges::is_sorted(offsets) &&
                    (exactly ? offsets.back() == most : offsets.back() <= most);
  require_plausible(entry);
  if (!fits) {
    refuse(entry, "",
           fmt::format("is not offsets that ascend from 0 to {}{}", exactly ? "" : "at most ", most));
  }
  return offsets;
}

void CheckFile::refuse(const TensorEntry& entry, const std::string& field, const std::string& problem) const {
  throw TraceError(path(), entry.header_offset, printable(entry.name) + field, problem);
}

void CheckFile::refuse_unsupported() const {
  constexpr const char* kProblem = "changes what attention computes, in a way that this check does not know";
  for (const TensorEntry& entry : tensors_->tensors()) {
    if (holds(kUnsupported, entry.name)) refuse(entry, "", kProblem);
  }
  for (const auto& [name, text] : tensors_->metadata().strings) {
    if (holds(kUnsupported, name) && !holds(kNeutral, text)) options().fail(name, kProblem);
  }
}

std::vector<std::string> CheckFile::not_read(const std::set<std::string>& known_options) const {
  std::vector<std::string> names;
  for (const TensorEntry& entry : tensors_->tensors()) {
    if (!read_.contains(entry.name)) names.push_back(printable(entry.name));
  }
  for (const auto& [name, text] : tensors_->metadata().strings) {
    if (!known_options.contains(name)) names.push_back(printable(name));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace kvbound::sim
