// SPDX-License-Identifier: Apache-2.0
//
// Processes of a run, here threads, that find each other over TCP of loopback: by known ports, by a
// file, and beside leftovers and strangers.
#include "cli/probe/rendezvous.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace ncclscope::cli::probe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr seconds kEnough{60};

class Rendezvous : public ::testing::Test {
 protected:
  /// A key that no other test at work has.
  static std::string unique(const std::string& name) {
    return name + "." + std::to_string(::getpid());
  }
  static Place place(const std::string& key, std::uint32_t process, std::uint32_t processes) {
    Place p;
    p.key = key;
    p.process = process;
    p.processes = processes;
    p.one_node = true;
    p.root_host = "127.0.0.1";
    return p;
  }
  static std::future<std::string> joining(const Place& place, const std::string& folder,
                                          milliseconds limit = kEnough) {
    return std::async(std::launch::async, [=] {
      try {
        Channel channel = join(place, folder, "host" + std::to_string(place.process),
                               steady_clock::now() + limit);
        channel.write_line("hello of " + std::to_string(place.process));
        // Until process 0 has heard it and hangs up.
        while (channel.open()) {
          pollfd waiting{channel.fd(), POLLIN, 0};
          (void)::poll(&waiting, 1, 1000);
          (void)channel.read_lines();
        }
        return std::string("joined");
      } catch (const std::runtime_error& error) {
        return std::string(error.what());
      }
    });
  }
  static void wait_on(const std::vector<int>& descriptors) {
    std::vector<pollfd> waiting;
    for (const int fd : descriptors) waiting.push_back({fd, POLLIN, 0});
    (void)::poll(waiting.data(), waiting.size(), 100);
  }
  static std::vector<Arrival> wait_for(Listener& listener, std::size_t count) {
    std::vector<Arrival> all;
    const auto until = steady_clock::now() + kEnough;
    while (all.size() < count && steady_clock::now() < until) {
      wait_on(listener.descriptors());
      for (Arrival& a : listener.arrivals()) all.push_back(std::move(a));
    }
    return all;
  }
  static std::string line_of(Channel& channel) {
    const auto until = steady_clock::now() + kEnough;
    while (channel.open() && steady_clock::now() < until) {
      wait_on({channel.fd()});
      const std::vector<std::string> lines = channel.read_lines();
      if (!lines.empty()) return lines.front();
    }
    return {};
  }

  const tests::TemporaryDirectory temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(Rendezvous, BringsProcessesTogetherAtPortsOfTheKey) {
  const std::string key = unique("tcp");
  std::vector<std::future<std::string>> others;
  for (std::uint32_t p = 1; p < 4; ++p) others.push_back(joining(place(key, p, 4), ""));
  {
    Listener listener(place(key, 0, 4), "");
    std::vector<Arrival> arrivals = wait_for(listener, 3);
    ASSERT_EQ(arrivals.size(), 3U);
    for (Arrival& a : arrivals) {
      EXPECT_EQ(a.host, "host" + std::to_string(a.process));
      EXPECT_EQ(line_of(a.channel), "hello of " + std::to_string(a.process));
    }
  }
  for (auto& other : others) EXPECT_EQ(other.get(), "joined");
}

TEST_F(Rendezvous, BringsProcessesTogetherByAFile) {
  const std::string key = unique("file");
  auto other = joining(place(key, 1, 2), folder_);
  {
    Listener listener(place(key, 0, 2), folder_);
    EXPECT_FALSE(std::filesystem::is_empty(folder_));
    std::vector<Arrival> arrivals = wait_for(listener, 1);
    ASSERT_EQ(arrivals.size(), 1U);
    EXPECT_EQ(line_of(arrivals[0].channel), "hello of 1");
  }
  EXPECT_EQ(other.get(), "joined");
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "the file is taken away";
}

TEST_F(Rendezvous, GoesPastAPortThatAnotherRunHas) {
  const std::string key = unique("busy");
  Place other_run = place(unique("another"), 0, 2);
  other_run.root_port = candidate_ports(key)[0];
  const Listener squatter(other_run, "");
  Listener listener(place(key, 0, 2), "");
  EXPECT_NE(listener.meeting().ports[0], other_run.root_port);
  // The squatter does not answer by itself: its connections time out; nobody is kept for long.
  auto other = joining(place(key, 1, 2), "");
  {
    std::vector<Arrival> arrivals = wait_for(listener, 1);
    ASSERT_EQ(arrivals.size(), 1U);
  }
  EXPECT_EQ(other.get(), "joined");
}

TEST_F(Rendezvous, IsNotMisledByALeftoverFile) {
  const std::string key = unique("leftover");
  // A run that was killed: the file is there, and a process of somebody else has got its port.
  Place stranger = place(unique("stranger"), 0, 2);
  stranger.root_port = candidate_ports(unique("port"))[3];
  const Listener elsewhere(stranger, "");
  std::ofstream(folder_ / ("ncclscope-probe-" + digest(key)))
      << "00112233445566778899aabbccddeeff " << stranger.root_port << " 127.0.0.1\n";
  auto other = joining(place(key, 1, 2), folder_);
  Listener listener(place(key, 0, 2), folder_);
  std::vector<Arrival> arrivals = wait_for(listener, 1);
  ASSERT_EQ(arrivals.size(), 1U);
  arrivals.clear();
  EXPECT_EQ(other.get(), "joined");
}

TEST_F(Rendezvous, SaysWhyProcess0RefusesAProcess) {
  const std::string key = unique("refuses");
  Listener listener(place(key, 0, 3), "");
  auto first = joining(place(key, 1, 3), "");
  std::vector<Arrival> arrivals = wait_for(listener, 1);
  ASSERT_EQ(arrivals.size(), 1U);
  auto twice = joining(place(key, 1, 3), "");
  auto miscounted = joining(place(key, 2, 4), "");
  const auto until = steady_clock::now() + kEnough;
  const auto pending = [&](std::future<std::string>& f) {
    return f.wait_for(milliseconds(0)) != std::future_status::ready;
  };
  while ((pending(twice) || pending(miscounted)) && steady_clock::now() < until) {
    wait_on(listener.descriptors());
    EXPECT_TRUE(listener.arrivals().empty());
  }
  EXPECT_THAT(twice.get(), HasSubstr("process 1 is there already"));
  EXPECT_THAT(miscounted.get(), HasSubstr("it counts 3 processes, not 4"));
  arrivals.clear();
  EXPECT_EQ(first.get(), "joined");
}

TEST_F(Rendezvous, GivesUpAfterItsTimeAndSaysWhereItLooked) {
  EXPECT_THAT(joining(place(unique("nobody"), 1, 2), "", milliseconds(300)).get(),
              HasSubstr("process 1 did not find process 0: 127.0.0.1:"));
  EXPECT_THAT(joining(place(unique("nobody"), 1, 2), folder_, milliseconds(300)).get(),
              HasSubstr("is not there"));
}

TEST_F(Rendezvous, IsNotDisturbedByStrangersWhoTalkNonsense) {
  const std::string key = unique("strangers");
  Listener listener(place(key, 0, 2), "");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(listener.meeting().ports[0]);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<Descriptor> strangers;
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, 'x'), std::string()}) {
    strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(strangers.back().get(), reinterpret_cast<const sockaddr*>(&address),
                        sizeof address),
              0);
    (void)::send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  auto other = joining(place(key, 1, 2), "");
  std::vector<Arrival> arrivals = wait_for(listener, 1);
  ASSERT_EQ(arrivals.size(), 1U);
  EXPECT_EQ(arrivals[0].process, 1U);
  arrivals.clear();
  EXPECT_EQ(other.get(), "joined");
}

TEST_F(Rendezvous, WantsAFolderThatItCanWriteTo) {
  EXPECT_THROW(Listener(place(unique("folder"), 0, 2), (folder_ / "none").string()),
               std::runtime_error);
}

}  // namespace
}  // namespace ncclscope::cli::probe
