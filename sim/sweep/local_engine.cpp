#include "local_engine.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/fields.hpp>
#include <kvbound/sim/options/this_program.hpp>

namespace kvbound::sim {

template <>
struct Fields<WorkerLine> {
  static void visit(auto& line, const auto& visit) {
    visit("item", line.item);
    visit("file", line.file);
    visit("seconds", line.seconds);
    visit("given_up", line.given_up);
  }
};

namespace {

// The number of GPUs that the driver names.
int64_t gpus() {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator gpu("/proc/driver/nvidia/gpus", error), end; !error && gpu != end;
       gpu.increment(error))
    ++count;
  return count;
}

// A worker process, and the lines that it writes to its standard output.
class WorkerProcess {
 public:
  WorkerProcess(std::vector<std::string> arguments, std::optional<int64_t> gpu) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0)
      throw IoError("cannot make a pipe: " + std::generic_category().message(errno));
    const ThisProgram& program = this_program();
    arguments.insert(arguments.begin(), program.first.begin(), program.first.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    std::vector<std::string> variables;
    for (char** variable = environ; *variable; ++variable) variables.emplace_back(*variable);
    if (gpu) variables.push_back(fmt::format("CUDA_VISIBLE_DEVICES={}", *gpu));
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    const pid_t engine = getpid();
    process_ = fork();
    if (process_ == 0) {  // between fork and exec only what is safe in a process that has threads
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != engine) _exit(1);
      dup2(ends[1], STDOUT_FILENO);
      execve(program.executable.c_str(), pointers.data(), environment.data());
      _exit(126);
    }
    const int error = errno;
    close(ends[1]);
    output_ = ends[0];
    if (process_ > 0) return;
    close(output_);
    throw IoError("cannot start a process: " + std::generic_category().message(error));
  }
  ~WorkerProcess() {
    close(output_);
    if (process_ <= 0) return;
    kill(process_, SIGTERM);
    wait();
  }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  int output() const { return output_; }

  // Calls take(line) for every whole line that has arrived; false at the output's end.
  template <class Take>
  bool read(const Take& take) {
    std::array<char, 4096> buffer{};
    const ssize_t count = ::read(output_, buffer.data(), buffer.size());
    if (count < 0) return errno == EINTR || errno == EAGAIN;
    pending_.append(buffer.data(), static_cast<size_t>(count));
    for (size_t end = 0; (end = pending_.find('\n')) != std::string::npos; pending_.erase(0, end + 1))
      take(pending_.substr(0, end));
    return count > 0;
  }

  // The status with which the process ended, as of waitpid.
  int wait() {
    int status = 0;
    while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = 0;
    return status;
  }

 private:
  pid_t process_ = 0;
  int output_ = -1;
  std::string pending_;
};

class LocalEngine {
 public:
  LocalEngine(const SweepFolder& folder, const std::string& hash, const LocalOptions& options,
              const std::function<void(int64_t, double)>& report)
      : folder_(folder), hash_(hash), options_(options), report_(report), gpus_(gpus()) {}

  LocalOutcome run() {
    workers_.resize(static_cast<size_t>(options_.jobs));
    for (int64_t i = 0; i < options_.jobs; ++i) start(i);
    while (std::ranges::any_of(workers_, [](const auto& worker) { return worker != nullptr; })) listen();
    return std::move(outcome_);
  }

 private:
  void start(int64_t job) {
    const int64_t count = options_.jobs * options_.share.count;
    const int64_t index = options_.share.index * options_.jobs + job;
    const auto processors = static_cast<int64_t>(std::thread::hardware_concurrency());
    const int64_t threads =
        options_.threads > 0 ? options_.threads : std::max<int64_t>(1, processors / options_.jobs);
    std::optional<int64_t> gpu;
    if (gpus_ > 1 && !std::getenv("CUDA_VISIBLE_DEVICES")) gpu = job % gpus_;
    workers_[job] = std::make_unique<WorkerProcess>(
        std::vector<std::string>{"sweep", "--out", folder_.path(), "--worker",
                                 fmt::format("{}/{}", index, count), "--sweep", hash_, "--retries",
                                 std::to_string(options_.retries), "--threads", std::to_string(threads)},
        gpu);
  }

  void listen() {
    std::vector<pollfd> outputs;
    std::vector<int64_t> jobs;
    for (int64_t i = 0; i < options_.jobs; ++i) {
      if (!workers_[i]) continue;
      outputs.push_back({workers_[i]->output(), POLLIN, 0});
      jobs.push_back(i);
    }
    if (poll(outputs.data(), outputs.size(), -1) < 0) return;  // a signal
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].revents == 0) continue;
      if (!workers_[jobs[i]]->read([&](const std::string& line) { take(line); })) ended(jobs[i]);
    }
  }

  void take(const std::string& line) {
    deaths_ = 0;
    const auto found = worker_line_of(line);
    if (!found) return;
    if (found->given_up.empty()) {
      ++outcome_.done;
      if (report_) report_(found->item, found->seconds);
      return;
    }
    std::vector<Attempt>& attempts = outcome_.given_up[found->file];
    attempts.clear();
    for (const std::string& problem : found->given_up) attempts.push_back({"", 0, problem});
  }

  // A worker that was killed is replaced: its item's tries are counted. One that gave up by itself is not.
  void ended(int64_t job) {
    const int status = workers_[job]->wait();
    workers_[job].reset();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const bool replace = WIFSIGNALED(status) || WEXITSTATUS(status) == kReplaceWorker;
    if (replace && ++deaths_ <= options_.jobs * (options_.retries + 2)) {
      start(job);
    } else {
      outcome_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 4;
    }
  }

  const SweepFolder& folder_;
  const std::string& hash_;
  const LocalOptions& options_;
  const std::function<void(int64_t, double)>& report_;
  int64_t gpus_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;  // [jobs]; null: ended
  int64_t deaths_ = 0;                                   // since the last item that was done or given up
  LocalOutcome outcome_;
};

}  // namespace

LocalOutcome run_locally(const SweepFolder& folder, const std::string& hash, const LocalOptions& options,
                         const std::function<void(int64_t, double)>& report) {
  return LocalEngine(folder, hash, options, report).run();
}

std::optional<WorkerLine> worker_line_of(const std::string& line) try {
  return parse_fields<WorkerLine>("line", line);
} catch (const Error&) {
  return std::nullopt;
}

std::string line_of(const ItemReport& report) {
  WorkerLine line{report.item->number, report.item->file, report.seconds, {}};
  for (const Attempt& attempt : report.attempts) line.given_up.push_back(attempt.problem.value_or(""));
  return fields_of(line).dump(-1, ' ', false, FieldsJson::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
