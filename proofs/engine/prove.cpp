#include "prove.hpp"

#include <algorithm>
#include <exception>

#include <kvbound/reference/core/parallel.hpp>

namespace kvbound::proofs {
namespace {

// Cases drawn and then checked at a time: few, because the
// search for a weakened claim ends at its first counterexample.
constexpr int64_t kBatch = 64;

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

rc::Shrinkable<Instance> draw(const rc::Gen<Instance>& generator, const Property& property, int64_t index,
                              uint64_t seed) {
  const rc::Random random(rc::Random::Key{seed, fnv1a(property.id), static_cast<uint64_t>(index), 0});
  return generator(random, static_cast<int>(index % (rc::kNominalSize + 1)));
}

// Shrinks a counterexample: replaces it by its first simpler instance that fails in the same way (violated or
// undecided), until there is none.
Counterexample shrunk(const Property& property, rc::Shrinkable<Instance> failing, int64_t found_at) {
  const Outcome first = check(property, failing.value());
  Counterexample result{failing.value(), first.failure(), first.undecided(), found_at, 0};
  for (bool simpler_fails = true; simpler_fails;) {
    simpler_fails = false;
    auto shrinks = failing.shrinks();
    while (const auto next = shrinks.next()) {
      const Outcome outcome = check(property, next->value());
      if (outcome.holds() || outcome.undecided() != first.undecided()) continue;
      result = {next->value(), outcome.failure(), outcome.undecided(), found_at, result.shrinks + 1};
      failing = *next;
      simpler_fails = true;
      break;
    }
  }
  return result;
}

// The outcome and the regimes of one case.
struct Case {
  Case() = default;
  Case(const Property& property, std::span<const Regime> tried, const Instance& instance)
      : outcome(check(property, instance)) {
    for (const Regime regime : tried) regimes.push_back(shows(instance, regime));
  }

  Outcome outcome;
  std::vector<bool> regimes;
};

void count(const Case& found, PropertyResult& result) {
  const Outcome& outcome = found.outcome;
  ++result.cases;
  result.reference_cases += outcome.reference_held();
  for (size_t i = 0; i < found.regimes.size(); ++i) result.regime_cases[i] += found.regimes[i];
  if (const auto ratio = outcome.ratio())
    result.tightest = std::max(result.tightest.value_or(*ratio), *ratio);
}

Verdict verdict_of(const PropertyResult& result) {
  if (result.counterexample && result.counterexample->undecided) return Verdict::undecided;
  if (result.weakened()) return result.counterexample ? Verdict::counterexample : Verdict::none_found;
  if (result.counterexample) return Verdict::violated;
  const auto rare = [&](int64_t cases) { return result.share(cases) < kRegimeShare; };
  return std::ranges::any_of(result.regime_cases, rare) ? Verdict::regimes_too_rare
                                                        : Verdict::no_counterexample;
}

}  // namespace

const char* name(Verdict verdict) {
  constexpr const char* kNames[] = {"no-counterexample",    "violated",
                                    "counterexample-found", "no-counterexample-found-where-one-must-exist",
                                    "regimes-too-rare",     "undecided"};
  return kNames[static_cast<size_t>(verdict)];
}

Outcome check(const Property& property, const Instance& instance) try {
  return property.check(instance);
} catch (const std::exception& error) {
  Outcome outcome;
  outcome.undecide(std::string("it could not be evaluated: ") + error.what());
  return outcome;
}

PropertyResult examine(const Theorem& theorem, const Property& property, int64_t cases, uint64_t seed,
                       const std::function<void(int64_t)>& progress) {
  PropertyResult result;
  result.theorem = &theorem;
  result.property = &property;
  result.regime_cases.resize(result.regimes().size());
  if (result.weakened()) cases = weakened_cases(cases);
  const rc::Gen<Instance> generator = instances(theorem.sizes);
  for (int64_t first = 0; first < cases && !result.counterexample; first += kBatch) {
    // rapidcheck draws on one thread; only the checks run in parallel.
    std::vector<rc::Shrinkable<Instance>> drawn;
    std::vector<Instance> batch;
    for (int64_t i = first; i < std::min(first + kBatch, cases); ++i)
      batch.push_back(drawn.emplace_back(draw(generator, property, i, seed)).value());
    std::vector<Case> found(batch.size());
    reference::parallel_for(std::ssize(batch),
                            [&](int64_t i) { found[i] = Case(property, result.regimes(), batch[i]); });
    for (size_t i = 0; i < batch.size() && !result.counterexample; ++i) {
      count(found[i], result);
      if (!found[i].outcome.holds()) result.counterexample = shrunk(property, drawn[i], result.cases);
    }
    if (progress) progress(result.cases);
  }
  result.verdict = verdict_of(result);
  return result;
}

}  // namespace kvbound::proofs
