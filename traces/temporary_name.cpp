#include "temporary_name.hpp"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "messages.hpp"
#include "sha256.hpp"

namespace kvbound::traces {

// A name, readable by a signal handler at any time. Entries are reused and never freed.
struct HeldName {
  enum class State { unused, taken, held };
  std::atomic<State> state{State::taken};
  std::array<char, PATH_MAX> path{};
  HeldName* next = nullptr;
};

namespace {

namespace fs = std::filesystem;

static_assert(std::atomic<HeldName::State>::is_always_lock_free &&
              std::atomic<HeldName*>::is_always_lock_free);

constexpr size_t kLongestStem = 190;  // leaves room for the prefix and suffix within NAME_MAX = 255
constexpr size_t kMachineDigits = 12;

std::atomic<HeldName*> held_names{nullptr};

HeldName* take_entry() {
  for (HeldName* entry = held_names.load(); entry; entry = entry->next) {
    auto unused = HeldName::State::unused;
    if (entry->state.compare_exchange_strong(unused, HeldName::State::taken)) return entry;
  }
  auto* entry = new HeldName;
  entry->next = held_names.load();
  while (!held_names.compare_exchange_weak(entry->next, entry)) {
  }
  return entry;
}

// Whether there was something of that name, which is gone now.
bool remove_name(const char* path) { return unlink(path) == 0 || (errno == EISDIR && rmdir(path) == 0); }

// MACHINE of names; empty if the system does not say.
std::string find_machine() {
  std::string boot, numbers(PATH_MAX, '\0');
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const ssize_t length = readlink("/proc/self/ns/pid", numbers.data(), numbers.size());
  if (boot.empty() || length <= 0) return "";
  numbers.resize(static_cast<size_t>(length));
  return sha256_of(boot + " " + numbers).substr(0, kMachineDigits);
}

const std::string& machine() {
  static const std::string found = find_machine();
  return found;
}

std::string ending() { return "-" + machine() + ".tmp"; }

// The process of `.TARGET.PID-N-MACHINE.tmp` with this machine; 0 for any other name.
pid_t process_of(std::string_view name) {
  if (machine().empty() || !name.starts_with('.') || !name.ends_with(ending())) return 0;
  name.remove_suffix(ending().size());
  const size_t dash = name.rfind('-'), dot = name.rfind('.', dash);
  if (dash == std::string_view::npos || dot == std::string_view::npos || dot == 0) return 0;
  const auto number = [](std::string_view digits) {
    pid_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() ? value : -1;
  };
  if (number(name.substr(dash + 1)) < 0) return 0;
  return std::max(0, number(name.substr(dot + 1, dash - dot - 1)));
}

bool lives(pid_t process) { return kill(process, 0) == 0 || errno != ESRCH; }

// Whether this is the first call for a folder.
bool is_new(const std::string& folder) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  return known.insert(folder).second;
}

}  // namespace

TemporaryName::TemporaryName(const std::string& path) {
  if (path.size() >= PATH_MAX) throw io_error("create", path, ENAMETOOLONG);
  held_ = take_entry();
  std::copy_n(path.c_str(), path.size() + 1, held_->path.begin());
  held_->state = HeldName::State::held;
}

TemporaryName TemporaryName::beside(const std::string& target) {
  static std::atomic<unsigned> counter{0};
  const fs::path path(target), folder = path.parent_path();
  remove_leftovers(folder.empty() ? "." : folder.string());
  const std::string stem = path.filename().string().substr(0, kLongestStem);
  const std::string number = std::to_string(getpid()) + "-" + std::to_string(counter++);
  return TemporaryName((folder / ("." + stem + "." + number + ending())).string());
}

TemporaryName::TemporaryName(TemporaryName&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}

TemporaryName::~TemporaryName() {
  if (!held_) return;
  remove_name(held_->path.data());
  release();
}

const char* TemporaryName::path() const { return held_->path.data(); }

void TemporaryName::release() noexcept { std::exchange(held_, nullptr)->state = HeldName::State::unused; }

void remove_leftovers(const std::string& folder) noexcept try {
  if (!is_new(folder)) return;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const pid_t process = process_of(entry->path().filename().native());
    std::error_code ignored;
    if (process > 0 && !lives(process)) fs::remove_all(entry->path(), ignored);
  }
} catch (...) {  // for want of memory, which whoever writes next will say
}

void remove_temporary_files() noexcept {
  const int saved = errno;
  for (bool removed = true; removed;) {  // folders after the files in them, in whatever order they are listed
    removed = false;
    for (HeldName* entry = held_names.load(); entry; entry = entry->next)
      removed |= entry->state == HeldName::State::held && remove_name(entry->path.data());
  }
  errno = saved;
}

}  // namespace kvbound::traces
