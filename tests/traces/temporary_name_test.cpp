// Temporary files go with their process, or with the next one that writes beside them.
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/system_call.hpp>
#include <kvbound/traces/temporary_name.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::traces::temporary_name_test {
namespace {

namespace fs = std::filesystem;

using test::TemporaryFolder;

// The number of a process that has ended.
std::string ended_process() {
  const pid_t process = fork();
  if (process == 0) _exit(0);
  waitpid(process, nullptr, 0);
  return std::to_string(process);
}

// "-MACHINE.tmp" of this machine.
std::string ending_here(const TemporaryFolder& folder) {
  const std::string path = TemporaryName::beside(folder.path("out")).path();
  return path.substr(path.rfind('-'));
}

TEST(TemporaryNames, AreBesideTheirTargetsAndDifferent) {
  const TemporaryFolder folder;
  const auto one = TemporaryName::beside(folder.path("out")),
             other = TemporaryName::beside(folder.path("out"));
  EXPECT_STRNE(one.path(), other.path());
  const std::string name = fs::path(one.path()).filename().string();
  EXPECT_TRUE(name.starts_with(".out." + std::to_string(getpid()) + "-")) << name;
  EXPECT_EQ(fs::path(one.path()).parent_path(), fs::path(folder.path("out")).parent_path());
  const auto longest = TemporaryName::beside(folder.path(std::string(255, 'x')));
  EXPECT_LE(fs::path(longest.path()).filename().string().size(), 255u);
  EXPECT_THROW(TemporaryName(std::string(5000, 'x')), IoError);
}

TEST(TemporaryNames, GoWithTheirObjectUnlessTheyAreReleased) {
  const TemporaryFolder folder;
  {
    TemporaryName gone(folder.write("gone", "x")), kept(folder.write("kept", "x"));
    const TemporaryName moved(std::move(gone));
    kept.release();
  }
  EXPECT_FALSE(fs::exists(folder.path("gone")));
  EXPECT_TRUE(fs::exists(folder.path("kept")));
}

TEST(TemporaryNames, OfFoldersGoAfterThoseOfTheirFilesInAnyOrder) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path("a/b"));
  for (const bool folders_first :
       {true, false, true}) {  // the first names are listed in one order, reused ones in the other
    std::vector<TemporaryName> names;
    std::vector<std::string> paths{folder.path("a"), folder.path("a/b"), folder.path("a/b/c")};
    if (!folders_first) std::swap(paths.front(), paths.back());
    for (const std::string& path : paths) names.emplace_back(path);
    fs::create_directories(folder.path("a/b"));
    folder.write("a/b/c", "x");
    remove_temporary_files();
    EXPECT_EQ(folder.size(), 0);
  }
}

TEST(TemporaryNames, OfFoldersWithOtherFilesStay) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path("a"));
  folder.write("a/precious", "x");
  { const TemporaryName name(folder.path("a")); }
  EXPECT_TRUE(fs::exists(folder.path("a/precious")));
}

TEST(Leftovers, OfEndedProcessesOfThisMachineAreRemovedAndNothingElse) {
  const TemporaryFolder folder, elsewhere;
  const std::string here = ending_here(elsewhere), ended = ended_process(),
                    living = std::to_string(getppid());
  const std::vector<std::string> stay{
      ".out." + living + "-0" + here,           // somebody writes it
      ".out." + ended + "-0-0123456789ab.tmp",  // of another machine
      ".out." + ended + "-0.tmp",               // of another program
      "out." + ended + "-0" + here,             // names without a dot, without numbers, with too large ones
      "." + ended + "-0" + here,
      ".out.x-0" + here,
      ".out." + ended + "-x" + here,
      ".out." + ended + "-" + here,
      ".out.-0" + here,
      ".out.99999999999999999999-0" + here,
      ".out.0-0" + here,
      ".out.-" + ended + "-0" + here,
      ".out." + ended + "-0" + here + "x",
      "out"};
  const std::vector<std::string> go{".out." + ended + "-0" + here, ".a.b-c." + ended + "-17" + here};
  for (const auto* names : {&stay, &go})
    for (const std::string& name : *names) folder.write(name, "x");
  const std::string scratch = folder.path(".overhead." + ended + "-0" + here);
  fs::create_directories(scratch + "/results/ab");
  const auto name = TemporaryName::beside(folder.path("next"));
  for (const std::string& left : stay) EXPECT_TRUE(fs::exists(folder.path(left))) << left;
  for (const std::string& left : go) EXPECT_FALSE(fs::exists(folder.path(left))) << left;
  EXPECT_FALSE(fs::exists(scratch));
  EXPECT_EQ(folder.size(), std::ssize(stay));
}

TEST(SystemCalls, AreRepeatedWhileSignalsInterruptThem) {
  int calls = 0;
  const auto fail_with = [&](int error, int times) {
    return [&calls, error, times] {
      errno = error;
      return ++calls <= times ? -1 : 7;
    };
  };
  EXPECT_EQ(uninterrupted(fail_with(EINTR, 3)), 7);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(uninterrupted(fail_with(ENOSPC, 100)), -1);
  EXPECT_EQ(calls, 5);
}

}  // namespace
}  // namespace kvbound::traces::temporary_name_test
