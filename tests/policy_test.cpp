#include <kvbound/sim/policy.hpp>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <sstream>

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

Policy any_policy() {
  Policy policy;
  policy.host = SnapKv{*integer(1, INT64_MAX - 1), 2 * *integer(0, INT64_MAX / 2) + 1};
  switch (*integer(0, 2)) {
    case 1:
      policy.selection = Critical{any_two_stage()};
      break;
    case 2:
      policy.selection = ThetaSweep{any_two_stage()};
      break;
    default:
      break;
  }
  return policy;
}

RC_GTEST_PROP(PolicyText, OfAnyPolicyReadsBackAsThatPolicy, ()) {
  const Policy policy = any_policy();
  RC_CLASSIFY(std::holds_alternative<TopK>(policy.selection), "top-k");
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
  EXPECT_EQ(refusal("h3o"), "policy 'h3o': no host 'h3o'; known hosts: snapkv");
  EXPECT_EQ(refusal(""), "policy '': no host ''; known hosts: snapkv");
  EXPECT_EQ(refusal("critical"), "policy 'critical': no host 'critical'; known hosts: snapkv");
  EXPECT_EQ(refusal("snapkv+crit"),
            "policy 'snapkv+crit': no component 'crit'; known components: critical, theta-sweep");
  EXPECT_EQ(refusal("snapkv+"), "policy 'snapkv+': no component ''; known components: critical, theta-sweep");
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
}

TEST(PolicyHelp, NamesEveryComponentAndOptionWithItsDefault) {
  const std::string help = policy_help();
  for (const char* words :
       {"snapkv", ":window=32", ":pool=7", "critical", "theta-sweep", ":alpha=0.5", ":epsilon=1e-4",
        ":gqa=mean-of-products", ":norm=l1", "adaptive", "product-of-means"}) {
    EXPECT_NE(help.find(words), std::string::npos) << words;
  }
}

}  // namespace
}  // namespace kvbound::sim
