// The folder of a sweep: its plan, its results, and what its workers tell each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "item_result.hpp"
#include "items.hpp"

namespace kvbound::sim {

/// One try to compute an item.
struct Attempt {
  std::string host;
  int64_t process = 0;
  std::optional<std::string> problem;  ///< none: it still runs, or its process was killed
};

/// The right to compute an item: no other process has it at the same time. It ends with the object, and with
/// the process however that ends: it is a lock of the operating system. No clock is involved, nor anything
/// that would have to be cleaned up.
class Claim {
 public:
  Claim(int descriptor, int64_t offset) : descriptor_(descriptor), offset_(offset) {}
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  Claim(Claim&& other) noexcept;

 private:
  int descriptor_;
  int64_t offset_;
};

/// A folder that processes on several machines may use at a time:
///
///     plans/HASH.json   every sweep that was planned here; plan.json is the latest
///     rates.json        what items cost
///     results/XX/KEY    results of items, named by ItemKey::file(); whole or not there
///     runs/KEY          the runs of results with that part of their name, a line a run
///     attempts/KEY      tries to compute items that have no results yet
///     claims            an empty file: whoever computes an item holds a lock on the byte that its key names
///
/// Functions that read or write throw IoError.
class SweepFolder {
 public:
  /// The folder need not be there before `make` or `keep_sweep`.
  explicit SweepFolder(const std::string& path);
  ~SweepFolder();
  SweepFolder(const SweepFolder&) = delete;
  SweepFolder& operator=(const SweepFolder&) = delete;

  const std::string& path() const { return path_; }

  /// Makes what is missing of the folder.
  void make() const;

  /// Makes the folder, and a sweep its latest. Returns the sweep's hash.
  std::string keep_sweep(const Sweep& sweep) const;
  /// The latest sweep, or that of a hash. Throws TraceError if it is no sweep, or has another hash;
  /// IoError if there is none.
  Sweep sweep(const std::optional<std::string>& hash = {}) const;
  /// Whether a text is what hashes of sweeps are: 64 hexadecimal digits in lower case.
  static bool is_hash(std::string_view text);
  /// Whether there is a folder of this path with a sweep.
  static bool is_one(const std::string& path);

  /// A text beside the plans, by its file's name; none if it is not there.
  std::optional<std::string> note(const std::string& name) const;
  void keep_note(const std::string& name, const std::string& text) const;

  /// Whether a file of results is there.
  bool has(const std::string& file) const;
  /// The names of all of them. Files of other names, which no item has, are passed over.
  std::unordered_set<std::string> results() const;
  /// Makes a file of results missing for this object, or for all.
  void disregard(const std::string& file) { disregarded_.insert(file); }
  void remove_result(const std::string& file) const;
  /// The keys of the runs that a file of results has; the file itself is not read.
  /// None if that cannot be said.
  std::vector<std::string> runs_of(const std::string& file) const;
  /// Throws TraceError for a file that is no result of a sweep.
  ItemResult result(const std::string& file) const;
  /// Whether the file can be read and has_its_hash.
  bool is_undamaged(const std::string& file) const;
  void keep_result(const std::string& file, const ItemResult& result) const;
  std::string result_path(const std::string& file) const;

  /// None if another process has it. Throws IoError if the file system has no locks.
  std::optional<Claim> claim(const std::string& file) const;

  /// The tries to compute an item; whoever writes them has its claim.
  std::vector<Attempt> attempts(const std::string& file) const;
  void keep_attempts(const std::string& file, const std::vector<Attempt>& attempts) const;
  void forget_attempts(const std::string& file) const;
  /// Forgets the tries of all items that nobody computes now, and removes what killed
  /// processes of this machine left.
  void forget_attempts() const;
  /// Removes what killed processes left unfinished; for whoever has the item's claim.
  void remove_unfinished(const std::string& file) const;

  /// What the folder has without items, and for an item: paths of folders, and behind them of files in them.
  /// Plans and notes are not among them.
  std::vector<std::string> paths() const;
  std::vector<std::string> paths_of(const std::string& file) const;

 private:
  std::string attempts_path(const std::string& file) const;
  std::string runs_path(const std::string& file) const;

  std::string path_;
  std::unordered_set<std::string> disregarded_;  // results
  mutable int claims_ = -1;  // opened by the first claim: a folder that is only read may be read-only
};

/// This machine's name.
std::string host_name();

}  // namespace kvbound::sim
