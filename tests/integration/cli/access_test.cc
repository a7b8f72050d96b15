// SPDX-License-Identifier: Apache-2.0
//
// Who may ask: the API on its socket as root, as the owner of a job, as another user and as nobody,
// and over TCP with every kind of certificate and token. The callers are the program `ncclscope`,
// and this program itself for calls that `ncclscope` does not make.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

#include "agent/access/secrets.h"
#include "agent/api/api_server.h"
#include "agent/api/network_server.h"
#include "ncclscope/v1/agent.grpc.pb.h"
#include "ncclscope/v1/ingest.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/recording_services.h"
#include "tests/support/run_command.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/export/snapshot_fixture.h"

namespace ncclscope::agent {
namespace {

constexpr int kOwner = 1001;     // of job 4711 in the golden snapshot
constexpr int kStranger = 4242;  // of nothing
constexpr int kNobody = 65534;

using tests::Outcome;

/// Standard output and error.
Outcome run(const std::string& command) {
  return tests::run_command(command + " 2>&1");
}

std::string as_user(int uid) {
  const std::string id = std::to_string(uid);
  return "setpriv --reuid=" + id + " --regid=" + id + " --clear-groups ";
}

class ClosedGateway final : public IngestGateway {
 public:
  std::unique_ptr<IngestChannel> open(std::string_view, std::int64_t) override { return nullptr; }
};

/// A golden snapshot and two operations in the tail, of job 4711 and of somebody else's.
class Access : public ::testing::Test {
 protected:
  Access() : tail_(64) {
    std::filesystem::permissions(directory_, std::filesystem::perms(0755));
    // Where other users reach it: a build folder may be closed to them.
    cli_ = directory_ + "/ncclscope";
    std::filesystem::copy_file(NCCLSCOPE_PROGRAM, cli_);
    store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
    append("4711", kOwner);
    append("9000", 3000);
  }
  ~Access() override { tail_.close(); }

  void append(const char* job, std::int64_t uid) {
    TailSource source;
    source.job_id = job;
    source.uid = uid;
    source.comm = "00c0ffee12345678";
    wire::Operation operation{};
    operation.function = static_cast<std::uint8_t>(model::Function::kAllReduce);
    operation.flags = 1 | wire::operation_flags::kComplete;
    OperationTail::Entry entry;
    entry.source = tail_.add_source(source);
    entry.type = wire::RecordType::kOperation;
    entry.record_index = 1;
    std::memcpy(entry.bytes, &operation, sizeof operation);
    tail_.append(std::vector<OperationTail::Entry>{entry});
  }
  [[nodiscard]] ApiServices services() { return {&store_, &tail_, &gateway_, &detail_, nullptr}; }
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }

  /// Job ids that `books --json` shows, each once.
  static std::string jobs(const Outcome& books) {
    std::string out;
    const auto json = nlohmann::json::parse(books.out, nullptr, false);
    if (json.is_discarded()) return "not JSON: " + books.out;
    for (const auto& process : json["processes"]) {
      const std::string job = process["job_id"];
      if (out.find(job) == std::string::npos) out += (out.empty() ? "" : " ") + job;
    }
    return out;
  }
  static std::size_t lines(const Outcome& outcome) {
    return static_cast<std::size_t>(std::count(outcome.out.begin(), outcome.out.end(), '\n'));
  }

  const tests::TemporaryDirectory temporary_;
  const std::string directory_ = temporary_.path();
  std::string cli_;
  SnapshotStore store_;
  OperationTail tail_;
  ClosedGateway gateway_;
  tests::RecordingDetail detail_{[](const DetailRequest& request) {
    return request.uid == -1 || (request.uid == kOwner && request.job_id == "4711") ? 3U : 0U;
  }};
};

// ---- the socket ---------------------------------------------------------------------------------

class SocketAccess : public Access {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can start a program as another user";
    ApiServerOptions options;
    options.socket = path("api.sock");
    auto server = start_api_server(options, services());
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }
  [[nodiscard]] Outcome ncclscope(int uid, const std::string& arguments) const {
    return run(as_user(uid) + cli_ + " " + arguments + " --agent unix:" + path("api.sock"));
  }
  /// This program as that user: "OK 3", or the status code and message.
  [[nodiscard]] Outcome probe(int uid, const std::string& what) const {
    const std::string self = path("probe");
    if (!std::filesystem::exists(self)) std::filesystem::copy_file("/proc/self/exe", self);
    return run(as_user(uid) + self + " --probe unix:" + path("api.sock") + " " + what);
  }
  std::unique_ptr<ApiServer> server_;
};

TEST_F(SocketAccess, ShowsUsersTheirOwnJobs) {
  EXPECT_EQ(jobs(ncclscope(0, "books --json")), "4711 ml-team/bert");
  EXPECT_EQ(jobs(ncclscope(kOwner, "books --json")), "4711");
  EXPECT_EQ(jobs(ncclscope(kStranger, "books --json")), "");
  EXPECT_EQ(jobs(ncclscope(kNobody, "books --json")), "");
  EXPECT_EQ(lines(ncclscope(0, "tail --once --json")), 2u);
  EXPECT_EQ(lines(ncclscope(kOwner, "tail --once --json")), 1u);
  EXPECT_EQ(lines(ncclscope(kNobody, "tail --once --json")), 0u);
}

TEST_F(SocketAccess, ForbiddenAndAbsentLookTheSame) {
  for (const char* command : {"books", "books --json", "tail --once", "tail --once --json"}) {
    for (const int uid : {kStranger, kNobody}) {
      const Outcome forbidden = ncclscope(uid, std::string(command) + " --job 4711");
      const Outcome absent = ncclscope(uid, std::string(command) + " --job 4712");
      EXPECT_EQ(forbidden.out, absent.out) << command;
      EXPECT_EQ(forbidden.status, absent.status) << command;
    }
  }
  const std::string refused = probe(kStranger, "detail 4711").out;
  EXPECT_EQ(refused.rfind("5 no job \"4711\" that the caller may control", 0), 0u) << refused;
  EXPECT_EQ(std::regex_replace(refused, std::regex("4711"), "4712"),
            probe(kStranger, "detail 4712").out);
  for (const char* call : {"snapshot", "progress", "books"}) {
    const Outcome forbidden = probe(kStranger, std::string(call) + " 4711");
    const Outcome absent = probe(kStranger, std::string(call) + " 4712");
    EXPECT_EQ(forbidden.out, absent.out) << call;
    EXPECT_EQ(forbidden.out, "OK 0\n") << call;
  }
}

TEST_F(SocketAccess, SaysWhyThereIsNothing) {
  const Outcome books = ncclscope(kStranger, "books");
  EXPECT_EQ(books.status, 0);
  EXPECT_NE(books.out.find("you see your own jobs; root and the group ncclscope-admin see all"),
            std::string::npos)
      << books.out;
}

TEST_F(SocketAccess, UsersReachTheirOwnProcessesWithDetail) {
  EXPECT_EQ(probe(kOwner, "detail 4711").out, "OK 3\n");
  EXPECT_EQ(detail_.last().uid, kOwner);
  EXPECT_EQ(probe(kOwner, "detail ml-team/bert").out.rfind("5 no job", 0), 0u);
  EXPECT_EQ(probe(kOwner, "detail ''").out, "OK 0\n") << "every job means every own job";
  EXPECT_EQ(detail_.last().uid, kOwner);
  EXPECT_EQ(probe(0, "detail ''").out, "OK 3\n");
  EXPECT_EQ(detail_.last().uid, -1);
}

TEST_F(SocketAccess, OneUserCannotKeepTheOthersOut) {
  // Connections that say nothing, held by one user.
  const std::string hold =
      "import os, socket, time\n"
      "held = []\n"
      "for i in range(100):\n"
      "    s = socket.socket(socket.AF_UNIX)\n"
      "    s.connect('" +
      path("api.sock") +
      "')\n"
      "    held.append(s)\n"
      "print(os.getpid(), flush=True)\n"
      "time.sleep(60)\n";
  std::ofstream(path("hold.py")) << hold;
  FILE* holder =
      ::popen(("exec " + as_user(kStranger) + "/usr/bin/python3 " + path("hold.py")).c_str(), "r");
  ASSERT_NE(holder, nullptr);
  char line[16] = {};
  ASSERT_NE(std::fgets(line, sizeof line, holder), nullptr);
  EXPECT_EQ(jobs(ncclscope(kOwner, "books --json")), "4711");
  EXPECT_EQ(jobs(ncclscope(0, "books --json")), "4711 ml-team/bert");
  ::kill(static_cast<pid_t>(std::atoi(line)), SIGKILL);
  ::pclose(holder);
}

/// A host can have none, or the kernel be told not to.
bool ipv6_is_there() {
  const ScopedFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  return socket.valid() &&
         ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) == 0;
}

// ---- over TCP -----------------------------------------------------------------------------------

class NetworkAccess : public Access {
 protected:
  NetworkAccess() : authority_(directory_, "ca") {
    authority_.sign("server", "agent", "DNS:localhost,IP:127.0.0.1,IP:::1");
    options_.address = "127.0.0.1";
    options_.tls = {path("server.crt"), path("server.key"), path("ca.crt")};
    options_.access_file = path("access.toml");
    write_access();
  }
  void SetUp() override { start(); }
  void TearDown() override { server_.reset(); }

  void start() {
    auto server = start_network_server(options_, services(), clock_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  void write_access(const std::string& more = "") const {
    std::string text;
    for (const auto& [name, role] : {std::pair("viewer", "viewer"),
                                     {"operator", "operator"},
                                     {"ingest", "ingest"},
                                     {"anna", "user:1001"}}) {
      text += std::string("[[token]]\nname = \"") + name + "\"\nrole = \"" + role +
              "\"\nsha256 = \"" + sha256_hex(std::string("secret-of-") + name) + "\"\n";
      write(std::string(name) + ".token", std::string("secret-of-") + name + "\n");
    }
    text +=
        "[[certificate]]\nname = \"monitor\"\nrole = \"viewer\"\n"
        "[[certificate]]\nname = \"spiffe://cluster/ops\"\nrole = \"operator\"\n"
        "[[certificate]]\nname = \"anna.example.org\"\nrole = \"user:1001\"\n";
    write("access.toml", text + more);
    write("wrong.token", "secret-of-nobody\n");
  }
  [[nodiscard]] std::string address() const {
    const bool v6 = options_.address.find(':') != std::string::npos;
    return (v6 ? "[" + options_.address + "]" : options_.address) + ":" +
           std::to_string(server_->port());
  }
  /// `credentials` are options of the program.
  [[nodiscard]] Outcome books(const std::string& credentials) const {
    return run(cli_ + " books --json --agent " + address() + " " + credentials);
  }
  [[nodiscard]] std::string ca() const { return "--ca " + path("ca.crt"); }
  [[nodiscard]] std::string certificate(const std::string& name) const {
    return ca() + " --cert " + path(name + ".crt") + " --key " + path(name + ".key");
  }
  [[nodiscard]] std::string token(const std::string& name) const {
    return ca() + " --token-file " + path(name + ".token");
  }

  /// A stub and a context with a token, for calls that the program does not make.
  [[nodiscard]] std::shared_ptr<grpc::Channel> channel() const {
    grpc::SslCredentialsOptions tls;
    std::stringstream text;
    text << std::ifstream(path("ca.crt")).rdbuf();
    tls.pem_root_certs = text.str();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address(), grpc::SslCredentials(tls), arguments);
  }
  static void prepare(grpc::ClientContext& context, const std::string& name) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.AddMetadata("authorization", "Bearer secret-of-" + name);
  }
  [[nodiscard]] grpc::Status set_detail(const std::string& name) const {
    grpc::ClientContext context;
    prepare(context, name);
    v1::SetDetailRequest request;
    request.set_job_id("4711");
    request.set_level(v1::SetDetailRequest::LEVEL_FULL);
    request.set_duration_ms(1'000);
    v1::SetDetailResponse response;
    return v1::AgentService::NewStub(channel())->SetDetail(&context, request, &response);
  }
  [[nodiscard]] grpc::Status publish(const std::string& name) const {
    grpc::ClientContext context;
    prepare(context, name);
    const auto stub = v1::IngestService::NewStub(channel());
    const auto stream = stub->Publish(&context);
    v1::PublishResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return stream->Finish();
  }

  SystemClock clock_;
  tests::Authority authority_;
  NetworkServerOptions options_;
  std::unique_ptr<NetworkServer> server_;
};

TEST_F(NetworkAccess, TokensHaveTheirRole) {
  EXPECT_EQ(jobs(books(token("viewer"))), "4711 ml-team/bert");
  EXPECT_EQ(jobs(books(token("operator"))), "4711 ml-team/bert");
  EXPECT_EQ(jobs(books(token("anna"))), "4711");
  const Outcome ingest = books(token("ingest"));
  EXPECT_EQ(ingest.status, 3);
  EXPECT_NE(ingest.out.find("not allowed: the role ingest of token:ingest may not read"),
            std::string::npos)
      << ingest.out;
  const Outcome wrong = books(token("wrong"));
  EXPECT_EQ(wrong.status, 3);
  EXPECT_NE(wrong.out.find("this token is not known here"), std::string::npos) << wrong.out;
}

TEST_F(NetworkAccess, ListensOnIpv6) {
  if (!ipv6_is_there()) GTEST_SKIP() << "this machine has no IPv6: ::1 cannot be bound";
  server_.reset();
  options_.address = "::1";
  start();
  ASSERT_NE(server_, nullptr);
  EXPECT_EQ(jobs(books(token("viewer"))), "4711 ml-team/bert");
  EXPECT_EQ(jobs(books(token("anna"))), "4711");
  EXPECT_EQ(books(token("wrong")).status, 3);
  EXPECT_TRUE(set_detail("operator").ok());
  EXPECT_EQ(set_detail("viewer").error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(NetworkAccess, RolesBoundWhatCallsMayDo) {
  EXPECT_EQ(set_detail("viewer").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(set_detail("ingest").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(set_detail("operator").ok());
  EXPECT_EQ(detail_.last().uid, -1);
  EXPECT_TRUE(set_detail("anna").ok());
  EXPECT_EQ(detail_.last().uid, kOwner);
  EXPECT_EQ(set_detail("wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  for (const char* reader : {"viewer", "operator", "anna"})
    EXPECT_EQ(publish(reader).error_code(), grpc::StatusCode::PERMISSION_DENIED) << reader;
  // UNAVAILABLE: it was let in, and the gateway of this test takes nothing.
  EXPECT_EQ(publish("ingest").error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(NetworkAccess, CertificatesHaveTheRoleOfOneOfTheirNames) {
  authority_.sign("monitor", "monitor", "DNS:m.example.org");
  authority_.sign("ops", "somebody", "DNS:o.example.org,URI:spiffe://cluster/ops");
  authority_.sign("anna", "somebody else", "DNS:anna.example.org");
  authority_.sign("unknown", "unknown", "DNS:unknown.example.org");
  EXPECT_EQ(jobs(books(certificate("monitor"))), "4711 ml-team/bert");
  EXPECT_EQ(jobs(books(certificate("ops"))), "4711 ml-team/bert");
  EXPECT_EQ(jobs(books(certificate("anna"))), "4711");
  const Outcome unknown = books(certificate("unknown"));
  EXPECT_EQ(unknown.status, 3);
  EXPECT_NE(unknown.out.find("no name of this client certificate is known"), std::string::npos)
      << unknown.out;
  EXPECT_EQ(jobs(books(certificate("monitor") + " --token-file " + path("anna.token"))), "4711")
      << "the token decides";
  EXPECT_EQ(books(certificate("monitor") + " --token-file " + path("wrong.token")).status, 3);
}

TEST_F(NetworkAccess, RefusesBadCertificatesNoneAndPlainText) {
  const tests::Authority stranger(directory_, "other-ca");
  stranger.sign("forged", "monitor", "DNS:m.example.org");
  authority_.sign("expired", "monitor", "DNS:m.example.org", true);
  for (const char* bad : {"forged", "expired"}) {
    const Outcome outcome = books(certificate(bad));
    EXPECT_EQ(outcome.status, 3) << bad;
    EXPECT_NE(outcome.out.find("cannot be reached"), std::string::npos) << outcome.out;
  }
  const Outcome none = books(ca());
  EXPECT_EQ(none.status, 3);
  EXPECT_NE(none.out.find("a client certificate or a token is needed"), std::string::npos)
      << none.out;
  EXPECT_EQ(books("--ca " + path("other-ca.crt") + " --token-file " + path("viewer.token")).status,
            3)
      << "the program does not tell its token to a server that it does not trust";
  const auto plain =
      v1::AgentService::NewStub(grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  prepare(context, "viewer");
  v1::GetBooksResponse response;
  EXPECT_EQ(plain->GetBooks(&context, {}, &response).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(NetworkAccess, AsksForACertificateInTheHandshakeWhereThereAreNoTokens) {
  write("access.toml", "[[certificate]]\nname = \"monitor\"\nrole = \"viewer\"\n");
  ASSERT_TRUE(server_->reload().ok());
  authority_.sign("monitor", "monitor", "DNS:m.example.org");
  EXPECT_EQ(jobs(books(certificate("monitor"))), "4711 ml-team/bert");
  const Outcome none = books(ca());
  EXPECT_EQ(none.status, 3);
  EXPECT_NE(none.out.find("cannot be reached"), std::string::npos) << none.out;
}

TEST_F(NetworkAccess, TheProgramExplainsWrongOptions) {
  const Outcome bare = books("");
  EXPECT_EQ(bare.status, 2);
  EXPECT_NE(bare.out.find("--ca"), std::string::npos) << bare.out;
  EXPECT_EQ(books(ca() + " --cert " + path("server.crt")).status, 2);
  EXPECT_EQ(books(ca() + " --token-file " + path("no.token")).status, 2);
}

TEST_F(NetworkAccess, StartsNothingThatWouldBeOpenOrUseless) {
  const auto error = [&](const NetworkServerOptions& options) {
    const auto server = start_network_server(options, services(), clock_);
    return server.ok() ? std::string("it started") : server.status().message();
  };
  NetworkServerOptions options = options_;
  options.tls.certificate = path("no.crt");
  EXPECT_NE(error(options).find("no.crt"), std::string::npos) << error(options);
  options = options_;
  options.tls.certificate.clear();
  EXPECT_NE(error(options).find("needs api_cert_file"), std::string::npos) << error(options);
  options = options_;
  options.tls.key = path("ca.key");
  EXPECT_NE(error(options).find("belong together"), std::string::npos) << error(options);
  options = options_;
  options.tls.client_ca.clear();
  EXPECT_NE(error(options).find("needs api_client_ca_file"), std::string::npos) << error(options);
  options.tls.client_ca = path("viewer.token");
  EXPECT_NE(error(options).find("holds no certificate"), std::string::npos) << error(options);
  write("empty.toml", "");
  options = options_;
  options.access_file = path("empty.toml");
  EXPECT_NE(error(options).find("nobody could use"), std::string::npos) << error(options);
}

TEST_F(NetworkAccess, TakesNewCertificatesAndListsWithoutARestart) {
  append("4711", kOwner);
  const auto stub = v1::AgentService::NewStub(channel());
  grpc::ClientContext context;
  prepare(context, "viewer");
  v1::TailOperationsRequest request;
  request.set_follow(true);
  request.set_include_held(true);
  const auto tail = stub->TailOperations(&context, request);
  v1::TailOperationsResponse record;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(tail->Read(&record));

  // Another authority signs the new certificate: the old one's is not enough any more.
  const tests::Authority next(directory_, "next-ca");
  next.sign("server", "agent", "DNS:localhost,IP:127.0.0.1");
  server_->reload_if_changed();
  EXPECT_EQ(books(token("viewer")).status, 3);
  const std::string new_ca = "--ca " + path("next-ca.crt") + " --token-file ";
  EXPECT_EQ(jobs(books(new_ca + path("viewer.token"))), "4711 ml-team/bert");
  append("4711", kOwner);
  ASSERT_TRUE(tail->Read(&record)) << "a stream over the old certificate goes on";

  // Rubbish changes nothing.
  write("server.crt", "rubbish");
  server_->reload_if_changed();
  EXPECT_EQ(jobs(books(new_ca + path("viewer.token"))), "4711 ml-team/bert");
  write("access.toml", "rubbish");
  EXPECT_FALSE(server_->reload().ok());
  EXPECT_EQ(jobs(books(new_ca + path("viewer.token"))), "4711 ml-team/bert");

  // A token that was taken out of the list is out at once.
  next.sign("server", "agent", "DNS:localhost,IP:127.0.0.1");
  write("access.toml", "[[token]]\nname = \"x\"\nrole = \"viewer\"\nsha256 = \"" +
                           sha256_hex("secret-of-anna") + "\"\n");
  ASSERT_TRUE(server_->reload().ok());
  EXPECT_EQ(books(new_ca + path("viewer.token")).status, 3);
  EXPECT_EQ(jobs(books(new_ca + path("anna.token"))), "4711 ml-team/bert");
}

TEST_F(NetworkAccess, BoundsConnectionsPerAddress) {
  server_.reset();
  options_.max_connections_per_address = 3;
  start();
  const std::string hold =
      "import socket, time\n"
      "held = [socket.create_connection(('127.0.0.1', " +
      std::to_string(server_->port()) +
      ")) for i in range(3)]\n"
      "late = socket.create_connection(('127.0.0.1', " +
      std::to_string(server_->port()) +
      "))\n"
      "late.settimeout(20)\n"
      "print('closed' if late.recv(1) == b'' else 'open')\n";
  write("hold.py", hold);
  EXPECT_EQ(run("/usr/bin/python3 " + path("hold.py")).out, "closed\n");
  Outcome after;
  for (int attempt = 0; attempt < 50 && after.status != 0; ++attempt)
    after = books(token("viewer"));
  EXPECT_EQ(jobs(after), "4711 ml-team/bert") << "once they are gone";
}

// ---- this program as a caller -------------------------------------------------------------------

int probe(const std::string& address, const std::string& call, const std::string& job) {
  const auto stub =
      v1::AgentService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::Status status(grpc::StatusCode::INVALID_ARGUMENT, "unknown call");
  unsigned count = 0;
  if (call == "snapshot") {
    v1::GetSnapshotRequest request;
    request.set_job_id(job);
    v1::GetSnapshotResponse response;
    status = stub->GetSnapshot(&context, request, &response);
    count = static_cast<unsigned>(response.jobs_size());
  } else if (call == "progress") {
    v1::GetProgressRequest request;
    request.set_job_id(job);
    v1::GetProgressResponse response;
    status = stub->GetProgress(&context, request, &response);
    count = static_cast<unsigned>(response.ranks_size());
  } else if (call == "books") {
    v1::GetBooksRequest request;
    request.set_job_id(job);
    v1::GetBooksResponse response;
    status = stub->GetBooks(&context, request, &response);
    count = static_cast<unsigned>(response.processes_size());
  } else if (call == "detail") {
    v1::SetDetailRequest request;
    request.set_job_id(job);
    request.set_level(v1::SetDetailRequest::LEVEL_FULL);
    request.set_duration_ms(1'000);
    v1::SetDetailResponse response;
    status = stub->SetDetail(&context, request, &response);
    count = response.processes();
  }
  if (status.ok()) {
    std::printf("OK %u\n", count);
  } else {
    std::printf("%d %s\n", static_cast<int>(status.error_code()), status.error_message().c_str());
  }
  return 0;
}

}  // namespace
}  // namespace ncclscope::agent

int main(int argc, char** argv) {
  if (argc >= 4 && std::string(argv[1]) == "--probe")
    return ncclscope::agent::probe(argv[2], argv[3], argc > 4 ? argv[4] : "");
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
