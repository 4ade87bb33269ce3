#include "topk.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/sim/diff/judge/near_tie.hpp>

#include "input_digest.hpp"

namespace kvbound::sim {
namespace {

using traces::TensorEntry;

// The verdict on one row's selection.
struct SelectedRow {
  int64_t selected = 0;  // entries in it
  int64_t wrong = 0;     // of them, or missing
  int64_t ties = 0;      // settled otherwise than by the smaller index
  bool decides = false;  // whether another selection could have been found wrong
  bool descends = true;
  std::string inputs = {};  // a digest
  std::optional<Offender> worst = {};
};

class TopkCheck {
 public:
  explicit TopkCheck(CheckFile& file)
      : file_(file),
        scores_(file.real("scores", {"rows", "n"})),
        rows_(file.length("rows")),
        n_(file.length("n")),
        indices_(file.integers(file.integral("indices", {"rows", "k"}))),
        k_(file.length("k")) {
    const traces::MetadataFields options = file.options();
    if (file.has("lengths")) {
      const TensorEntry& entry = file.integral("lengths", {"rows"});
      lengths_ = file.integers(entry);
      for (const int64_t length : lengths_) {
        if (length < 0 || length > n_)
          file.refuse(entry, "", fmt::format("has the length {}; scores has n = {}", length, n_));
      }
    }
    if (file.has("score_error") && options.has("score_error"))
      options.fail("score_error", "is a tensor, too; expected one of them");
    if (file.has("score_error")) errors_ = &file.real("score_error", {"rows", "n"});
    if (options.has("score_error")) error_ = options.not_negative("score_error");
    if (options.has("order")) {
      descending_ = options.text("order") == "descending";
      if (!descending_ && options.text("order") != "any") options.refuse("order", "any or descending");
    }
  }

  CheckResult judge(const std::function<void(int64_t, int64_t)>& progress) {
    constexpr int64_t kRowsAtOnce = 64;  // between two reports of progress
    std::vector<SelectedRow> verdicts(static_cast<size_t>(rows_));
    for (int64_t first = 0; first < rows_; first += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, rows_ - first);
      reference::parallel_for(count, [&](int64_t i) { verdicts[first + i] = judge_row(first + i); });
      if (progress) progress(first + count, rows_);
    }
    return summary(verdicts);
  }

 private:
  std::vector<double> numbers(const TensorEntry& entry, int64_t row, int64_t length) const {
    std::vector<double> result(static_cast<size_t>(length));
    file_.tensors().read(entry, row * n_, result, traces::NonFiniteNumbers::allowed);
    const auto bad = std::ranges::find_if(result, [](double number) { return std::isnan(number); });
    if (bad != result.end()) {
      const int64_t element = row * n_ + (bad - result.begin());
      file_.refuse(entry, "", fmt::format("element {} is NaN; expected a number", element));
    }
    return result;
  }

  std::vector<double> errors_of(int64_t row, int64_t length) const {
    if (!errors_) return std::vector<double>(static_cast<size_t>(length), error_);
    std::vector<double> result = numbers(*errors_, row, length);
    const auto bad = std::ranges::find_if(result, [](double error) { return error < 0; });
    if (bad != result.end())
      file_.refuse(*errors_, "", fmt::format("has the error {}; expected 0 or more", *bad));
    return result;
  }

  Offender offender(int64_t row, int64_t slot, int64_t claimed, std::string note) const {
    return {{row, slot}, static_cast<double>(claimed), -1, 0, 0, Dtype::i64, std::move(note)};
  }

  SelectedRow judge_row(int64_t row) const {
    const int64_t length = lengths_.empty() ? n_ : lengths_[row], wanted = std::min(k_, length);
    const std::span slots =
        std::span(indices_).subspan(static_cast<size_t>(row * k_), static_cast<size_t>(k_));
    const std::vector<double> scores = numbers(scores_, row, length), errors = errors_of(row, length);
    SelectedRow verdict;
    verdict.inputs = InputDigest().add(fmt::format("{} {}", k_, wanted)).add({length}, scores).text();
    std::vector<int64_t> selected;
    if (!take(row, slots, length, selected, verdict)) return verdict;
    verdict.selected = std::ssize(selected);
    if (verdict.selected != wanted) {
      verdict.wrong = std::abs(wanted - verdict.selected);
      verdict.worst = offender(row, std::min(verdict.selected, k_ - 1), -1,
                               fmt::format("holds {} entries; expected {}", verdict.selected, wanted));
      return verdict;
    }
    judge_order(row, selected, scores, errors, verdict);
    std::ranges::sort(selected);
    judge_set(row, selected, {scores, errors}, verdict);
    return verdict;
  }

  // Collects the selected entries; false, with a fault in the verdict, if they are no
  // set of entries of the row.
  bool take(int64_t row, std::span<const int64_t> slots, int64_t length, std::vector<int64_t>& selected,
            SelectedRow& verdict) const {
    std::vector<bool> taken(static_cast<size_t>(length));
    bool ended = false;
    const auto wrong = [&](int64_t slot, std::string note) {
      if (verdict.wrong++ == 0) verdict.worst = offender(row, slot, slots[slot], std::move(note));
    };
    for (int64_t slot = 0; slot < k_; ++slot) {
      const int64_t entry = slots[slot];
      if (entry == -1) {
        ended = true;
      } else if (entry < 0 || entry >= length) {
        wrong(slot, fmt::format("is {}; the row has {}", entry,
                                length == 0 ? "no entries" : fmt::format("entries 0 to {}", length - 1)));
      } else if (ended) {
        wrong(slot, fmt::format("is {} behind a slot without an entry", entry));
      } else if (taken[entry]) {
        wrong(slot, fmt::format("is {}, which the row holds already", entry));
      } else {
        taken[entry] = true;
        selected.push_back(entry);
      }
    }
    return verdict.wrong == 0;
  }

  void judge_order(int64_t row, std::span<const int64_t> selected, VectorView scores, VectorView errors,
                   SelectedRow& verdict) const {
    // The slot whose score, as the kernel may have seen it, is the smallest so far.
    size_t least = 0;
    const auto most = [&](size_t slot) { return scores[selected[slot]] + errors[selected[slot]]; };
    for (size_t slot = 1; slot < selected.size(); ++slot) {
      const int64_t a = selected[least], b = selected[slot];
      if (scores[b] - scores[a] > errors[a] + errors[b]) {
        verdict.descends = false;
        if (!descending_) return;
        ++verdict.wrong;
        if (verdict.worst) continue;
        verdict.worst = offender(
            row, static_cast<int64_t>(least), a,
            fmt::format("score {} stands before {}, the score of entry {}", scores[a], scores[b], b));
      }
      if (most(slot) < most(least)) least = slot;
    }
  }

  void judge_set(int64_t row, std::span<const int64_t> selected, const UncertainScores& scores,
                 SelectedRow& verdict) const {
    verdict.decides = selected.size() == scores.scores.size() || separates(scores);
    if (const auto fault = top_k_fault(scores, selected)) {
      const auto slots = std::span(indices_).subspan(static_cast<size_t>(row * k_), static_cast<size_t>(k_));
      const int64_t slot = std::ranges::find(slots, fault->chosen) - slots.begin();
      verdict.wrong += fault->faulty;
      verdict.worst =
          offender(row, slot, fault->chosen,
                   fmt::format("is {} rather than {}, {}; {} of {} entries are wrong", fault->chosen,
                               fault->better, text_of(*fault), fault->faulty, selected.size()));
      verdict.worst->expected = static_cast<double>(fault->better);
      verdict.worst->error = fault->excess();
      verdict.worst->bound = fault->band;
      return;
    }
    std::vector<int64_t> best(scores.scores.size());
    std::iota(best.begin(), best.end(), 0);
    std::ranges::nth_element(best, best.begin() + std::ssize(selected), [&](int64_t a, int64_t b) {
      return scores.scores[a] != scores.scores[b] ? scores.scores[a] > scores.scores[b] : a < b;
    });
    best.resize(selected.size());
    std::ranges::sort(best);
    verdict.ties = std::ssize(difference(selected, best));
  }

  CheckResult summary(const std::vector<SelectedRow>& verdicts) const {
    TensorAgreement indices;
    indices.tensor = "indices";
    indices.near_tie_swaps = 0;
    int64_t wrong_rows = 0, unordered = 0, most = 0;
    for (const SelectedRow& verdict : verdicts) {
      indices.elements += k_;
      indices.judged += verdict.decides || verdict.wrong > 0 ? k_ : 0;
      indices.outside += verdict.wrong;
      *indices.near_tie_swaps += verdict.ties;
      wrong_rows += verdict.wrong > 0;
      unordered += !verdict.descends;
      if (verdict.wrong <= most) continue;
      most = verdict.wrong;
      indices.worst = verdict.worst;
    }
    std::vector<CheckFigure> figures{{"rows", rows_},
                                     {"rows wrong", wrong_rows},
                                     {"wrong entries in the worst row", most},
                                     {"ties settled otherwise", *indices.near_tie_swaps},
                                     {"rows in descending order", rows_ - unordered}};
    return {{indices}, std::nullopt, figures, cases(verdicts)};
  }

  CheckCases cases(const std::vector<SelectedRow>& verdicts) const {
    CheckCases cases{"row", {}};
    std::vector<int64_t> begins(verdicts.size() + 1);
    std::iota(begins.begin(), begins.end(), 0);
    JudgedRows rows{{{rows_, k_}, indices_}, RowLayout::uniform({rows_}, rows_ * k_), {}, {}};
    for (const SelectedRow& verdict : verdicts) {
      cases.inputs.push_back(verdict.inputs);
      rows.wrong.push_back(verdict.wrong > 0);
      rows.undecided.push_back(!verdict.decides);
    }
    cases.rows.push_back({"indices", std::move(rows), std::move(begins)});
    return cases;
  }

  CheckFile& file_;
  const TensorEntry& scores_;
  int64_t rows_, n_;
  std::vector<int64_t> indices_;
  int64_t k_;
  std::vector<int64_t> lengths_;         // empty: n for all
  const TensorEntry* errors_ = nullptr;  // null: error_ for all
  double error_ = 0;
  bool descending_ = false;
};

}  // namespace

CheckResult check_topk(CheckFile& file, const std::function<void(int64_t, int64_t)>& progress) {
  return TopkCheck(file).judge(progress);
}

}  // namespace kvbound::sim
