// Output files are written completely or not at all.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/output_file.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::traces::output_file_test {
namespace {

using test::contents;
using test::message_of;
using test::TemporaryFolder;
using testing::HasSubstr;

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(OutputFile, HasItsNameOnlyAfterCommit) {
  const TemporaryFolder folder;
  OutputFile file(folder.path("out.json"));
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.json")));
  EXPECT_EQ(folder.size(), 1) << "the temporary file lies in the same folder";
  file.prepare();
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.json")));
  file.commit();
  EXPECT_EQ(contents(folder.path("out.json")), "one two");
  EXPECT_EQ(folder.size(), 1);
}

TEST(OutputFile, LeavesNothingBehindWithoutCommit) {
  const TemporaryFolder folder;
  {
    OutputFile file(folder.path("out"));
    file.write(std::string(3 << 20, 'x'));
  }
  {
    OutputFile file(folder.path("out"));
    file.prepare();
  }
  EXPECT_EQ(folder.size(), 0);
}

TEST(OutputFile, LeavesAnExistingFileUntouchedUntilCommit) {
  const TemporaryFolder folder;
  const std::string path = folder.write("out", "old");
  { OutputFile(path).write("lost"); }
  EXPECT_EQ(contents(path), "old");
  OutputFile file(path);
  file.write("new");
  file.prepare();
  EXPECT_EQ(contents(path), "old");
  file.commit();
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(folder.size(), 1);
}

TEST(OutputFile, HonoursTheUmaskAndKeepsTheModeOfWhatItReplaces) {
  const TemporaryFolder folder;
  const mode_t before = umask(027);
  OutputFile(folder.path("new")).commit();
  umask(before);
  EXPECT_EQ(mode_of(folder.path("new")), 0640u);
  const std::string path = folder.write("old", "");
  ASSERT_EQ(chmod(path.c_str(), 0604), 0);
  OutputFile(path).commit();
  EXPECT_EQ(mode_of(path), 0604u);
}

TEST(OutputFile, ReplacesWhatASymbolicLinkPointsTo) {
  const TemporaryFolder folder;
  folder.write("target", "old");
  std::filesystem::create_symlink("target", folder.path("link"));
  OutputFile file(folder.path("link"));
  file.write("new");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link")));
  EXPECT_EQ(contents(folder.path("target")), "new");
}

TEST(OutputFile, ReportsAFullDisk) {
  OutputFile file("/dev/full");
  file.write("x");
  EXPECT_EQ(message_of<IoError>([&] { file.commit(); }), "cannot write /dev/full: No space left on device");
}

TEST(OutputFile, RemovesTheTemporaryFileWhenWritingFails) {
  const TemporaryFolder folder;
  const std::string path = folder.write("out", "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1000, before.rlim_max};
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of<IoError>([&] {
    OutputFile file(path);
    file.write(std::string(2000, 'x'));
    file.commit();
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "cannot write " + path + ": File too large");
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(folder.size(), 1);
}

TEST(OutputFile, WritesDevicesDirectly) {
  {
    OutputFile file("/dev/null");
    file.write("gone");
    file.commit();
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(OutputFile, WritesAFifoDirectly) {
  const TemporaryFolder folder;
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::string received;
  std::thread reader([&] { received = contents(fifo); });
  {
    OutputFile file(fifo);
    file.write("through");
    file.commit();
  }
  reader.join();
  EXPECT_EQ(received, "through");
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
}

TEST(OutputFile, KnowsTheNamesOfStandardOutput) {
  for (const char* path : {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})
    EXPECT_TRUE(names_standard_output(path));
  for (const char* path : {"./-", "/dev/stderr", "/dev/fd/11", ""}) EXPECT_FALSE(names_standard_output(path));
}

TEST(OutputFile, RefusesADirectory) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of<IoError>([&] { OutputFile file(folder.path()); }),
            "cannot write " + folder.path() + ": Is a directory");
  EXPECT_THROW(OutputFile(folder.path("new/")), IoError);
  EXPECT_THROW(OutputFile(""), IoError);
}

TEST(OutputFile, RefusesAFolderThatDoesNotExist) {
  EXPECT_EQ(message_of<IoError>([] { OutputFile file("/nowhere/at/all"); }),
            "cannot create /nowhere/at/all: No such file or directory");
}

TEST(OutputFile, RefusesWhatMayNotBeWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.write("out", "precious");
  ASSERT_EQ(chmod(path.c_str(), 0444), 0);
  ASSERT_EQ(chmod(folder.path().c_str(), 0555), 0);
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(65534), 0) << "nothing is read-only for root";
  }
  const std::string existing = message_of<IoError>([&] { OutputFile file(path); });
  const std::string fresh = message_of<IoError>([&] { OutputFile file(folder.path("new")); });
  ASSERT_EQ(seteuid(user), 0);
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  EXPECT_EQ(existing, "cannot write " + path + ": Permission denied");
  EXPECT_EQ(fresh, "cannot create " + folder.path("new") + ": Permission denied");
}

TEST(OutputFile, AcceptsTheLongestNames) {
  const TemporaryFolder folder;
  const std::string path = folder.path(std::string(255, 'x'));
  OutputFile(path).commit();
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(OutputFile, CanBeRemovedBySignalHandlersWhilePending) {
  const TemporaryFolder folder;
  OutputFile(folder.path("done")).commit();
  std::vector<std::unique_ptr<OutputFile>> files;
  for (int i = 0; i < 100; ++i) {
    files.push_back(std::make_unique<OutputFile>(folder.path("out" + std::to_string(i))));
  }
  EXPECT_EQ(folder.size(), 101);
  remove_temporary_files();
  EXPECT_EQ(folder.size(), 1) << "what was committed stays";
  EXPECT_THROW(files[0]->commit(), IoError);
}

TEST(OutputFile, TwoWritersOfOneNameDoNotMix) {
  const TemporaryFolder folder;
  OutputFile first(folder.path("out"));
  OutputFile second(folder.path("out"));
  first.write("first");
  second.write("second");
  second.commit();
  first.commit();
  EXPECT_EQ(contents(folder.path("out")), "first");
}

}  // namespace
}  // namespace kvbound::traces::output_file_test
