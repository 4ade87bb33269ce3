// Whatever reaches a job script is one word of it, or is refused.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/sweep/slurm_engine.hpp>

namespace kvbound::sim::slurm_engine_test {
namespace {

using testing::HasSubstr;

TEST(JobScripts, QuoteWhatOthersWrote) {
  const SweepFolder folder("/data/it's $(touch here)`;&|");
  const std::string script = array_script(folder, "x;touch there;'", {});
  EXPECT_THAT(script, HasSubstr(R"(--out '/data/it'\''s $(touch here)`;&|' )"));
  EXPECT_THAT(script, HasSubstr(R"(--sweep 'x;touch there;'\''' )"));
}

TEST(JobScripts, HaveTheOptionsOnALineOfTheirOwn) {
  SlurmOptions options;
  options.sbatch = "--partition=long --time=4:00:00";
  EXPECT_THAT(array_script(SweepFolder("s"), "0", options),
              HasSubstr("\n#SBATCH --partition=long --time=4:00:00\n"));
}

TEST(JobScripts, HaveNoControlCharacters) {
  for (const char* bad : {"a\nb", "a\rb", "\x1b[1m", "\x7f", "\t"}) {
    SlurmOptions options;
    options.sbatch = bad;
    EXPECT_THROW(array_script(SweepFolder("s"), "0", options), UsageError);
    EXPECT_THROW(array_script(SweepFolder(bad), "0", {}), UsageError);
    EXPECT_THROW(array_script(SweepFolder("s"), bad, {}), UsageError);
  }
}

}  // namespace
}  // namespace kvbound::sim::slurm_engine_test
