#include <kvbound/sim/policy.hpp>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <sstream>
#include <utility>

#include <kvbound/reference/core/error.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim {
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

/// Any finite number >= 0, of any magnitude.
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
  if (*integer(0, 3) > 0) {  // alpha = parts / 10^16, or 1
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
  switch (*integer(0, 3)) {
    case 1:
      return *integer(0, 1) == 0 ? H2o{*any_positive(), *any_positive() - 1, {}}
                                 : H2o{*any_positive(), *any_positive() - 1, *any_positive() - 1};
    case 2:
      return Tova{*any_positive() - 1};
    case 3:
      return StreamingLlm{*any_positive() - 1};
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

Policy any_policy() {
  Policy policy;
  policy.host = any_host();
  if (std::holds_alternative<StreamingLlm>(policy.host)) return policy;  // ranks nothing
  switch (*integer(0, 4)) {
    case 1:
      policy.selection = Critical{any_two_stage()};
      break;
    case 2:
      policy.selection = ThetaSweep{any_two_stage()};
      break;
    case 3:
      policy.score = any_score();
      break;
    case 4:
      if (std::holds_alternative<SnapKv>(policy.host)) policy.selection = Greedy();
      break;
    default:
      break;
  }
  return policy;
}

RC_GTEST_PROP(PolicyText, OfAnyPolicyReadsBackAsThatPolicy, ()) {
  const Policy policy = any_policy();
  RC_CLASSIFY(std::holds_alternative<TopK>(policy.selection), "top-k");
  RC_CLASSIFY(std::holds_alternative<H2o>(policy.host), "h2o");
  RC_CLASSIFY(!std::holds_alternative<AttentionScore>(policy.score), "another score than attention");
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

TEST(PolicyText, OfEveryHostAndScoreNamesEveryOption) {
  const std::pair<const char*, const char*> texts[] = {
      {"h2o", "h2o:window=32:sinks=0:recent=32"},
      {"tova", "tova:sinks=0"},
      {"streaming-llm", "streaming-llm:sinks=4"},
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
  const std::string hosts = "known hosts: snapkv, h2o, tova, streaming-llm";
  EXPECT_EQ(refusal("h3o"), "policy 'h3o': no host 'h3o'; " + hosts);
  EXPECT_EQ(refusal(""), "policy '': no host ''; " + hosts);
  EXPECT_EQ(refusal("critical"), "policy 'critical': no host 'critical'; " + hosts);
  const std::string components =
      "known components: obcache-value, obcache-key, obcache-joint, exact, critical, theta-sweep, greedy";
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
  const std::string ranks_nothing =
      "streaming-llm ranks nothing: it takes no score and no selection; hosts that do are snapkv, h2o, tova";
  const std::string greedy_host = "greedy has a meaning with the host snapkv alone";
  for (const std::string selection : {"critical", "theta-sweep", "greedy"}) {
    for (const std::string score : {"obcache-value", "obcache-key", "obcache-joint", "exact"}) {
      for (const std::string& text :
           {"snapkv+" + score + "+" + selection, "snapkv+" + selection + "+" + score}) {
        EXPECT_EQ(refusal(text), "policy '" + text + "': " + no_score);
      }
    }
    EXPECT_EQ(refusal("streaming-llm+" + selection),
              "policy 'streaming-llm+" + selection + "': " + ranks_nothing);
  }
  for (const std::string score : {"obcache-value", "obcache-key", "obcache-joint", "exact"}) {
    EXPECT_EQ(refusal("streaming-llm+" + score), "policy 'streaming-llm+" + score + "': " + ranks_nothing);
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
  for (const char* host : {"h2o", "tova", "streaming-llm"}) {
    for (const char* bad :
         {"sinks", "sinks=", "sinks=-1", "sinks=1.5", "sinks=nan", "sinks=9223372036854775808"}) {
      expect_refusal(host, bad, "sinks=an integer >= 0");
    }
  }
  for (const char* bad : {"recent=", "recent=-1", "recent=x", "recent=window"}) {
    expect_refusal("h2o", bad, "recent=an integer >= 0");
  }
  expect_refusal("h2o", "window=0", "window=an integer >= 1");
  for (const char* score : {"obcache-value", "obcache-key", "obcache-joint", "exact"}) {
    for (const char* bad : {"space=", "space=Head", "space=model"}) {
      expect_refusal("tova+" + std::string(score), bad, "space=head or projected");
    }
  }
}

TEST(PolicyHelp, NamesEveryComponentAndOptionWithItsDefault) {
  const std::string help = policy_help();
  for (const char* words : {"snapkv",      ":window=32",    ":pool=7",          "critical",
                            "theta-sweep", ":alpha=0.5",    ":epsilon=1e-4",    ":gqa=mean-of-products",
                            ":norm=l1",    "adaptive",      "product-of-means", "h2o",
                            "tova",        "streaming-llm", ":sinks=0",         ":sinks=4",
                            ":recent=32",  "obcache-value", "obcache-key",      "obcache-joint",
                            "exact",       ":space=head",   "projected",        "greedy"}) {
    EXPECT_NE(help.find(words), std::string::npos) << words;
  }
}

}  // namespace
}  // namespace kvbound::sim
