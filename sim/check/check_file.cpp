#include "check_file.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

using traces::printable;
using traces::TensorEntry;

namespace {

// Settings of attention kernels that change what they compute, by the names that libraries give them.
constexpr std::array<std::string_view, 20> kUnsupported{
    "alibi_slopes",    "attention_bias", "attn_bias",         "attn_mask", "bias",
    "custom_mask",     "dropout",        "k_scale",           "kv_scale",  "logits_cap",
    "logits_soft_cap", "mask",           "pos_encoding_mode", "q_scale",   "rope_scale",
    "rope_theta",      "sinks",          "soft_cap",          "softcap",   "v_scale"};

bool is_unsupported(std::string_view name) {
  return std::ranges::find(kUnsupported, name) != kUnsupported.end();
}

}  // namespace

CheckFile::CheckFile(const std::string& path, int64_t header_limit,
                     const std::map<std::string, std::string>& options)
    : tensors_(traces::open_tensors(path, header_limit)), options_(tensors_->metadata()) {
  options_.path = path;
  for (const auto& [name, text] : options) options_.strings.insert_or_assign(name, text);
}

const TensorEntry& CheckFile::find(const std::string& name) {
  read_.insert(name);
  if (const TensorEntry* entry = tensors_->find(name)) return *entry;
  std::vector<std::string> names;
  for (const TensorEntry& entry : tensors_->tensors()) names.push_back(printable(entry.name));
  throw TraceError(path(), -1, name,
                   fmt::format("this tensor is missing; the file has {}",
                               names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
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
  if (!fits) {
    refuse(entry, ".shape",
           fmt::format("is {}; expected [{}]{}{}", traces::shape_text(entry.shape), fmt::join(names, ", "),
                       reasons.empty() ? "" : " with ", fmt::join(reasons, ", ")));
  }
  for (size_t d = 0; d < shape.size(); ++d)
    lengths_.try_emplace(shape[d].name, entry.shape[d], printable(entry.name));
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
  if (!fits) {
    refuse(entry, "",
           fmt::format("is not offsets that ascend from 0 to {}{}", exactly ? "" : "at most ", most));
  }
  return offsets;
}

void CheckFile::refuse(const TensorEntry& entry, const std::string& field, const std::string& problem) const {
  throw TraceError(path(), entry.header_offset, printable(entry.name) + field, problem);
}

std::vector<std::string> CheckFile::not_read(const std::set<std::string>& known_options) const {
  std::vector<std::string> names;
  for (const TensorEntry& entry : tensors_->tensors()) {
    if (read_.contains(entry.name)) continue;
    if (is_unsupported(entry.name))
      refuse(entry, "", "changes what attention computes, in a way that this check does not know");
    names.push_back(printable(entry.name));
  }
  for (const auto& [name, text] : tensors_->metadata().strings) {
    if (known_options.contains(name)) continue;
    if (is_unsupported(name))
      options().fail(name, "changes what attention computes, in a way that this check does not know");
    names.push_back(printable(name));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace kvbound::sim
