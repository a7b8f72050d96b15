// SPDX-License-Identifier: Apache-2.0
//
// ncclscope-probe-worker: the part of `ncclscope probe` that calls CUDA and NCCL. It is started by
// that command, takes commands on standard input, answers on descriptor 3 (cli/probe/protocol.h)
// and ends with whoever started it.
//   Threads: main calls CUDA and NCCL; another one reads commands, and on "stop", or when standard
//   input is closed, aborts the communicators and ends the process, whatever main hangs in.
//   Exit status: 0 done, or stopped; 1 failed, and told why.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cli/doctor/nvml.h"
#include "cli/probe/plan.h"
#include "cli/probe/protocol.h"
#include "cli/probe/worker/gpus.h"
#include "topology/machine.h"

namespace ncclscope::cli::probe {
namespace {

constexpr int kLines = 3;  // the descriptor
constexpr const char* kUsage =
    "ncclscope-probe-worker is started by `ncclscope probe`, which has the options.\n"
    "  --gpus all|N,...|local:N   the GPUs of this process, by CUDA's numbers\n"
    "  --sys-root DIR             DIR/sys and DIR/proc instead of the machine's own\n"
    "It takes commands on standard input and answers on descriptor 3.\n";

void say(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t got = ::write(kLines, text.data() + sent, text.size() - sent);
    if (got <= 0) ::_exit(1);  // nobody listens
    sent += static_cast<std::size_t>(got);
  }
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

/// Commands for the main thread.
class Commands {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    some_.notify_one();
  }
  std::string next() {
    std::unique_lock lock(mutex_);
    some_.wait(lock, [this] { return !lines_.empty(); });
    std::string line = std::move(lines_.front());
    lines_.pop_front();
    return line;
  }

 private:
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<std::string> lines_;
};

struct Shared {
  Commands commands;
  std::atomic<Gpus*> gpus{nullptr};
};

/// Runs until the process ends. Not by stdio: its locks would be in the way of exit().
void read_commands(Shared& shared) {
  std::string line;
  bool stopped = false;
  std::array<char, 4096> buffer{};
  while (!stopped) {
    const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(got))) {
      if (c != '\n') {
        line += c;
        continue;
      }
      stopped = stopped || line == "stop";
      shared.commands.add(line);
      line.clear();
    }
  }
  if (Gpus* gpus = shared.gpus.load(); gpus != nullptr) gpus->abort();
  // Not exit(): the main thread may hang in the driver, and handlers would wait for it.
  ::_exit(0);
}

void introduce(const Gpus& gpus, const std::string& sys_root) {
  int nccl = 0, runtime = 0, driver = 0;
  (void)ncclGetVersion(&nccl);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaDriverGetVersion(&driver);
  say("version " + std::to_string(nccl) + " " + std::to_string(runtime) + " " +
      std::to_string(driver));
  for (std::size_t i = 0; i < gpus.size(); ++i) say("gpu " + gpus.address(i) + " " + gpus.name(i));
  topology::Roots roots;
  if (!sys_root.empty())
    roots = {topology::FileTree(sys_root + "/sys"), topology::FileTree(sys_root + "/proc")};
  topology::Machine machine = topology::read_machine(roots);
  say("stage asking NVML");
  if (add_nvml(machine, "libnvidia-ml.so.1").empty())
    for (const std::string& line : link_lines(machine)) say(line);
  say("stage waiting for the others");
  say("ready");
}

void set_variable(std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) return;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): NCCL reads it later, and the other thread never does
  (void)::setenv(std::string(assignment.substr(0, equals)).c_str(),
                 std::string(assignment.substr(equals + 1)).c_str(), 1);
}

void identify() {
  say("stage making NCCL's unique id");
  ncclUniqueId id{};
  static_assert(sizeof id.internal == kIdBytes);
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
    throw std::runtime_error(std::string("ncclGetUniqueId: ") + ncclGetErrorString(result));
  say("id " + to_hex({id.internal, sizeof id.internal}));
}

void measure(Gpus& gpus, const Start& start) {
  const std::vector<Row> rows = rows_of(start.plan, start.ranks);
  say("stage joining the communicator of " + std::to_string(start.ranks) + " ranks");
  gpus.begin(start.id, start.first_rank, start.ranks, buffer_bytes(rows));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    say("stage " + std::string(collective_name(row.collective)) + " of " +
        std::to_string(row.bytes) + " bytes");
    std::vector<std::uint64_t> wrong;
    if (row.checked) wrong = gpus.wrong_results(row);
    if (start.plan.warmup > 0) (void)gpus.repeat(row, start.plan.warmup);
    const std::uint64_t nanoseconds =
        gpus.repeat(row, start.plan.iterations) / start.plan.iterations;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      Result result{static_cast<std::uint32_t>(r),
                    start.first_rank + static_cast<std::uint32_t>(i),
                    nanoseconds,
                    {}};
      if (row.checked) result.wrong = wrong[i];
      say(result_line(result));
    }
  }
  say("stage leaving the communicator");
  gpus.end();
  say("done");
}

void work(const std::string& which, const std::string& sys_root, Shared& shared) {
  say("stage looking for GPUs");
  Gpus gpus(which);
  shared.gpus.store(&gpus);
  introduce(gpus, sys_root);
  for (;;) {
    const std::string line = shared.commands.next();
    if (line == "identify") {
      identify();
    } else if (line.starts_with("set ")) {
      set_variable(std::string_view(line).substr(4));
    } else if (const std::optional<Start> start = parse_start(line)) {
      measure(gpus, *start);
      break;
    } else {
      throw std::runtime_error("a command that it does not understand: " + line.substr(0, 80));
    }
  }
  shared.gpus.store(nullptr);
}

int run(int argc, char** argv) {
  std::string gpus = "all", sys_root;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--help") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if ((option != "--gpus" && option != "--sys-root") || i + 1 >= argc) {
      std::fputs(kUsage, stderr);
      return 2;
    }
    (option == "--gpus" ? gpus : sys_root) = argv[++i];
  }
  if (::fcntl(kLines, F_GETFD) < 0) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);
  Shared shared;
  std::thread(read_commands, std::ref(shared)).detach();
  try {
    work(gpus, sys_root, shared);
  } catch (const std::runtime_error& error) {
    say("failed " + one_line(error.what()));
    std::fflush(nullptr);
    ::_exit(1);  // what failed in CUDA or NCCL may hang in its destructors
  }
  std::exit(0);  // NOLINT(concurrency-mt-unsafe): handlers of profilers send what is left
}

}  // namespace
}  // namespace ncclscope::cli::probe

int main(int argc, char** argv) {
  return ncclscope::cli::probe::run(argc, argv);
}
