// Policies that are refused, and what the messages say.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/sim/options/known_components.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/message_of.hpp"

namespace kvbound::sim::policy_refusal_test {
namespace {

using test::message_of;

std::string refusal(const std::string& text) {
  return message_of<InvalidPolicy>([&] { parse_policy(text); });
}

TEST(PolicyText, WithUnknownNamesIsRefusedAndTheKnownOnesAreListed) {
  const std::string hosts =
      fmt::format("known hosts: {}", fmt::join(component_kinds().front().names(), ", "));
  EXPECT_EQ(refusal("xyz"), "policy 'xyz': no host 'xyz'; " + hosts);
  EXPECT_EQ(refusal(""), "policy '': no host ''; " + hosts);
  EXPECT_EQ(refusal("h20"), "policy 'h20': no host 'h20'; did you mean h2o? " + hosts);
  EXPECT_EQ(refusal("critical"),
            "policy 'critical': no host 'critical'; critical is a selection: snapkv+critical; " + hosts);
  const std::string components = fmt::format("known components: {}", fmt::join(added_names(), ", "));
  EXPECT_EQ(refusal("snapkv+crit"),
            "policy 'snapkv+crit': no component 'crit'; did you mean critical? " + components);
  EXPECT_EQ(
      refusal("snapkv+h2o"),
      "policy 'snapkv+h2o': no component 'h2o'; h2o is a host: a policy begins with one; " + components);
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
      {"given:file=a:pool=7", "given has no option 'pool'; it has file, window"},
      {"streaming-llm:recent=4", "streaming-llm has no option 'recent'; it has sinks"},
      {"random:recent=4", "random has no option 'recent'; it has seed, sinks, window"},
      {"snapkv:sinks=4", "snapkv has no option 'sinks'; it has window, pool"},
      {"snapkv+exact:norm=l1", "exact has no option 'norm'; it has space"},
      {"snapkv+obcache-key:alpha=1", "obcache-key has no option 'alpha'; it has space"}};
  for (const auto& [text, says] : refusals) {
    EXPECT_EQ(refusal(text), "policy '" + std::string(text) + "': " + says);
  }
}

TEST(PolicyText, OfAHostWithAFileIsRefusedWithoutOneThatCanBeWrittenAgain) {
  const std::string path = "a path, in double quotes if it has a colon, plus sign or comma";
  const std::string refusals[][2] = {{"given", "given needs file=" + path},
                                     {"given:window=3", "given needs file=" + path},
                                     {"given:file", "'file': expected file=" + path},
                                     {"given:file=", "'file=': expected file=" + path},
                                     {"given:file=\"\"", "'file=\"\"': expected file=" + path},
                                     {"given:file=a\"b", "'file=a\"b': expected file=" + path},
                                     {"given:file=a\tb", "'file=a\\x09b': expected file=" + path},
                                     {"given:file=a:window=0", "'window=0': expected window=an integer >= 1"},
                                     {"given:file=a:b", "given has no option 'b'; it has file, window"}};
  for (const auto& [text, says] : refusals) {
    std::string shown = text;
    if (const size_t tab = shown.find('\t'); tab != std::string::npos) shown.replace(tab, 1, "\\x09");
    EXPECT_EQ(refusal(text), "policy '" + shown + "': " + says);
  }
}

TEST(PolicyText, OfGivenScoresWithWhatWouldComputeThemAnewIsRefused) {
  const std::string alone = ", but given has the scores of its file alone";
  const std::string refusals[][2] = {
      {"given:file=a+exact", "a score ranks entries in the place of the host's" + alone},
      {"given:file=a+keepkv:period=2", "keepkv:period selects anew by the current query" + alone},
      {"given:file=a+greedy", "greedy has a meaning with the host snapkv alone"}};
  for (const auto& [text, says] : refusals) EXPECT_EQ(refusal(text), "policy '" + text + "': " + says);
  for (const char* text : {"given:file=a+critical", "given:file=a+theta-sweep+adakv",
                           "given:file=a+pyramid+cam", "given:file=a+keepkv:order=merge-first"}) {
    EXPECT_EQ(refusal(text), "no error");
  }
}

TEST(PolicyText, OfWhatHasNoMeaningTogetherIsRefused) {
  const std::string no_score =
      "critical, theta-sweep and greedy choose by attention and take no other score; with another score the "
      "entries of largest score stay";
  const auto expect_unranked = [](const std::string& host, const std::string& component) {
    EXPECT_EQ(refusal(host + "+" + component),
              "policy '" + host + "+" + component + "': " + host +
                  " ranks nothing: it takes no score and no selection; hosts that do are " + ranking_hosts());
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
      "the hosts " +
      ranking_hosts() + ", and no score and no selection";
  const std::string no_ranks = " ranks nothing; hosts that do are " + ranking_hosts();
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

}  // namespace
}  // namespace kvbound::sim::policy_refusal_test
