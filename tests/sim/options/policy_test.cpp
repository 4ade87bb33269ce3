#include <bit>
#include <cmath>
#include <iterator>
#include <regex>
#include <sstream>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/sim/options/known_components.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::policy_test {
namespace {

using test::integer;

constexpr const char* kCriticalText =
    "snapkv:window=32:pool=7+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1";

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
  switch (*integer(0, 5)) {
    case 5:
      return Given{*rc::gen::element<std::string>("a.safetensors", "a b/c", "a:b", "a+b,c=d", "\xc3\xa4=1"),
                   *any_positive()};
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
  switch (*integer(0, 3)) {
    case 3: {
      HeadKv options{*integer(0, 1) == 0 ? "s.json" : "a:b+c,d"};
      options.beta = Decimal{*integer(1, 9), 0};
      options.temperature = any_below_one();
      return options;
    }
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
  const bool is_given = std::holds_alternative<Given>(policy.host);
  if (is_ranked) {
    policy.selection = any_selection(policy.host);
    if (std::holds_alternative<TopK>(policy.selection) && !is_given && *integer(0, 1) == 0)
      policy.score = any_score();
  } else if (std::holds_alternative<AdaKv>(policy.allocation)) {
    policy.allocation = Uniform();
  }
  auto* keep_kv = std::get_if<KeepKv>(&policy.merge);
  if (keep_kv == nullptr) return policy;
  if (!is_ranked || is_given || std::holds_alternative<Greedy>(policy.selection)) keep_kv->period.reset();
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
  EXPECT_EQ(name_of(parse_policy("given:file=a").host), "given");
}

TEST(PolicyText, OfEveryHostAndScoreNamesEveryOption) {
  const std::pair<const char*, const char*> texts[] = {
      {"h2o", "h2o:window=32:sinks=0:recent=32"},
      {"tova", "tova:sinks=0"},
      {"streaming-llm", "streaming-llm:sinks=4"},
      {"random", "random:seed=0:sinks=4:window=32"},
      {"random:window=0:seed=12", "random:seed=12:sinks=4:window=0"},
      {"given:file=a/b.safetensors", "given:file=a/b.safetensors:window=32"},
      {"given:window=4:file=\"a\"", "given:file=a:window=4"},
      {"given:file=\"a:b+c,d\"+cam:seed=3", "given:file=\"a:b+c,d\":window=32+cam:neighbours=32:seed=3"},
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
      {"tova+headkv:scores=s.json", "tova:sinks=0+headkv:scores=s.json:beta=1.2:temperature=1"},
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

TEST(PolicyHelp, NamesEveryComponentOnce) {
  const std::string help = policy_help();
  for (const NamedComponent& named : named_components()) {
    const std::regex name("[ ,]" + named.component->name + "[,\\n]");
    EXPECT_EQ(std::distance(std::sregex_iterator(help.begin(), help.end(), name), {}), 1)
        << named.component->name;
  }
}

}  // namespace
}  // namespace kvbound::sim::policy_test
