// SPDX-License-Identifier: Apache-2.0
//
// Stands in for ncclscope-probe-worker where there is neither NCCL nor CUDA: says the lines that
// one would say, with results computed from the row and the rank, so that tests know them: (row +
// 1) * 1000 + rank nanoseconds, nothing wrong.
//   --gpus N          so many GPUs ("all": two, "local:N": one)
//   --gpus FAULT      one GPU, and: "no-driver" fails at once; "dies" at start; "hangs" at start,
//                     and ends when told; "stuck": the same, but heeds neither "stop" nor an end of
//                     its input; "silent": says nothing; "garbage"; "unloadable": status 127
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include "cli/probe/protocol.h"

namespace {

using namespace ncclscope::cli::probe;  // NOLINT(google-build-using-namespace): a small program

void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(3, text.data(), text.size()) < 0) std::_Exit(1);
}

[[noreturn]] void sleep_for_ever() {
  for (;;) ::sleep(1000);
}

void introduce(int gpus) {
  say("version 22809 12080 12080");
  for (int g = 0; g < gpus; ++g) say("gpu 0000:0" + std::to_string(g + 1) + ":00.0 Stand-in GPU");
  say("stage waiting for the others");
  say("ready");
}

int measure(const Start& start, std::uint32_t gpus) {
  const std::vector<Row> rows = rows_of(start.plan, start.ranks);
  for (std::uint32_t r = 0; r < rows.size(); ++r) {
    say("stage " + std::string(collective_name(rows[r].collective)));
    for (std::uint32_t rank = start.first_rank; rank < start.first_rank + gpus; ++rank) {
      Result result{r, rank, (r + 1) * 1000U + rank, {}};
      if (rows[r].checked) result.wrong = 0;
      say(result_line(result));
    }
  }
  say("done");
  return 0;
}

int begin(const Start& start, const std::string& what, int gpus) {
  say("stage joining the communicator");
  if (what == "dies") std::abort();
  if (what == "stuck") sleep_for_ever();
  std::string line;
  while (what == "hangs" && std::getline(std::cin, line) && line != "stop") {
  }
  return what == "hangs" ? 0 : measure(start, static_cast<std::uint32_t>(gpus));
}

}  // namespace

int main(int argc, char** argv) {
  std::string what = "all";
  for (int i = 1; i + 1 < argc; i += 2)
    if (std::string(argv[i]) == "--gpus") what = argv[i + 1];
  int gpus = 1;
  if (what == "all") gpus = 2;
  if (what[0] >= '0' && what[0] <= '9') gpus = std::atoi(what.c_str());
  if (what == "unloadable") return 127;
  if (what == "silent") sleep_for_ever();
  if (what == "garbage") say("\x1b[2Jgarbage");
  if (what == "no-driver") {
    say("failed no NVIDIA driver");
    return 1;
  }
  introduce(gpus);
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "stop") return 0;
    if (line == "identify") say("id " + to_hex(std::string(kIdBytes, 'i')));
    if (line.starts_with("set ")) std::cerr << "stand-in worker: " << line << std::endl;
    if (const std::optional<Start> start = parse_start(line)) return begin(*start, what, gpus);
  }
  return 0;
}
