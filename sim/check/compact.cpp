#include "compact.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/sim/diff/claims/input_rounding.hpp>
#include <kvbound/traces/kv_cache.hpp>
#include <kvbound/traces/number_in.hpp>
#include <kvbound/traces/widen.hpp>

#include "kv_tensors.hpp"

namespace kvbound::sim {
namespace {

using traces::TensorEntry;
using Rows = std::vector<int64_t>;

// Where `after` has the rows of each KV head, in rows of head_dim numbers.
class CompactedRows {
 public:
  CompactedRows(CheckFile& file, int64_t kv_heads, const Rows& kept_offsets)
      : file_(file), kv_heads_(kv_heads) {
    const TensorEntry* const found = file.tensors().find("after");
    if (file.has("kv_indices")) {
      find_paged(found && found->shape.size() == 4);
    } else if (found && found->shape.size() == 3) {
      find_dense(kept_offsets);
    } else {
      entry_ = &file.any("after", {{"kept rows", kept_offsets.back()}, "head_dim"});
      for (int64_t g = 0; g < kv_heads; ++g)
        add_head(kept_offsets[g], 1, kept_offsets[g + 1] - kept_offsets[g]);
    }
  }

  const TensorEntry& entry() const { return *entry_; }
  const Rows& of_head(int64_t kv_head) const { return rows_[kv_head]; }
  // The index of a row in `after`.
  std::vector<int64_t> index(int64_t row) const {
    std::vector<int64_t> index(entry_->shape.size() - 1);
    for (size_t d = index.size(); d-- > 0;) {
      index[d] = row % entry_->shape[d];
      row /= entry_->shape[d];
    }
    return index;
  }

 private:
  void add_head(int64_t first, int64_t step, int64_t count) {
    Rows& rows = rows_.emplace_back();
    for (int64_t i = 0; i < count; ++i) rows.push_back(first + i * step);
  }

  void find_dense(const Rows& kept_offsets) {
    entry_ = &file_.any("after", {"kv_heads", "m", "head_dim"});
    const int64_t m = file_.length("m");
    for (int64_t g = 0; g < kv_heads_; ++g) {
      const int64_t count = kept_offsets[g + 1] - kept_offsets[g];
      if (count > m)
        file_.refuse(*entry_, ".shape",
                     fmt::format("has room for {} rows a head; KV head {} keeps {}", m, g, count));
      add_head(g * m, 1, count);
    }
  }

  void find_paged(bool shared) {
    const bool hnd = kv_layout(file_.options()) == traces::KvLayout::hnd;
    Dimensions shape{"pages", "page_size", "head_dim"};
    if (shared) shape.insert(shape.begin() + (hnd ? 1 : 2), "kv_heads");
    entry_ = &file_.any("after", shape);
    const int64_t tables = shared ? 1 : kv_heads_, page_size = file_.length("page_size");
    const Rows pages = file_.integers(file_.integral("kv_indices", {{"page indices"}}));
    const Rows offsets =
        file_.offsets("kv_indptr", {{"page tables + 1", tables + 1}}, std::ssize(pages), false);
    const Rows last = file_.integers(file_.integral("kv_last_page_len", {{"page tables", tables}}));
    const traces::PageTable table{file_.path(), offsets, pages, last, page_size, file_.length("pages")};
    for (int64_t g = 0; g < kv_heads_; ++g) {
      const traces::KvSequence sequence = table.sequence(shared ? 0 : g, fmt::format("KV head {}", g));
      Rows& rows = rows_.emplace_back();
      for (int64_t i = 0; i < sequence.tokens; ++i) {
        const int64_t page = sequence.blocks[i / page_size], within = i % page_size;
        if (!shared)
          rows.push_back(page * page_size + within);
        else if (hnd)
          rows.push_back((page * kv_heads_ + g) * page_size + within);
        else
          rows.push_back((page * page_size + within) * kv_heads_ + g);
      }
    }
  }

  CheckFile& file_;
  int64_t kv_heads_;
  const TensorEntry* entry_ = nullptr;
  std::vector<Rows> rows_;
};

// What unused rows hold.
class Poison {
 public:
  Poison(CheckFile& file, Dtype dtype) : dtype_(dtype), size_(static_cast<size_t>(size_of(dtype))) {
    const traces::MetadataFields options = file.options();
    if (file.has("poison")) {
      if (options.has("poison")) options.fail("poison", "is a tensor, too; expected one of them");
      const TensorEntry& entry = file.any("poison", {"head_dim"});
      if (entry.dtype != dtype) {
        file.refuse(entry, ".dtype",
                    fmt::format("is {}; expected {}, that of before", name(entry.dtype), name(dtype)));
      }
      row_.resize(static_cast<size_t>(entry.bytes));
      file.tensors().read_bytes(entry, 0, row_);
    } else if (options.has("poison")) {
      const std::string number = element(options);
      for (int64_t i = 0; i < file.length("head_dim"); ++i) row_ += number;
    }
  }

  explicit operator bool() const { return is_nan_ || !row_.empty(); }

  bool is(std::string_view row) const {
    if (!is_nan_) return row == row_;
    std::vector<double> numbers(row.size() / size_);
    traces::widen(dtype_, row, numbers);
    return std::ranges::all_of(numbers, [](double number) { return std::isnan(number); });
  }

 private:
  // The bytes of one number, or none if that is any NaN.
  std::string element(const traces::MetadataFields& options) {
    const std::string& text = options.text("poison");
    if (text.starts_with("0x")) {
      uint64_t bits = 0;
      const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
      const bool fits = size_ == sizeof bits || bits >> (8 * size_) == 0;
      if (error == std::errc{} && end == text.data() + text.size() && fits) return bytes_of(bits);
    } else if (const auto number = traces::number_in<double>(text); number && is_real(dtype_)) {
      is_nan_ = std::isnan(*number);
      const double stored = rounded_to(*number, dtype_);
      if (is_nan_) return {};
      if (std::isfinite(stored) || std::isinf(*number)) return bytes_of(bits_of(stored));
    }
    options.refuse("poison", fmt::format("{}the bits of a number of {}, such as 0x7f",
                                         is_real(dtype_) ? "a number of that type, or " : "", name(dtype_)));
  }

  uint64_t bits_of(double number) const {
    if (dtype_ == Dtype::f16) return to_float16(number);
    if (dtype_ == Dtype::bf16) return to_bfloat16(number);
    if (dtype_ == Dtype::f32) return std::bit_cast<uint32_t>(static_cast<float>(number));
    return std::bit_cast<uint64_t>(number);
  }

  std::string bytes_of(uint64_t bits) const {
    std::string bytes;
    for (size_t byte = 0; byte < size_; ++byte) bytes += static_cast<char>(bits >> (8 * byte));
    return bytes;
  }

  Dtype dtype_;
  size_t size_;
  std::string row_;      // bytes
  bool is_nan_ = false;  // any NaN in every element, whatever its bits
};

class CompactCheck {
 public:
  explicit CompactCheck(CheckFile& file)
      : file_(file),
        before_(file.any("before", {"kv_heads", "n", "head_dim"})),
        kv_heads_(file.length("kv_heads")),
        n_(file.length("n")),
        row_bytes_(static_cast<size_t>(file.length("head_dim") * size_of(before_.dtype))),
        kept_(file.integers(file.integral("kept", {"kept rows"}))),
        offsets_(file.offsets("kept_offsets", {{"kv_heads + 1", kv_heads_ + 1}}, std::ssize(kept_))),
        rows_(file, kv_heads_, offsets_),
        poison_(file, before_.dtype) {
    require_same_type();
    require_sets();
    const traces::MetadataFields options = file.options();
    if (options.has("order")) order_ = options.text("order");
    if (order_ != "any" && order_ != "kept" && order_ != "ascending")
      options.refuse("order", "any, kept or ascending");
    before_bytes_.resize(static_cast<size_t>(before_.bytes));
    file.tensors().read_bytes(before_, 0, before_bytes_);
    after_bytes_.resize(static_cast<size_t>(rows_.entry().bytes));
    file.tensors().read_bytes(rows_.entry(), 0, after_bytes_);
  }

  CheckResult judge() {
    result_.tensor = "after";
    for (int64_t g = 0; g < kv_heads_; ++g) judge_head(g);
    const int64_t wrong = result_.outside, used = result_.elements;
    judge_unused();
    std::vector<CheckFigure> figures{{"kept rows", used}, {"rows wrong, missing or surplus", wrong}};
    if (poison_) {
      figures.push_back({"unused rows", result_.elements - used});
      figures.push_back({"unused rows written", result_.outside - wrong});
    }
    return {{result_}, std::nullopt, figures};
  }

 private:
  void require_same_type() const {
    const TensorEntry& after = rows_.entry();
    if (size_of(before_.dtype) == 0 || row_bytes_ == 0) file_.refuse(before_, "", "has no whole bytes");
    if (after.dtype == before_.dtype) return;
    file_.refuse(after, ".dtype",
                 fmt::format("is {}; expected {}, that of before", name(after.dtype), name(before_.dtype)));
  }

  void require_sets() const {
    for (int64_t g = 0; g < kv_heads_; ++g) {
      std::vector<bool> taken(static_cast<size_t>(n_));
      for (int64_t i = offsets_[g]; i < offsets_[g + 1]; ++i) {
        const int64_t position = kept_[i];
        const bool known = 0 <= position && position < n_;
        if (known && !taken[position]) {
          taken[position] = true;
          continue;
        }
        file_.refuse(
            *file_.tensors().find("kept"), "",
            fmt::format("element {} is {}; expected {}", i, position,
                        known ? "every position once in a KV head" : fmt::format("0 to {}", n_ - 1)));
      }
    }
  }

  std::string_view before(int64_t kv_head, int64_t position) const {
    return {before_bytes_.data() + static_cast<size_t>(kv_head * n_ + position) * row_bytes_, row_bytes_};
  }
  std::string_view after(int64_t row) const {
    return {after_bytes_.data() + static_cast<size_t>(row) * row_bytes_, row_bytes_};
  }

  void judge_head(int64_t g) {
    Rows kept(kept_.begin() + offsets_[g], kept_.begin() + offsets_[g + 1]);
    if (order_ == "ascending") std::ranges::sort(kept);
    const Rows& rows = rows_.of_head(g);
    const int64_t count = std::ssize(kept), outside = result_.outside;
    result_.elements += count;
    result_.outside += std::max<int64_t>(0, count - std::ssize(rows));
    if (count != std::ssize(rows)) {
      add_fault(rows.empty() ? 0 : rows.back(),
                fmt::format("KV head {} has {} rows; {} are kept", g, rows.size(), count));
    }
    if (order_ == "any") {
      judge_any_order(g, kept, rows);
    } else {
      result_.outside += std::max<int64_t>(0, std::ssize(rows) - count);
      for (int64_t i = 0; i < std::min(count, std::ssize(rows)); ++i) {
        if (after(rows[i]) != before(g, kept[i]))
          wrong_row(rows[i], fmt::format("not row {} of KV head {}", kept[i], g), g);
      }
    }
    result_.judged += any_rows_fit(g) && result_.outside == outside ? 0 : count;
  }

  // Whether any of the head's rows would be right in place of any other; of a single
  // row, whether zeros would.
  bool any_rows_fit(int64_t g) const {
    if (n_ == 1) return before(g, 0) == std::string(row_bytes_, '\0');
    for (int64_t j = 1; j < n_; ++j)
      if (before(g, j) != before(g, 0)) return false;
    return true;
  }

  void judge_any_order(int64_t g, const Rows& kept, const Rows& rows) {
    std::unordered_map<std::string_view, int64_t> wanted;
    for (const int64_t position : kept) ++wanted[before(g, position)];
    for (const int64_t row : rows) {
      const auto found = wanted.find(after(row));
      if (found != wanted.end() && found->second > 0) {
        --found->second;
      } else {
        wrong_row(row, found != wanted.end() ? "held already" : "not kept", g);
      }
    }
  }

  // Reports a row that should not be there, and which row of `before` it is.
  void wrong_row(int64_t row, const std::string& problem, int64_t kv_head) {
    ++result_.outside;
    if (result_.worst) return;
    for (int64_t i = 0; i < kv_heads_ * n_; ++i) {
      const int64_t g = (kv_head + i / n_) % kv_heads_;  // its own KV head first
      if (before(g, i % n_) != after(row)) continue;
      add_fault(row, fmt::format("holds row {} of KV head {}, which is {}", i % n_, g, problem));
      return;
    }
    add_fault(row, "holds no row of before");
  }

  void add_fault(int64_t row, std::string note) {
    if (!result_.worst) result_.worst = Offender{rows_.index(row), 0, 0, 0, 0, Dtype::i64, std::move(note)};
  }

  void judge_unused() {
    if (!poison_) return;
    const int64_t all = static_cast<int64_t>(after_bytes_.size() / row_bytes_);
    std::vector<bool> used(static_cast<size_t>(all));
    for (int64_t g = 0; g < kv_heads_; ++g) {
      for (const int64_t row : rows_.of_head(g)) used[row] = true;
    }
    for (int64_t row = 0; row < all; ++row) {
      if (used[row]) continue;
      ++result_.elements;
      ++result_.judged;
      if (poison_.is(after(row))) continue;
      ++result_.outside;
      add_fault(row, "is unused, but was written");
    }
  }

  CheckFile& file_;
  const TensorEntry& before_;
  int64_t kv_heads_, n_;
  size_t row_bytes_;
  Rows kept_, offsets_;
  CompactedRows rows_;
  Poison poison_;
  std::string order_ = "any";
  std::vector<char> before_bytes_, after_bytes_;
  TensorAgreement result_;
};

}  // namespace

CheckResult check_compact(CheckFile& file) { return CompactCheck(file).judge(); }

}  // namespace kvbound::sim
