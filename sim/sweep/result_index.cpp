#include "result_index.hpp"

#include <algorithm>

namespace kvbound::sim {

ResultIndex::ResultIndex(const SweepFolder& folder, const Sweep& sweep)
    : folder_(folder), sweep_(sweep), files_(folder.results()) {
  for (const Run& run : sweep.runs) run_keys_.push_back(depends_on_trace(run) ? std::string() : key_of(run));
}

// run_keys_, or of a run that depends on the trace what that is, too.
std::string ResultIndex::run_key(size_t run, size_t trace) const {
  return run_keys_[run].empty() ? key_of(sweep_.runs[run], sweep_.traces[trace]) : run_keys_[run];
}

std::vector<ResultSource> ResultIndex::sources_of(const SweepItem& item, const ItemKey& key, bool mixed) {
  if (has(key.file())) return {{key.file(), *item.runs}};
  std::vector<std::string> files = files_of(key.content);
  const auto is_own = [&](const std::string& file) { return file.ends_with("-" + key.computation); };
  const auto others = std::stable_partition(files.begin(), files.end(), is_own);
  if (!mixed) files.erase(others, files.end());
  std::vector<size_t> wanted = *item.runs;
  std::vector<ResultSource> sources;
  for (const std::string& file : files) {
    if (wanted.empty()) break;
    const std::unordered_set<std::string>& known = runs_in(file);
    ResultSource source{file, {}};
    std::erase_if(wanted, [&](size_t r) {
      const bool found = known.contains(run_key(r, item.trace));
      if (found) source.runs.push_back(r);
      return found;
    });
    if (!source.runs.empty()) sources.push_back(std::move(source));
  }
  return sources;
}

const std::vector<std::string>& ResultIndex::files_of(const std::string& content) {
  if (!has_contents_) {
    for (const std::string& file : files_) contents_[file.substr(0, file.find('-'))].push_back(file);
    for (auto& [key, files] : contents_) std::ranges::sort(files);
    has_contents_ = true;
  }
  static const std::vector<std::string> kNone;
  const auto found = contents_.find(content);
  return found == contents_.end() ? kNone : found->second;
}

const std::unordered_set<std::string>& ResultIndex::runs_in(const std::string& file) {
  const size_t begin = file.find('-') + 1;
  const std::string digest = file.substr(begin, file.find('-', begin) - begin);
  const auto [runs, is_new] = runs_.try_emplace(digest);
  if (!is_new) return runs->second;
  std::vector<std::string> keys = folder_.runs_of(file);
  if (digest_of_runs(keys) == digest)  // else it was damaged: such results are found by their own items alone
    for (std::string& key : keys) runs->second.insert(std::move(key));
  return runs->second;
}

std::vector<FinishedFile> finished_files(const SweepFolder& folder, const Sweep& sweep) {
  ResultIndex index(folder, sweep);
  ItemKeys keys(sweep);
  std::unordered_set<std::string> taken;
  std::vector<FinishedFile> files;
  for (const SweepItem& item : items_of(sweep)) {
    for (ResultSource& source : index.sources_of(item, keys.of(item), false)) {
      if (taken.insert(source.file).second) files.push_back({item.trace, std::move(source.file)});
    }
  }
  return files;
}

std::vector<size_t> runs_without(const SweepItem& item, const std::vector<ResultSource>& sources) {
  std::vector<size_t> runs = *item.runs;
  for (const ResultSource& source : sources)
    std::erase_if(runs, [&](size_t r) { return std::ranges::count(source.runs, r) > 0; });
  return runs;
}

}  // namespace kvbound::sim
