#include "slurm_engine.hpp"

#include <sys/wait.h>
#include <array>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>

namespace kvbound::sim {
namespace {

namespace fs = std::filesystem;

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// The output of a shell command, and its exit code.
std::pair<std::string, int> output_of(const std::string& command) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) throw IoError("cannot run " + command);
  std::string text;
  std::array<char, 4096> buffer{};
  for (size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    text.append(buffer.data(), count);
  const int status = pclose(pipe);
  while (text.ends_with('\n')) text.pop_back();
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

std::string program() { return fs::read_symlink("/proc/self/exe").string(); }

std::string sbatch_line(const std::string& options) {
  return options.empty() ? "" : "#SBATCH " + options + "\n";
}

// Writes a script and submits it; returns the job's id.
std::string submit_script(const fs::path& path, const std::string& script, const std::string& options) {
  traces::OutputFile file(path.string());
  file.write(script);
  file.commit();
  const std::string command = fmt::format("sbatch --parsable {}{}", options, shell_quoted(path.string()));
  const auto [text, code] = output_of(command);
  if (code != 0) throw IoError(fmt::format("sbatch failed ({}): {}", code, traces::printable(text, 400)));
  return text.substr(0, text.find(';'));  // "id" or "id;cluster"
}

std::string gather_script(const SweepFolder& folder, const SlurmOptions& options) {
  std::string call = fmt::format("{} gather {} --quiet", shell_quoted(program()),
                                 shell_quoted(fs::absolute(folder.path()).string()));
  if (options.json) call += " --json " + shell_quoted(fs::absolute(*options.json).string());
  if (options.csv) call += " --csv " + shell_quoted(fs::absolute(*options.csv).string());
  return "#!/bin/bash\n#SBATCH --job-name=kvbound-gather\n" + sbatch_line("--requeue --open-mode=append") +
         sbatch_line(options.sbatch) + "srun --ntasks=1 " + call + "\n";
}

}  // namespace

std::string array_script(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options) {
  std::string script = "#!/bin/bash\n#SBATCH --job-name=kvbound-sweep\n";
  script +=
      sbatch_line(fmt::format("--array=0-{} --ntasks=1 --requeue --open-mode=append", options.jobs - 1));
  if (options.threads) script += sbatch_line(fmt::format("--cpus-per-task={}", *options.threads));
  if (options.gpu) script += sbatch_line("--gpus-per-task=1");
  script += sbatch_line(options.sbatch);
  script += "# A task whose node fails is requeued; it passes over the items that have results by then.\n";
  script += fmt::format(
      "srun --ntasks=1{} {} sweep --out {} --sweep {} --share \"$SLURM_ARRAY_TASK_ID/{}\" --jobs 1 \\\n"
      "    --threads \"${{SLURM_CPUS_PER_TASK:-1}}\" --retries {} --quiet\n",
      options.gpu ? " --gpus-per-task=1" : "", shell_quoted(program()),
      shell_quoted(fs::absolute(folder.path()).string()), hash, options.jobs, options.retries);
  return script;
}

std::string submit(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options) {
  const fs::path place = fs::absolute(folder.path()) / "slurm";
  fs::create_directories(place);
  const std::string logs = shell_quoted((place / "%x-%A_%a.log").string());
  const std::string array = submit_script(place / "sweep.sh", array_script(folder, hash, options),
                                          fmt::format("--output={} ", logs));
  if (options.json || options.csv) {
    submit_script(place / "gather.sh", gather_script(folder, options),
                  fmt::format("--dependency=afterany:{} --output={} ", array,
                              shell_quoted((place / "%x-%j.log").string())));
  }
  return array;
}

bool is_alive(const std::string& job) {
  const auto [text, code] = output_of("squeue --noheader --format=%i --jobs=" + shell_quoted(job));
  return code == 0 && !text.empty();
}

}  // namespace kvbound::sim
