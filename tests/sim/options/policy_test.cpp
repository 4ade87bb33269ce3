#include <bit>
#include <cmath>
#include <sstream>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::policy_test {
namespace {

using test::integer;
using test::message_of;

constexpr const char* kCriticalText =
    "snapkv:window=32:pool=7+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1";

std::string refusal(const std::string& text) {
  return message_of<InvalidPolicy>([&] { parse_policy(text); });
}

TwoStage two_stage_of(const std::string& text) {
  const Policy policy = parse_policy(text);
  if (const auto* critical = std::get_if<Critical>(&policy.selection)) return *critical;
  return std::get<ThetaSweep>(policy.selection);
}

/// A finite number >= 0 of any magnitude.
rc::Gen<double> any_epsilon() {
  return rc::gen::map(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint64_t>()), [](uint64_t bits) {
    const double number = std::abs(std::bit_cast<double>(bits));
    return std::isfinite(number) ? number : 0.0;
  });
}

rc::Gen<int64_t> any_positive() { return integer(1, INT64_MAX - 1); }

TwoStage any_two_stage() {
  TwoStage options;
  options.alpha.reset();
  if (*integer(0, 3) > 0) {  // alpha has 15 decimals, or is 1
    std::string digits = std::to_string(*integer(0, 999999999999999));
    digits.insert(0, 15 - digits.size(), '0');
    options.alpha = parse_decimal(*integer(0, 9) == 0 ? "1" : "0." + digits);
  }
  options.epsilon = *any_epsilon();
  options.gqa = *integer(0, 1) == 0 ? GqaProduct::mean_of_products : GqaProduct::product_of_means;
  options.norm = *integer(0, 1) == 0 ? Norm::l1 : Norm::l2;
  return options;
}

Host any_host() {
  switch (*integer(0, 4)) {
    case 1:
      return *integer(0, 1) == 0 ? H2o{*any_positive(), *any_positive() - 1, {}}
                                 : H2o{*any_positive(), *any_positive() - 1, *any_positive() - 1};
    case 2:
      return Tova{*any_positive() - 1};
    case 3:
      return StreamingLlm{*any_positive() - 1};
    case 4:
      return RandomHost{*any_positive() - 1, *any_positive() - 1, *any_positive() - 1};
    default:
      return SnapKv{*any_positive(), 2 * *integer(0, INT64_MAX / 2) + 1};
  }
}

Score any_score() {
  const ChangeScore options{*integer(0, 1) == 0 ? Space::head : Space::projected};
  switch (*integer(0, 3)) {
    case 0:
      return ObcacheValue{options};
    case 1:
      return ObcacheKey{options};
    case 2:
      return ObcacheJoint{options};
    default:
      return ExactRemoval{options};
  }
}

Decimal any_share() { return *parse_decimal("0." + std::to_string(*integer(0, 999999999999999))); }

double any_below_one() { return static_cast<double>(*integer(0, (int64_t{1} << 53) - 1)) * 0x1p-53; }

Allocation any_allocation() {
  switch (*integer(0, 2)) {
    case 1:
      return AdaKv{any_share()};
    case 2:
      return Pyramid{*any_positive(), *integer(0, 1) == 0 ? Decay::linear : Decay::cosine};
    default:
      return Uniform{};
  }
}

PredictedScores any_prediction() {
  return {*integer(0, 1) == 0 ? Prediction::ema : Prediction::current, any_below_one(),
          *integer(0, 1) == 0 ? ScoreKind::attention : ScoreKind::raw,
          *integer(0, 1) == 0 ? Normalisation::exact : Normalisation::paper};
}

KeepKv any_keep_kv() {
  KeepKv options;
  options.prediction = any_prediction();
  options.key = static_cast<MergedKey>(*integer(0, 2));
  options.gqa = *integer(0, 1) == 0 ? MergeGqa::joint : MergeGqa::mean;
  if (options.key == MergedKey::zip) options.gqa = MergeGqa::mean;
  options.rank = *integer(0, 9) == 0 ? 1 : any_below_one();
  options.order = *integer(0, 1) == 0 ? MergeOrder::evict_first : MergeOrder::merge_first;
  if (*integer(0, 1) == 0) options.period = *any_positive();
  return options;
}

Merge any_merge() {
  const SimilarTarget target{*integer(0, 3) == 0 ? std::nullopt : std::optional(any_share())};
  switch (*integer(0, 5)) {
    case 1: {
      KeepKv options = any_keep_kv();
      options.threshold = target.threshold;
      return options;
    }
    case 2:
      return ConvexMerge{target, any_prediction(), *integer(0, 1) == 0 ? MergeGqa::joint : MergeGqa::mean};
    case 3:
      return D2o{target};
    case 4:
      return Cam{*any_positive(), *any_positive() - 1};
    case 5:
      return KvMerger{target};
    default:
      return NoMerge{};
  }
}

Selection any_selection(const Host& host) {
  switch (*integer(0, 3)) {
    case 1:
      return Critical{any_two_stage()};
    case 2:
      return ThetaSweep{any_two_stage()};
    case 3:
      if (std::holds_alternative<SnapKv>(host)) return Greedy();
      return TopK();
    default:
      return TopK();
  }
}

// A random policy; combinations that are refused are not drawn.
Policy any_policy() {
  Policy policy;
  policy.host = any_host();
  policy.allocation = any_allocation();
  policy.merge = any_merge();
  const bool is_ranked = ranks(policy.host);
  if (is_ranked) {
    policy.selection = any_selection(policy.host);
    if (std::holds_alternative<TopK>(policy.selection) && *integer(0, 1) == 0) policy.score = any_score();
  } else if (std::holds_alternative<AdaKv>(policy.allocation)) {
    policy.allocation = Uniform();
  }
  auto* keep_kv = std::get_if<KeepKv>(&policy.merge);
  if (keep_kv == nullptr) return policy;
  if (!is_ranked || std::holds_alternative<Greedy>(policy.selection)) keep_kv->period.reset();
  if (!is_ranked || !std::holds_alternative<TopK>(policy.selection) ||
      !std::holds_alternative<AttentionScore>(policy.score)) {
    keep_kv->order = MergeOrder::evict_first;
  }
  return policy;
}

RC_GTEST_PROP(PolicyText, OfAnyPolicyReadsBackAsThatPolicy, ()) {
  const Policy policy = any_policy();
  RC_CLASSIFY(std::holds_alternative<TopK>(policy.selection), "top-k");
  RC_CLASSIFY(std::holds_alternative<H2o>(policy.host), "h2o");
  RC_CLASSIFY(!std::holds_alternative<AttentionScore>(policy.score), "another score than attention");
  RC_CLASSIFY(!std::holds_alternative<Uniform>(policy.allocation), "an allocation");
  RC_CLASSIFY(std::holds_alternative<KeepKv>(policy.merge), "keepkv");
  RC_CLASSIFY(policy.merge.index() > 1, "another merging method");
  const std::string text = canonical(policy);
  RC_LOG() << text;
  RC_ASSERT(parse_policy(text) == policy);
  RC_ASSERT(canonical(parse_policy(text)) == text);
}

TEST(PolicyText, OfDefaultsNamesEveryOption) {
  EXPECT_EQ(canonical(parse_policy("snapkv+critical")), kCriticalText);
  EXPECT_EQ(canonical(parse_policy("snapkv")), "snapkv:window=32:pool=7");
  EXPECT_EQ(canonical(Policy{}), "snapkv:window=32:pool=7");
  EXPECT_EQ(canonical(parse_policy("snapkv+theta-sweep")),
            "snapkv:window=32:pool=7+theta-sweep:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1");
}

TEST(PolicyText, OfEveryHostBeginsWithItsNameInMessages) {
  for (const char* name : {"snapkv", "h2o", "tova", "streaming-llm", "random"}) {
    EXPECT_EQ(name_of(parse_policy(name).host), name);
  }
}

TEST(PolicyText, OfEveryHostAndScoreNamesEveryOption) {
  const std::pair<const char*, const char*> texts[] = {
      {"h2o", "h2o:window=32:sinks=0:recent=32"},
      {"tova", "tova:sinks=0"},
      {"streaming-llm", "streaming-llm:sinks=4"},
      {"random", "random:seed=0:sinks=4:window=32"},
      {"random:window=0:seed=12", "random:seed=12:sinks=4:window=0"},
      {"tova:sinks=4+exact", "tova:sinks=4+exact:space=head"},
      {"snapkv+obcache-value", "snapkv:window=32:pool=7+obcache-value:space=head"},
      {"snapkv+obcache-key:space=projected", "snapkv:window=32:pool=7+obcache-key:space=projected"},
      {"h2o+obcache-joint", "h2o:window=32:sinks=0:recent=32+obcache-joint:space=head"},
      {"snapkv+greedy", "snapkv:window=32:pool=7+greedy"},
      {"tova+critical", "tova:sinks=0+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1"},
      {"h2o+theta-sweep",
       "h2o:window=32:sinks=0:recent=32+theta-sweep:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1"}};
  for (const auto& [text, expected] : texts) {
    EXPECT_EQ(canonical(parse_policy(text)), expected);
    EXPECT_EQ(canonical(parse_policy(expected)), expected);
  }
}

constexpr const char* kKeepKvText =
    "snapkv:window=32:pool=7+keepkv:threshold=0.8:predict=ema:ema=0.9:scores=attention:normalisation=exact:"
    "key=min-norm:gqa=joint:rank=0.3:order=evict-first:period=none";
constexpr const char* kKeepKvPaperText =
    "snapkv:window=32:pool=7+keepkv:threshold=0.8:predict=ema:ema=0.9:scores=raw:normalisation=paper:"
    "key=zip:gqa=mean:rank=0.3:order=evict-first:period=none";

TEST(PolicyText, OfEveryAllocationAndMergingMethodNamesEveryOption) {
  const std::pair<const char*, const char*> texts[] = {
      {"snapkv+adakv", "snapkv:window=32:pool=7+adakv:safeguard=0.2"},
      {"tova+pyramid", "tova:sinks=0+pyramid:beta=20:shape=linear"},
      {"streaming-llm+pyramid:shape=cosine:beta=4", "streaming-llm:sinks=4+pyramid:beta=4:shape=cosine"},
      {"snapkv+keepkv", kKeepKvText},
      {"tova+convex",
       "tova:sinks=0+convex:threshold=0.8:predict=ema:ema=0.9:scores=attention:normalisation=exact:gqa="
       "joint"},
      {"tova+d2o", "tova:sinks=0+d2o:threshold=0.8"},
      {"tova+kvmerger:threshold=none", "tova:sinks=0+kvmerger:threshold=none"},
      {"streaming-llm+cam", "streaming-llm:sinks=4+cam:neighbours=32:seed=0"},
      {"random:seed=1+cam:seed=2", "random:seed=1:sinks=4:window=32+cam:neighbours=32:seed=2"},
      {"tova+d2o:threshold=1.0+pyramid+exact",
       "tova:sinks=0+exact:space=head+pyramid:beta=20:shape=linear+d2o:threshold=1"}};
  for (const auto& [text, expected] : texts) {
    EXPECT_EQ(canonical(parse_policy(text)), expected);
    EXPECT_EQ(canonical(parse_policy(expected)), expected);
  }
}

TEST(PolicyText, OfKeepKvAsPrintedIsThatOfKeepKvWithThoseOptions) {
  EXPECT_EQ(canonical(parse_policy("snapkv+keepkv-paper")), kKeepKvPaperText);
  EXPECT_EQ(parse_policy("snapkv+keepkv-paper"),
            parse_policy("snapkv+keepkv:key=zip:gqa=mean:scores=raw:normalisation=paper"));
  EXPECT_EQ(canonical(parse_policy(
                "snapkv+keepkv-paper:key=min-norm:gqa=joint:scores=attention:normalisation=exact")),
            kKeepKvText);
  const auto options = std::get<KeepKv>(parse_policy("snapkv+keepkv-paper:threshold=none:period=8").merge);
  EXPECT_EQ(options.key, MergedKey::zip);
  EXPECT_EQ(options.threshold, std::nullopt);
  EXPECT_EQ(options.period, 8);
}

TEST(PolicyText, SetsEveryOptionOfMergingAndAllocation) {
  const auto options = std::get<KeepKv>(
      parse_policy(
          "snapkv+keepkv:threshold=0.25:predict=current:ema=0:scores=raw:normalisation=paper:key=convex:"
          "gqa=mean:rank=1:order=merge-first:period=3")
          .merge);
  EXPECT_EQ(options.threshold, (Decimal{25, 2}));
  EXPECT_EQ(options.prediction,
            (PredictedScores{Prediction::current, 0, ScoreKind::raw, Normalisation::paper}));
  EXPECT_EQ(options.key, MergedKey::convex);
  EXPECT_EQ(options.gqa, MergeGqa::mean);
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.order, MergeOrder::merge_first);
  EXPECT_EQ(options.period, 3);
  EXPECT_EQ(std::get<ConvexMerge>(parse_policy("h2o+convex:gqa=mean").merge).gqa, MergeGqa::mean);
  EXPECT_EQ(std::get<D2o>(parse_policy("h2o+d2o:threshold=none").merge).threshold, std::nullopt);
  EXPECT_EQ(std::get<KvMerger>(parse_policy("h2o+kvmerger:threshold=0.5").merge).threshold, (Decimal{5, 1}));
  EXPECT_EQ(std::get<Cam>(parse_policy("h2o+cam:neighbours=4:seed=7").merge), (Cam{4, 7}));
  EXPECT_EQ(std::get<AdaKv>(parse_policy("h2o+adakv:safeguard=0").allocation).safeguard, (Decimal{0, 0}));
  EXPECT_EQ(std::get<Pyramid>(parse_policy("h2o+pyramid:beta=1:shape=cosine").allocation),
            (Pyramid{1, Decay::cosine}));
}

TEST(PolicyText, OfH2oHasRecentFollowTheWindowUntilItIsSet) {
  EXPECT_EQ(canonical(parse_policy("h2o:window=8")), "h2o:window=8:sinks=0:recent=8");
  EXPECT_EQ(canonical(parse_policy("h2o:recent=8")), "h2o:window=32:sinks=0:recent=8");
  EXPECT_EQ(canonical(parse_policy("h2o:recent=0:window=5:sinks=2")), "h2o:window=5:sinks=2:recent=0");
  EXPECT_EQ(parse_policy("h2o:window=8"), parse_policy("h2o:recent=8:window=8"));
  EXPECT_FALSE(parse_policy("h2o:window=8") == parse_policy("h2o:window=8:recent=7"));
}

TEST(PolicyText, IsCanonicalWhateverTheOrderAndFormOfWhatWasSaid) {
  for (const char* text :
       {"snapkv+critical:alpha=0.5", "snapkv+critical:alpha=0.500", "snapkv+critical:alpha=00.5",
        "snapkv+critical:norm=l1:epsilon=0.0001:gqa=mean-of-products", "snapkv+critical:epsilon=0.1e-3",
        "snapkv:pool=7:window=32+critical", "snapkv:pool=07:window=0032+critical:epsilon=1e-04"}) {
    EXPECT_EQ(canonical(parse_policy(text)), kCriticalText) << text;
  }
}

TEST(PolicyText, IsTheSameForEqualPolicies) {
  const Policy plus = parse_policy("snapkv+critical:epsilon=0");
  const Policy minus = parse_policy("snapkv+critical:epsilon=-0");
  ASSERT_EQ(plus, minus);
  EXPECT_EQ(canonical(plus), canonical(minus));
}

TEST(PolicyText, SetsEveryOption) {
  const Policy policy = parse_policy("snapkv:window=3:pool=1+critical:norm=l2");
  EXPECT_EQ(std::get<SnapKv>(policy.host), (SnapKv{3, 1}));
  EXPECT_EQ(std::get<Critical>(policy.selection).norm, Norm::l2);
  EXPECT_EQ(two_stage_of("snapkv+critical:alpha=adaptive").alpha, std::nullopt);
  EXPECT_EQ(two_stage_of("snapkv+theta-sweep:alpha=0.125").alpha, (Decimal{125, 3}));
  EXPECT_EQ(two_stage_of("snapkv+critical:alpha=0").alpha, (Decimal{0, 0}));
  EXPECT_EQ(two_stage_of("snapkv+critical:alpha=1.0").alpha, (Decimal{1, 0}));
  EXPECT_EQ(two_stage_of("snapkv+critical:epsilon=2.5e-3").epsilon, 2.5e-3);
  EXPECT_EQ(two_stage_of("snapkv+theta-sweep:gqa=product-of-means").gqa, GqaProduct::product_of_means);
}

TEST(PolicyText, WithUnknownNamesIsRefusedAndTheKnownOnesAreListed) {
  const std::string hosts = "known hosts: snapkv, h2o, tova, streaming-llm, random";
  EXPECT_EQ(refusal("h3o"), "policy 'h3o': no host 'h3o'; " + hosts);
  EXPECT_EQ(refusal(""), "policy '': no host ''; " + hosts);
  EXPECT_EQ(refusal("critical"), "policy 'critical': no host 'critical'; " + hosts);
  const std::string components =
      "known components: obcache-value, obcache-key, obcache-joint, exact, critical, theta-sweep, greedy, "
      "adakv, pyramid, keepkv, keepkv-paper, convex, d2o, cam, kvmerger";
  EXPECT_EQ(refusal("snapkv+crit"), "policy 'snapkv+crit': no component 'crit'; " + components);
  EXPECT_EQ(refusal("snapkv+"), "policy 'snapkv+': no component ''; " + components);
  EXPECT_EQ(refusal("snapkv+attention"),
            "policy 'snapkv+attention': no component 'attention'; " + components);
  EXPECT_EQ(refusal("snapkv:alpha=1"),
            "policy 'snapkv:alpha=1': snapkv has no option 'alpha'; it has window, pool");
  EXPECT_EQ(
      refusal("snapkv+critical:window=1"),
      "policy 'snapkv+critical:window=1': critical has no option 'window'; it has alpha, epsilon, gqa, norm");
}

TEST(PolicyText, WithAnythingSaidTwiceIsRefused) {
  EXPECT_EQ(refusal("snapkv:pool=7:pool=7"), "policy 'snapkv:pool=7:pool=7': option 'pool' is given twice");
  EXPECT_EQ(refusal("snapkv+critical+theta-sweep"),
            "policy 'snapkv+critical+theta-sweep': more than one selection");
  EXPECT_EQ(refusal("snapkv+critical+critical"),
            "policy 'snapkv+critical+critical': more than one selection");
}

TEST(PolicyText, WithOptionsOfAnotherComponentIsRefused) {
  const std::pair<const char*, const char*> refusals[] = {
      {"h2o:pool=7", "h2o has no option 'pool'; it has window, sinks, recent"},
      {"tova:window=4", "tova has no option 'window'; it has sinks"},
      {"streaming-llm:recent=4", "streaming-llm has no option 'recent'; it has sinks"},
      {"random:recent=4", "random has no option 'recent'; it has seed, sinks, window"},
      {"snapkv:sinks=4", "snapkv has no option 'sinks'; it has window, pool"},
      {"snapkv+exact:norm=l1", "exact has no option 'norm'; it has space"},
      {"snapkv+obcache-key:alpha=1", "obcache-key has no option 'alpha'; it has space"}};
  for (const auto& [text, says] : refusals) {
    EXPECT_EQ(refusal(text), "policy '" + std::string(text) + "': " + says);
  }
}

TEST(PolicyText, OfWhatHasNoMeaningTogetherIsRefused) {
  const std::string no_score =
      "critical, theta-sweep and greedy choose by attention and take no other score; with another score the "
      "entries of largest score stay";
  const auto expect_unranked = [](const std::string& host, const std::string& component) {
    EXPECT_EQ(refusal(host + "+" + component),
              "policy '" + host + "+" + component + "': " + host +
                  " ranks nothing: it takes no score and no selection; hosts that do are snapkv, h2o, tova");
  };
  const std::string greedy_host = "greedy has a meaning with the host snapkv alone";
  for (const std::string selection : {"critical", "theta-sweep", "greedy"}) {
    for (const std::string score : {"obcache-value", "obcache-key", "obcache-joint", "exact"}) {
      for (const std::string& text :
           {"snapkv+" + score + "+" + selection, "snapkv+" + selection + "+" + score}) {
        EXPECT_EQ(refusal(text), "policy '" + text + "': " + no_score);
      }
    }
    for (const char* host : {"streaming-llm", "random"}) expect_unranked(host, selection);
  }
  for (const std::string score : {"obcache-value", "obcache-key", "obcache-joint", "exact"}) {
    for (const char* host : {"streaming-llm", "random"}) expect_unranked(host, score);
    for (const std::string host : {"snapkv", "h2o", "tova"}) {
      EXPECT_EQ(refusal(host + "+" + score), "no error");
    }
  }
  for (const std::string host : {"h2o", "tova"}) {
    EXPECT_EQ(refusal(host + "+greedy"), "policy '" + host + "+greedy': " + greedy_host);
    EXPECT_EQ(refusal(host + "+critical"), "no error");
    EXPECT_EQ(refusal(host + "+theta-sweep"), "no error");
  }
  EXPECT_EQ(refusal("snapkv+exact+obcache-value"),
            "policy 'snapkv+exact+obcache-value': more than one score");
  EXPECT_EQ(refusal("snapkv+greedy+critical"), "policy 'snapkv+greedy+critical': more than one selection");
}

TEST(PolicyText, WithAnotherMethodsOptionsIsRefused) {
  const std::string keep_kv = "threshold, predict, ema, scores, normalisation, key, gqa, rank, order, period";
  const std::pair<std::string, std::string> refusals[] = {
      {"h2o+keepkv:alpha=1", "keepkv has no option 'alpha'; it has " + keep_kv},
      {"h2o+keepkv-paper:beta=1", "keepkv has no option 'beta'; it has " + keep_kv},
      {"h2o+convex:key=zip",
       "convex has no option 'key'; it has threshold, predict, ema, scores, normalisation, gqa"},
      {"h2o+d2o:ema=0.5", "d2o has no option 'ema'; it has threshold"},
      {"h2o+kvmerger:sigma=1", "kvmerger has no option 'sigma'; it has threshold"},
      {"h2o+cam:threshold=0.8", "cam has no option 'threshold'; it has neighbours, seed"},
      {"h2o+adakv:beta=1", "adakv has no option 'beta'; it has safeguard"},
      {"h2o+pyramid:safeguard=1", "pyramid has no option 'safeguard'; it has beta, shape"},
      {"h2o+keepkv+keepkv-paper", "more than one merge"},
      {"h2o+d2o+keepkv", "more than one merge"},
      {"h2o+adakv+pyramid", "more than one allocation"}};
  for (const auto& [text, says] : refusals) EXPECT_EQ(refusal(text), "policy '" + text + "': " + says);
}

TEST(PolicyText, OfMergingAndAllocationThatHaveNoMeaningTogetherIsRefused) {
  const std::string zip = "keepkv:key=zip scales a key by one factor: it takes gqa=mean, not gqa=joint";
  const std::string merge_first =
      "keepkv:order=merge-first merges by attention before the entries of largest attention stay: it takes "
      "the "
      "hosts snapkv, h2o, tova, and no score and no selection";
  const std::string no_ranks = " ranks nothing; hosts that do are snapkv, h2o, tova";
  const std::string period = "keepkv:period selects anew by the current query, but ";
  const std::string greedy_period =
      "keepkv:period selects anew by the current query alone, which greedy cannot";
  const std::string adakv = "adakv shares out by scores, but ";
  const std::pair<std::string, std::string> refusals[] = {
      {"snapkv+keepkv:key=zip", zip},
      {"snapkv+keepkv-paper:gqa=joint", zip},
      {"streaming-llm+keepkv:order=merge-first", merge_first},
      {"random+keepkv:order=merge-first", merge_first},
      {"h2o+critical+keepkv:order=merge-first", merge_first},
      {"tova+theta-sweep+keepkv-paper:order=merge-first", merge_first},
      {"snapkv+greedy+keepkv:order=merge-first", merge_first},
      {"snapkv+exact+keepkv:order=merge-first", merge_first},
      {"streaming-llm+keepkv:period=8", period + "streaming-llm" + no_ranks},
      {"random+keepkv:period=8", period + "random" + no_ranks},
      {"snapkv+greedy+keepkv:period=8", greedy_period},
      {"streaming-llm+adakv", adakv + "streaming-llm" + no_ranks},
      {"streaming-llm+adakv+d2o", adakv + "streaming-llm" + no_ranks},
      {"random+adakv", adakv + "random" + no_ranks}};
  for (const auto& [text, says] : refusals) EXPECT_EQ(refusal(text), "policy '" + text + "': " + says);
}

TEST(PolicyText, OfMergingAndAllocationThatGoTogetherIsNotRefused) {
  for (const std::string merge : {"keepkv", "keepkv-paper", "convex", "d2o", "cam", "kvmerger"}) {
    for (const std::string before :
         {"snapkv+critical+adakv", "snapkv+theta-sweep", "snapkv+greedy", "h2o+exact+pyramid", "tova+adakv",
          "streaming-llm+pyramid", "streaming-llm", "random+pyramid", "random"}) {
      EXPECT_EQ(refusal(before + "+" + merge), "no error");
    }
  }
  for (const std::string host : {"snapkv", "h2o", "tova"}) {
    EXPECT_EQ(refusal(host + "+adakv+keepkv:order=merge-first:period=8"), "no error");
    EXPECT_EQ(refusal(host + "+critical+keepkv:period=8"), "no error");
  }
}

TEST(PolicyText, WithBadValuesIsRefusedAndSaysWhatIsExpected) {
  const auto expect_refusal = [](const std::string& before, const std::string& pair,
                                 const std::string& expected) {
    const std::string text = before + ":" + pair;
    EXPECT_EQ(refusal(text), "policy '" + text + "': '" + pair + "': expected " + expected);
  };
  for (const char* bad : {"window", "window=", "window=0", "window=-1", "window=1.5", "window= 1",
                          "window=1 ", "window=9223372036854775808", "window=0x1", "window=nan"}) {
    expect_refusal("snapkv", bad, "window=an integer >= 1");
  }
  for (const char* bad : {"pool=0", "pool=2", "pool=-1", "pool=", "pool=7=7"}) {
    expect_refusal("snapkv", bad, "pool=an odd integer >= 1");
  }
  for (const char* bad : {"alpha=1.01", "alpha=-0.5", "alpha=nan", "alpha=1e-1", "alpha=", "alpha=.5",
                          "alpha=5.", "alpha=0.123456789012345678989", "alpha=1.00000000000000001"}) {
    expect_refusal("snapkv+critical", bad, "alpha=a decimal from 0 to 1 of at most 18 digits, or adaptive");
  }
  for (const char* bad :
       {"epsilon=nan", "epsilon=inf", "epsilon=-1e-9", "epsilon=1e999", "epsilon=", "epsilon=1x"}) {
    expect_refusal("snapkv+theta-sweep", bad, "epsilon=a finite number >= 0");
  }
  expect_refusal("snapkv+critical", "gqa=mean", "gqa=mean-of-products or product-of-means");
  expect_refusal("snapkv+critical", "norm=linf", "norm=l1 or l2");
  for (const char* host : {"h2o", "tova", "streaming-llm", "random"}) {
    for (const char* bad :
         {"sinks", "sinks=", "sinks=-1", "sinks=1.5", "sinks=nan", "sinks=9223372036854775808"}) {
      expect_refusal(host, bad, "sinks=an integer >= 0");
    }
  }
  for (const char* bad : {"recent=", "recent=-1", "recent=x", "recent=window"}) {
    expect_refusal("h2o", bad, "recent=an integer >= 0");
  }
  expect_refusal("h2o", "window=0", "window=an integer >= 1");
  for (const char* bad : {"window=-1", "window=", "window=0.5"}) {
    expect_refusal("random", bad, "window=an integer >= 0");
  }
  for (const char* bad : {"seed=-1", "seed=", "seed=9223372036854775808"}) {
    expect_refusal("random", bad, "seed=an integer >= 0");
  }
  for (const char* score : {"obcache-value", "obcache-key", "obcache-joint", "exact"}) {
    for (const char* bad : {"space=", "space=Head", "space=model"}) {
      expect_refusal("tova+" + std::string(score), bad, "space=head or projected");
    }
  }
}

TEST(PolicyText, WithBadValuesOfMergingAndAllocationIsRefusedAndSaysWhatIsExpected) {
  const auto expect_refusals = [](const std::string& component, const std::string& option,
                                  std::initializer_list<const char*> values, const std::string& expected) {
    for (const std::string value : values) {
      const std::string pair = option + "=" + value;
      const std::string text = "snapkv+" + component + ":" + pair;
      EXPECT_EQ(refusal(text), "policy '" + text + "': '" + pair + "': expected " + option + "=" + expected);
    }
  };
  for (const std::string component : {"keepkv", "keepkv-paper", "convex", "d2o", "kvmerger"}) {
    expect_refusals(component, "threshold",
                    {"", "-0.5", "1.01", "nan", "1e-1", "None", "0.1234567890123456789"},
                    "a decimal from 0 to 1 of at most 18 digits, or none");
  }
  for (const std::string component : {"keepkv", "keepkv-paper", "convex"}) {
    expect_refusals(component, "predict", {"", "mean", "Ema"}, "ema or current");
    expect_refusals(component, "ema", {"", "1", "-0.1", "1.5", "nan", "inf", "0.9x", "1e-271"},
                    "0, or a number from 1e-270 to below 1");
    expect_refusals(component, "scores", {"", "softmax"}, "attention or raw");
    expect_refusals(component, "normalisation", {"", "none"}, "exact or paper");
    expect_refusals(component, "gqa", {"", "mean-of-products"}, "joint or mean");
  }
  for (const std::string component : {"keepkv", "keepkv-paper"}) {
    expect_refusals(component, "key", {"", "minnorm"}, "min-norm or zip or convex");
    expect_refusals(component, "rank", {"", "-0.1", "1.1", "nan"}, "a number from 0 to 1");
    expect_refusals(component, "order", {"", "evict"}, "evict-first or merge-first");
    expect_refusals(component, "period", {"", "0", "-8", "1.5", "never", "9223372036854775808"},
                    "an integer >= 1, or none");
  }
  expect_refusals("cam", "neighbours", {"", "0", "-1", "none"}, "an integer >= 1");
  expect_refusals("cam", "seed", {"", "-1", "0.5", "9223372036854775808"}, "an integer >= 0");
  expect_refusals("adakv", "safeguard", {"", "-0.2", "1.01", "nan", "none"},
                  "a decimal from 0 to 1 of at most 18 digits");
  expect_refusals("pyramid", "beta", {"", "0", "-20", "1.5"}, "an integer >= 1");
  expect_refusals("pyramid", "shape", {"", "Linear", "cos"}, "linear or cosine");
}

TEST(PolicyHelp, NamesEveryComponentAndOptionWithItsDefault) {
  const std::string help = policy_help();
  for (const char* words : {"snapkv",
                            ":window=32",
                            ":pool=7",
                            "critical",
                            "theta-sweep",
                            ":alpha=0.5",
                            ":epsilon=1e-4",
                            ":gqa=mean-of-products",
                            ":norm=l1",
                            "adaptive",
                            "product-of-means",
                            "h2o",
                            "tova",
                            "streaming-llm",
                            "random",
                            ":sinks=0",
                            ":sinks=4",
                            ":recent=32",
                            "obcache-value",
                            "obcache-key",
                            "obcache-joint",
                            "exact",
                            ":space=head",
                            "projected",
                            "greedy",
                            "adakv",
                            ":safeguard=0.2",
                            "pyramid",
                            ":beta=20",
                            ":shape=linear",
                            "keepkv",
                            ":threshold=0.8",
                            ":predict=ema",
                            ":ema=0.9",
                            ":scores=attention",
                            ":normalisation=exact",
                            ":key=min-norm",
                            ":gqa=joint",
                            ":rank=0.3",
                            ":order=evict-first",
                            ":period=none",
                            "keepkv-paper",
                            ":scores=raw",
                            ":normalisation=paper",
                            ":key=zip",
                            ":gqa=mean ",
                            "convex",
                            "d2o",
                            "cam",
                            ":neighbours=32",
                            ":seed=0",
                            "kvmerger"}) {
    EXPECT_NE(help.find(words), std::string::npos) << words;
  }
}

}  // namespace
}  // namespace kvbound::sim::policy_test
