#include "sweep_folder.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/fields.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/sha256.hpp>
#include <kvbound/traces/system_call.hpp>
#include <kvbound/traces/temporary_name.hpp>

namespace kvbound::sim {

template <>
struct Fields<Attempt> {
  static void visit(auto& attempt, const auto& visit) {
    visit("host", attempt.host);
    visit("process", attempt.process);
    visit("problem", attempt.problem);
  }
};

namespace {

namespace fs = std::filesystem;
using traces::OutputFile, traces::uninterrupted;

constexpr std::array kParts{"plans", "results", "runs", "attempts"};
constexpr const char* kClaims = "claims";
constexpr int64_t kMostKeysBytes = int64_t{16} << 20;  // of runs, a line each

void write_file(const std::string& path, std::string_view text,
                OutputFile::Durability durability = OutputFile::Durability::machine) {
  OutputFile file(path, durability);
  file.write(text);
  file.commit();
}

// The byte of an item in the file of claims. Items that share one, which is as good as impossible,
// only wait for each other.
int64_t claim_offset(const std::string& file) {
  int64_t offset = 0;
  const std::string digits = traces::sha256_of(file).substr(0, 15);
  std::from_chars(digits.data(), digits.data() + digits.size(), offset, 16);
  return offset;
}

// Locks or unlocks a byte for this open file; returns errno.
int set_lock(int descriptor, int64_t offset, short kind) {
  struct flock lock {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = offset;
  lock.l_len = 1;
  return uninterrupted([&] { return fcntl(descriptor, F_OFD_SETLK, &lock); }) == 0 ? 0 : errno;
}

// Removes what stands in the place of a file, or of a folder, and is none; never a link, and never a folder
// that another process has put there meanwhile.
void make_way(const fs::path& path, fs::file_type kind) {
  std::error_code error;
  const fs::file_type found = fs::symlink_status(path, error).type();
  if (found == kind || found == fs::file_type::symlink || found == fs::file_type::not_found ||
      found == fs::file_type::none)
    return;
  if (found == fs::file_type::directory) {
    fs::remove_all(path, error);
    if (error) throw traces::io_error("remove", path.string(), error.value());
  } else if (unlink(path.c_str()) != 0 && errno != ENOENT && errno != EISDIR) {
    throw traces::io_error("remove", path.string(), errno);
  }
}

// The same before a file is written.
void write_over(const fs::path& path, std::string_view text,
                OutputFile::Durability durability = OutputFile::Durability::machine) {
  make_way(path, fs::file_type::regular);
  write_file(path.string(), text, durability);
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw traces::io_error("make the folder", path.string(), error.value());
}

// A file's text; empty if it cannot be read.
std::string text_or_none(const std::string& path) {
  try {
    return traces::whole_text(path, kMostKeysBytes);
  } catch (const Error&) {
    return "";
  }
}

// Whether ItemKey::file() may give a name.
bool is_result_name(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789abcdef-") == std::string::npos;
}

// Calls visit(path) for every file in a folder that may vanish meanwhile, or be a file.
template <class Visit>
void for_each_file(const fs::path& folder, const Visit& visit) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    visit(entry->path());
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw traces::io_error("read the folder", folder.string(), error.value());
}

}  // namespace

Claim::~Claim() {
  if (descriptor_ >= 0) set_lock(descriptor_, offset_, F_UNLCK);
}

Claim::Claim(Claim&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), offset_(other.offset_) {}

SweepFolder::SweepFolder(const std::string& path) : path_(path) {}

SweepFolder::~SweepFolder() {
  if (claims_ >= 0) close(claims_);
}

void SweepFolder::make() const {
  for (const char* part : kParts) make_folder(fs::path(path_) / part);
}

std::string SweepFolder::keep_sweep(const Sweep& sweep) const {
  make();
  const std::string text = text_of(sweep), hash = traces::sha256_of(text);
  write_over(fs::path(path_) / "plans" / (hash + ".json"), text);
  const fs::path latest = fs::path(path_) / "plan.json";
  if (fs::exists(latest) && !fs::is_regular_file(latest))  // nobody would read from a FIFO
    throw IoError("cannot write " + without_middle(latest.string()) + ": it is no regular file");
  write_file(latest.string(), text);
  return hash;
}

bool SweepFolder::is_one(const std::string& path) { return fs::exists(fs::path(path) / "plan.json"); }

std::optional<std::string> SweepFolder::note(const std::string& name) const {
  const std::string path = (fs::path(path_) / name).string();
  std::error_code damaged;
  if (!fs::exists(path, damaged) && !damaged) return std::nullopt;
  return traces::whole_text(path, kMostWrittenFileBytes);
}

void SweepFolder::keep_note(const std::string& name, const std::string& text) const {
  write_over(fs::path(path_) / name, text);
}

Sweep SweepFolder::sweep(const std::optional<std::string>& hash) const {
  const fs::path folder(path_);
  const std::string path = (hash ? folder / "plans" / (*hash + ".json") : folder / "plan.json").string();
  const std::string text = traces::whole_text(path, kMostWrittenFileBytes);
  if (hash && traces::sha256_of(text) != *hash)
    throw TraceError(path, -1, "", "was damaged: its hash is another than its name");
  return parse_sweep(path, text);
}

bool SweepFolder::is_hash(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string SweepFolder::result_path(const std::string& file) const {
  return (fs::path(path_) / "results" / file.substr(0, 2) / file).string();
}

std::string SweepFolder::attempts_path(const std::string& file) const {
  return (fs::path(path_) / "attempts" / file).string();
}

std::string SweepFolder::runs_path(const std::string& file) const {
  const size_t begin = file.find('-') + 1;
  return (fs::path(path_) / "runs" / file.substr(begin, file.find('-', begin) - begin)).string();
}

bool SweepFolder::has(const std::string& file) const {
  if (disregarded_.contains(file)) return false;
  std::error_code error;
  const bool found = fs::exists(result_path(file), error);
  if (error) throw traces::io_error("look for", result_path(file), error.value());
  return found;
}

std::unordered_set<std::string> SweepFolder::results() const {
  std::unordered_set<std::string> names;
  for_each_file(fs::path(path_) / "results", [&](const fs::path& part) {
    for_each_file(part, [&](const fs::path& file) {
      const std::string name = file.filename().string();
      if (is_result_name(name) && !disregarded_.contains(name)) names.insert(name);
    });
  });
  return names;
}

void SweepFolder::remove_result(const std::string& file) const {
  std::error_code error;
  fs::remove_all(result_path(file), error);  // all: it may be a folder
  if (error) throw traces::io_error("remove", result_path(file), error.value());
}

bool SweepFolder::is_undamaged(const std::string& file) const {
  try {
    return has_its_hash(traces::whole_text(result_path(file), kMostWrittenFileBytes));
  } catch (const Error&) {
    return false;
  }
}

ItemResult SweepFolder::result(const std::string& file) const {
  return item_result_of(result_path(file), traces::whole_text(result_path(file), kMostWrittenFileBytes));
}

void SweepFolder::keep_result(const std::string& file, const ItemResult& result) const {
  const std::string path = result_path(file), bytes = bytes_of(result);
  require_readable(path, bytes);
  make_way(fs::path(path).parent_path(), fs::file_type::directory);
  make_folder(fs::path(path).parent_path());
  std::string keys;
  for (const RunPart& run : result.runs) keys += run.key + "\n";
  // Before the results, which are found by it.
  if (text_or_none(runs_path(file)) != keys) write_over(runs_path(file), keys);
  write_over(path, bytes);
}

std::vector<std::string> SweepFolder::runs_of(const std::string& file) const {
  std::istringstream lines(text_or_none(runs_path(file)));
  std::vector<std::string> keys;
  for (std::string key; std::getline(lines, key);) keys.push_back(key);
  return keys;
}

std::optional<Claim> SweepFolder::claim(const std::string& file) const {
  if (claims_ < 0) {
    const std::string path = (fs::path(path_) / kClaims).string();
    claims_ = uninterrupted([&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
    if (claims_ < 0) throw traces::io_error("open", path, errno);
  }
  const int64_t offset = claim_offset(file);
  const int failed = set_lock(claims_, offset, F_WRLCK);
  if (failed == 0) return Claim(claims_, offset);
  if (failed == EAGAIN || failed == EACCES) return std::nullopt;
  throw traces::io_error("lock", path_ + "/claims", failed);
}

std::vector<Attempt> SweepFolder::attempts(const std::string& file) const {
  const std::string path = attempts_path(file);
  std::error_code damaged;
  if (!fs::exists(path, damaged) && !damaged) return {};
  try {
    return parse_fields<std::vector<Attempt>>("attempts", traces::whole_text(path, kMostWrittenFileBytes));
  } catch (const Error&) {  // damaged
    return {Attempt{}};
  }
}

void SweepFolder::keep_attempts(const std::string& file, const std::vector<Attempt>& attempts) const {
  write_over(attempts_path(file),
             fields_of(attempts).dump(-1, ' ', false, FieldsJson::error_handler_t::replace),
             OutputFile::Durability::process);
}

void SweepFolder::forget_attempts(const std::string& file) const {
  make_way(attempts_path(file), fs::file_type::regular);
  if (unlink(attempts_path(file).c_str()) != 0 && errno != ENOENT)
    throw traces::io_error("remove", attempts_path(file), errno);
}

void SweepFolder::forget_attempts() const {
  for (const char* part : {"attempts", "runs"}) traces::remove_leftovers((fs::path(path_) / part).string());
  for_each_file(fs::path(path_) / "results",
                [](const fs::path& part) { traces::remove_leftovers(part.string()); });
  for_each_file(fs::path(path_) / "attempts", [&](const fs::path& path) {
    const std::string file = path.filename().string();
    if (file.starts_with('.')) return;
    if (const auto claim = this->claim(file)) {
      remove_unfinished(file);
      forget_attempts(file);
    }
  });
}

void SweepFolder::remove_unfinished(const std::string& file) const {
  for_each_file(fs::path(result_path(file)).parent_path(), [&](const fs::path& path) {
    const std::string name = path.filename().string();
    if (name.starts_with("." + file + ".") && name.ends_with(".tmp")) unlink(path.c_str());
  });
}

std::vector<std::string> SweepFolder::paths_of(const std::string& file) const {
  const std::string result = result_path(file);
  return {fs::path(result).parent_path().string(), result, runs_path(file), attempts_path(file)};
}

std::vector<std::string> SweepFolder::paths() const {
  std::vector<std::string> all;
  for (const char* part : kParts) all.push_back((fs::path(path_) / part).string());
  all.push_back((fs::path(path_) / kClaims).string());
  return all;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace kvbound::sim
