// SPDX-License-Identifier: Apache-2.0
//
// The HTTP server over real sockets: what scrapers and impolite clients see.
#include "agent/export/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {
namespace {

using std::chrono_literals::operator""s;

ScopedFd connect_to(std::uint16_t port) {
  ScopedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return {};
  timeval patience{10, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::string read_to_end(int fd) {
  std::string out;
  char part[16384];
  for (;;) {
    const ssize_t got = ::recv(fd, part, sizeof part, 0);
    if (got <= 0) return out;
    out.append(part, static_cast<std::size_t>(got));
  }
}

std::string exchange(std::uint16_t port, std::string_view request) {
  const ScopedFd fd = connect_to(port);
  send_all(fd.get(), request);
  return read_to_end(fd.get());
}

HttpResponse echo(const HttpRequest& request) {
  HttpResponse response;
  response.body = request.method + " " + request.path +
                  " accept=" + std::string(request.header("accept")) + "\n";
  response.headers.emplace_back("X-Test", "yes");
  return response;
}

std::unique_ptr<HttpServer> start(HttpHandler handler, HttpServerOptions options = {}) {
  Result<std::unique_ptr<HttpServer>> server = start_http_server(options, std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status().message();
  return std::move(server).value();
}

TEST(HttpServer, AnswersGetOnAFreePort) {
  const auto server = start(echo);
  ASSERT_NE(server->port(), 0);
  const std::string answer = exchange(
      server->port(),
      "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("X-Test: yes\r\n"), std::string::npos);
  EXPECT_NE(answer.find("Content-Type: text/plain; charset=utf-8\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\nGET /metrics accept=text/plain\n")) << answer;
}

TEST(HttpServer, JoinsRepeatedHeaders) {
  const auto server = start(echo);
  const std::string answer =
      exchange(server->port(),
               "GET / HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\naccept: */*\r\n"
               "Connection: close\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("accept=text/plain, */*\n")) << answer;
}

TEST(HttpServer, AnswersHeadWithoutABody) {
  const auto server = start(echo);
  const std::string answer =
      exchange(server->port(), "HEAD /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Length: 22\r\n"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
}

TEST(HttpServer, KeepsConnectionsAlive) {
  const auto server = start(echo);
  const ScopedFd fd = connect_to(server->port());
  send_all(fd.get(), "GET /one HTTP/1.1\r\nHost: a\r\n\r\n");
  send_all(fd.get(), "GET /two HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string answers = read_to_end(fd.get());
  EXPECT_NE(answers.find("GET /one"), std::string::npos) << answers;
  EXPECT_NE(answers.find("GET /two"), std::string::npos) << answers;
}

TEST(HttpServer, SendsLargeBodiesWhole) {
  const std::string body(20u << 20, 'x');
  const auto server = start([&](const HttpRequest&) {
    HttpResponse response;
    response.body = body;
    return response;
  });
  const std::string answer =
      exchange(server->port(), "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, body.size());
}

TEST(HttpServer, RefusesBodiesWithoutReadingThem) {
  std::atomic<int> calls = 0;
  const auto server = start([&](const HttpRequest& request) {
    ++calls;
    HttpRouter router;
    return router.handle(request);
  });
  const std::string get =
      exchange(server->port(), "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
  EXPECT_TRUE(get.starts_with("HTTP/1.1 413 ")) << get;
  EXPECT_EQ(calls, 0);
  const std::string post =
      exchange(server->port(), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
  EXPECT_TRUE(post.starts_with("HTTP/1.1 405 ")) << post;
  EXPECT_NE(post.find("Allow: GET, HEAD\r\n"), std::string::npos) << post;
}

TEST(HttpServer, SurvivesRubbish) {
  const auto server = start(echo);
  (void)exchange(server->port(),
                 std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03\r\n\r\n", 15));
  (void)exchange(server->port(), "GET " + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n");
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 10'000; ++i) many += "X-Header-" + std::to_string(i) + ": value\r\n";
  const std::string refused = exchange(server->port(), many + "\r\n");
  EXPECT_FALSE(refused.starts_with("HTTP/1.1 200")) << refused;
  { const ScopedFd dropped = connect_to(server->port()); }
  const std::string answer =
      exchange(server->port(), "GET /still HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("GET /still accept=\n")) << answer;
}

TEST(HttpServer, ClosesIdleConnections) {
  HttpServerOptions options;
  options.idle_timeout = 1s;
  const auto server = start(echo, options);
  const ScopedFd fd = connect_to(server->port());
  send_all(fd.get(), "GET /half HTTP/1.1\r\n");
  pollfd wait{fd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, 10'000), 1) << "the connection was kept";
  const std::string answer = read_to_end(fd.get());
  EXPECT_EQ(answer.find("200 OK"), std::string::npos) << answer;
}

TEST(HttpServer, EndsHeadsThatTrickle) {
  HttpServerOptions options;
  options.head_timeout = std::chrono::milliseconds(300);
  const auto server = start(echo, options);
  const ScopedFd fd = connect_to(server->port());
  send_all(fd.get(), "GET / HTTP/1.1\r\nX-Slow: ");
  // A byte every 20 ms is never idle. 20 s are never the normal case.
  bool ended = false;
  for (int i = 0; i < 1000 && !ended; ++i) {
    send_all(fd.get(), "x");
    pollfd wait{fd.get(), POLLIN, 0};
    ended = ::poll(&wait, 1, 20) == 1;
  }
  EXPECT_TRUE(ended) << "the connection was kept";
  EXPECT_EQ(read_to_end(fd.get()).find("200 OK"), std::string::npos);
}

TEST(HttpServer, FreesAnswersThatNobodyTakes) {
  auto page = std::make_shared<const std::string>(64u << 20, 'x');  // more than sockets hold
  const std::weak_ptr<const std::string> held = page;
  HttpServerOptions options;
  options.answer_timeout = std::chrono::milliseconds(300);
  const auto server = start(
      [&page](const HttpRequest&) {
        HttpResponse response;
        response.shared_body = std::move(page);
        return response;
      },
      options);
  const ScopedFd fd = connect_to(server->port());
  send_all(fd.get(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!held.expired() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(held.expired()) << "the connection was kept";
}

TEST(HttpServer, BoundsConnections) {
  HttpServerOptions options;
  options.connection_limit = 4;
  options.connection_limit_per_ip = 4;
  const auto server = start(echo, options);
  std::vector<ScopedFd> held;
  for (int i = 0; i < 20; ++i) held.push_back(connect_to(server->port()));
  held.clear();
  // The server still answers once they are gone.
  std::string answer;
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (answer.empty() && std::chrono::steady_clock::now() < deadline)
    answer = exchange(server->port(), "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK")) << answer;
}

TEST(HttpServer, StopsTwiceAndFreesThePort) {
  auto server = start(echo);
  HttpServerOptions same;
  same.port = server->port();
  const auto taken = start_http_server(same, echo);
  ASSERT_FALSE(taken.ok());
  EXPECT_NE(taken.status().message().find("127.0.0.1:" + std::to_string(same.port)),
            std::string::npos)
      << taken.status().message();
  server->stop();
  server->stop();
  EXPECT_TRUE(start_http_server(same, echo).ok());
}

TEST(HttpServer, NamesAnAddressThatIsNone) {
  HttpServerOptions options;
  options.address = "localhost.example";
  const auto server = start_http_server(options, echo);
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find("localhost.example"), std::string::npos);
}

TEST(HttpServer, ListensOnIpv6WhereThereIsAny) {
  HttpServerOptions options;
  options.address = "::1";
  const auto server = start_http_server(options, echo);
  if (!server.ok()) GTEST_SKIP() << "no IPv6 here: " << server.status().message();
  EXPECT_NE(server.value()->port(), 0);
}

}  // namespace
}  // namespace ncclscope::agent
