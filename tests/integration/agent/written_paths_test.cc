// SPDX-License-Identifier: Apache-2.0
//
// The agent writes only below the directories that its settings name. Whatever processes call their
// jobs, nodes, communicators and variables, nothing appears and nothing changes anywhere else.
// Everything that the texts aim at lies in one temporary folder, the working directory included.
#include <netinet/in.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/archive/segment_store.h"
#include "agent/identity/label_value.h"
#include "tests/integration/agent/agent_program.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

namespace fs = std::filesystem;
using testing::eventually;
using testing::make_hello;
using testing::make_init;
using testing::Packet;
using testing::PacketBuilder;
using testing::Plugin;
using testing::Program;
using testing::read_file;
using testing::Strings;
using tests::TemporaryDirectory;
using wire::StringKey;

/// Everything below a folder, by its path there: kind, mode, size and time of change, of folders
/// too, so that what came and went is seen. Of `own` nothing, nor of the folder itself, in which
/// the agent makes those.
std::map<std::string, std::string> tree(const fs::path& root, const std::set<std::string>& own) {
  std::map<std::string, std::string> out;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator();
       ++it) {
    const std::string path = it->path().lexically_relative(root).string();
    if (own.contains(path)) {
      it.disable_recursion_pending();
      continue;
    }
    struct stat about {};
    EXPECT_EQ(::lstat(it->path().c_str(), &about), 0) << it->path();
    out[path] = concat("mode ", about.st_mode, ", ", about.st_size, " bytes, changed ",
                       about.st_ctim.tv_sec, ".", about.st_ctim.tv_nsec);
  }
  return out;
}

class WrittenPaths : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"elsewhere", "work", "nothing"})
      fs::create_directory(directory_ / folder);
    std::ofstream(directory_ / "elsewhere/kept") << "as it was";
    before_ = fs::current_path();
    fs::current_path(directory_ / "work");  // the agent inherits it
    const std::string here = directory_ / "";
    texts_ = {"..",
              ".",
              "../planted",
              "../../elsewhere/planted",
              "../elsewhere/kept",
              "/",
              here + "planted",
              here + "elsewhere/kept",
              here + "archive/../elsewhere/planted",
              here + "archive",
              here + "ready",
              here + "agent.sock",
              "/proc/self/cwd/planted",
              "//../../../../../../../../../../../../../../../.." + here + "elsewhere/planted",
              std::string("planted\0/../../elsewhere/planted", 32),
              std::string("\0", 1),
              std::string("../elsewhere/planted\0", 21),
              "\n../elsewhere/planted",
              "%2E%2E%2Felsewhere%2Fplanted",
              "\xC0\xAE\xC0\xAE/elsewhere/planted",
              "~/planted",
              "$(touch planted)`touch planted`;touch planted|touch planted&",
              "%s%n%n%Y/planted",
              "node0.lock",
              "../node0.lock",
              std::string(wire::kMaxStringBytes, 'p'),
              std::string(wire::kMaxStringBytes, '.'),
              std::string(wire::kMaxStringBytes, '/')};
    std::string far;
    while (far.size() < wire::kMaxStringBytes) far += "../";
    texts_.push_back(far);
  }
  void TearDown() override { fs::current_path(before_); }

  [[nodiscard]] std::vector<std::string> arguments() const {
    return {"--socket", socket_, "--api-socket", directory_ / "api.sock", "--listen", "127.0.0.1:0",
            // Whatever this test runs in, jobs are what processes call them.
            "--proc-root", directory_ / "nothing", "--pods-log-root", directory_ / "nothing",
            "--node", "node0", "--ready-file", ready_, "--archive-directory", archive_.string(),
            "--archive-flush-seconds", "1", "--inspector-window-seconds", "1"};
  }
  [[nodiscard]] std::map<std::string, std::string> elsewhere() const {
    return tree(directory_ / "", {"archive", "agent.sock", "api.sock", "ready", "log"});
  }

  /// A process of one rank that says `text` wherever it may say something.
  void process(std::uint64_t session, const Strings& claims, const std::string& text, bool ends) {
    const std::string aimed = "=" + text;
    std::vector<std::string> variables;
    for (const char* name :
         {"NCCL_INSPECTOR_DUMP_DIR", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE",
          "NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_FILE", "NCCLSCOPE_SOCKET", "NCCL_PROFILER_PLUGIN"})
      variables.push_back(name + aimed);
    variables.push_back("NCCL_INSPECTOR_PROM_DUMP=1");
    Plugin plugin(socket_);
    ASSERT_TRUE(plugin.connected());
    ASSERT_TRUE(plugin.send(PacketBuilder()
                                .hello(make_hello(session), claims)
                                .environment({variables.begin(), variables.end()})
                                .finish()));
    const std::string name = text.substr(0, wire::kMaxCommNameBytes);
    PacketBuilder records;
    records.init(make_init(0, session, 0, 1), {{StringKey::kCommunicatorName, name},
                                               {StringKey::kGpuPciBusId, text},
                                               {StringKey::kGpuUuid, text}});
    ASSERT_TRUE(plugin.send(records.operations(3).finish(1)));
    // Nobody waits for answers, and the other connections break off: what was sent is read.
    if (ends) {
      ASSERT_TRUE(plugin.send(PacketBuilder().finalize(0).goodbye().finish(4)));
    }
  }
  /// As SLURM's job, and as a pod.
  void processes(std::uint64_t first_session) {
    std::uint64_t session = first_session;
    for (const std::string& text : texts_) {
      Strings slurm, pod;
      for (const StringKey key :
           {StringKey::kSlurmJobId, StringKey::kSlurmStepId, StringKey::kSlurmdNodeName,
            StringKey::kSlurmJobName, StringKey::kHostname, StringKey::kExecutable,
            StringKey::kSlurmClusterName, StringKey::kNodeName, StringKey::kRank,
            StringKey::kLocalRank, StringKey::kPluginVersion, StringKey::kSlurmJobUser})
        slurm.emplace_back(key, text);
      for (const StringKey key : {StringKey::kPodNamespace, StringKey::kPodName,
                                  StringKey::kJobName, StringKey::kNodeName, StringKey::kHostname})
        pod.emplace_back(key, text);
      process(session, slurm, text, session % 4 == 0);
      process(session + 1, pod, text, session % 4 == 2);
      session += 2;
    }
    refused(session);
  }
  /// A string longer than any may be.
  void refused(std::uint64_t session) {
    const std::string text(wire::kMaxStringBytes, 'q');
    Packet packet = PacketBuilder()
                        .hello(make_hello(session),
                               {{StringKey::kSlurmJobId, text}, {StringKey::kSlurmJobName, text}})
                        .finish();
    const auto at = std::search(packet.begin(), packet.end(), text.begin(), text.end(),
                                [](std::byte a, char b) { return a == std::byte(b); });
    ASSERT_NE(at, packet.end());
    const auto longer = static_cast<std::uint16_t>(2 * text.size() + sizeof(wire::StringHeader));
    std::memcpy(&*at - sizeof longer, &longer, sizeof longer);
    Plugin plugin(socket_);
    ASSERT_TRUE(plugin.send(packet));
    EXPECT_TRUE(plugin.await_end());
  }

  /// The folder of a SLURM job that is called so.
  [[nodiscard]] fs::path folder_of(const std::string& text) const {
    return archive_ / file_name_of(label_value(text));
  }
  /// One folder a job and in it segments of this node, and nothing else of any kind.
  void expect_segments_only() const {
    for (const auto& entry : fs::directory_iterator(archive_)) {
      if (entry.path().filename() == "node0.lock") continue;
      ASSERT_TRUE(entry.symlink_status().type() == fs::file_type::directory) << entry.path();
      for (const auto& file : fs::directory_iterator(entry.path())) {
        const std::string name = file.path().filename().string();
        EXPECT_TRUE(file.symlink_status().type() == fs::file_type::regular) << file.path();
        EXPECT_TRUE(name.starts_with("node0-")) << file.path();
        EXPECT_TRUE(name.ends_with(".ncsa") || name.ends_with(".ncsa.part")) << file.path();
      }
    }
  }
  [[nodiscard]] std::size_t parts() const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(archive_))
      if (entry.path().extension() == ".part") ++count;
    return count;
  }
  /// The answer to a GET of the agent's HTTP address.
  [[nodiscard]] std::string get(const std::string& path) const {
    const std::string settings = read_file(ready_);
    const std::size_t at = settings.find("http=127.0.0.1:");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(settings.substr(at + 15))));
    const ScopedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return "cannot connect";
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "cannot send";
    std::string answer(1 << 16, '\0');
    std::size_t size = 0;
    for (ssize_t n = 1; n > 0 && size < answer.size(); size += static_cast<std::size_t>(n)) {
      n = ::recv(fd.get(), answer.data() + size, answer.size() - size, 0);
      if (n < 0) break;
    }
    answer.resize(size);
    return answer;
  }

  TemporaryDirectory directory_;
  std::string socket_ = directory_ / "agent.sock";
  std::string ready_ = directory_ / "ready";
  fs::path archive_ = directory_ / "archive";
  fs::path before_;
  std::vector<std::string> texts_;
};

TEST_F(WrittenPaths, AreBelowTheAgentsOwnDirectoriesWhateverProcessesSay) {
  const auto untouched = elsewhere();
  ASSERT_TRUE(untouched.contains("elsewhere/kept"));
  for (const bool killed : {true, false}) {
    Program agent(directory_, arguments());
    ASSERT_TRUE(eventually([&] { return fs::exists(ready_); })) << agent.log();
    ASSERT_NO_FATAL_FAILURE(processes(killed ? 1000 : 2000));
    for (const char* path :
         {"/metrics", "/metrics/inspector", "/api/node.json", "/", "/../../kept"})
      EXPECT_TRUE(get(path).starts_with("HTTP/1.1 ")) << path;
    // The texts got as far as file names: else this test would hold nothing.
    for (const std::string& text : texts_) {
      ASSERT_TRUE(eventually([&] {
        return fs::is_directory(folder_of(text)) && !fs::is_empty(folder_of(text));
      })) << folder_of(text)
          << "\n"
          << agent.log();
    }
    agent.signal(killed ? SIGKILL : SIGTERM);
    ASSERT_EQ(agent.wait(), killed ? 1000 + SIGKILL : 0) << agent.log();
    expect_segments_only();
    EXPECT_TRUE(killed || parts() == 0) << parts() << " segments were not completed";
    EXPECT_EQ(elsewhere(), untouched);
    fs::remove(ready_);
  }
  EXPECT_EQ(read_file(directory_ / "elsewhere/kept"), "as it was");
}

}  // namespace
}  // namespace ncclscope::agent
