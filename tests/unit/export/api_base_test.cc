// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "agent/api/authorizer.h"
#include "agent/api/peers.h"
#include "agent/api/unix_listener.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

class ApiSocket : public ::testing::Test {
 protected:
  [[nodiscard]] ScopedFd connect() const {
    ScopedFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return {};
    return fd;
  }

  const tests::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "api.sock";
};

TEST_F(ApiSocket, HasTheModeAskedForAndIsRemovedAtTheEnd) {
  {
    const auto listener = UnixListener::create(path_, 0666);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    struct stat info {};
    ASSERT_EQ(::stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777u, 0666u);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ApiSocket, DoesNotTakeALivingAgentsPlace) {
  const auto first = UnixListener::create(path_, 0666);
  ASSERT_TRUE(first.ok());
  const auto second = UnixListener::create(path_, 0666);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), ErrorCode::kInUse);
  EXPECT_NE(second.status().message().find(path_), std::string::npos);
  EXPECT_TRUE(connect().valid());
}

TEST_F(ApiSocket, ReplacesASocketThatNobodyListensOn) {
  {
    const ScopedFd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  const auto listener = UnixListener::create(path_, 0660);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_TRUE(connect().valid());
}

TEST_F(ApiSocket, LeavesOtherFilesAlone) {
  { const ScopedFd file(::open(path_.c_str(), O_CREAT | O_WRONLY, 0600)); }
  const auto listener = UnixListener::create(path_, 0666);
  ASSERT_FALSE(listener.ok());
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

TEST_F(ApiSocket, RefusesAPathThatIsTooLong) {
  const auto listener = UnixListener::create(directory_ / std::string(120, 'x'), 0666);
  ASSERT_FALSE(listener.ok());
  EXPECT_EQ(listener.status().code(), ErrorCode::kInvalidArgument);
}

TEST_F(ApiSocket, ShutdownEndsAccept) {
  auto listener = UnixListener::create(path_, 0666);
  ASSERT_TRUE(listener.ok());
  const ScopedFd client = connect();
  EXPECT_TRUE(listener.value()->accept().valid());
  std::thread waiting([&] { EXPECT_FALSE(listener.value()->accept().valid()); });
  listener.value()->shutdown();
  waiting.join();
}

TEST(PeerCredentialsAuthorizer, KnowsTheUserAtTheOtherEnd) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const ScopedFd one(pair[0]);
  const ScopedFd other(pair[1]);
  const std::optional<Caller> caller =
      PeerCredentialsAuthorizer("no-such-group").identify(one.get());
  ASSERT_TRUE(caller.has_value());
  EXPECT_EQ(caller->uid, static_cast<std::int64_t>(::getuid()));
  EXPECT_TRUE(caller->is_administrator()) << "the agent's own user is one";
}

TEST(PeerCredentialsAuthorizer, KnowsNobodyOnAnotherKindOfSocket) {
  const ScopedFd tcp(::socket(AF_INET, SOCK_STREAM, 0));
  const std::optional<Caller> caller = PeerCredentialsAuthorizer().identify(tcp.get());
  if (caller) {
    EXPECT_FALSE(caller->may_read(-1) && !caller->is_administrator());
  }
}

TEST(Caller, MayAccessOwnJobsOnly) {
  const Caller user{1000, Role::kUser};
  EXPECT_TRUE(user.may_read(1000));
  EXPECT_FALSE(user.may_read(1001));
  EXPECT_FALSE(user.may_read(-1)) << "whose owner nobody proved";
  const Caller unknown{};
  EXPECT_FALSE(unknown.may_read(-1)) << "unknown is not the owner of unknown";
  const Caller administrator{0, Role::kAdministrator};
  EXPECT_TRUE(administrator.may_read(1000));
  EXPECT_TRUE(administrator.may_read(-1));
}

ScopedFd any_descriptor() {
  return ScopedFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

std::string name_of(const ScopedFd& fd) {
  return "fd:" + std::to_string(fd.get());
}

TEST(Peers, FindsCallersByDescriptor) {
  Peers peers(4, 4);
  const ScopedFd first = peers.admit(any_descriptor(), Caller{1, Role::kUser});
  const ScopedFd second = peers.admit(any_descriptor(), Caller{2, Role::kAdministrator});
  ASSERT_TRUE(first.valid() && second.valid());
  EXPECT_EQ(peers.find(name_of(first))->uid, 1);
  EXPECT_EQ(peers.find(name_of(second))->uid, 2);
  for (const char* other :
       {"", "fd:", "fd:x", "fd:0", "fd:-1", "fd:99999999999999", "unix:", "ipv4:127.0.0.1:1"})
    EXPECT_FALSE(peers.find(other).has_value()) << other;
  EXPECT_FALSE(peers.find(name_of(first) + " ").has_value());
}

TEST(Peers, AdmitsNoMoreThanItsLimitAndGoesOnWhenOneLeaves) {
  Peers peers(2, 2);
  ScopedFd first = peers.admit(any_descriptor(), Caller{1, Role::kUser});
  const ScopedFd second = peers.admit(any_descriptor(), Caller{2, Role::kUser});
  EXPECT_FALSE(peers.admit(any_descriptor(), Caller{3, Role::kUser}).valid());
  first.reset();
  const ScopedFd third = peers.admit(any_descriptor(), Caller{3, Role::kUser});
  ASSERT_TRUE(third.valid());
  EXPECT_EQ(peers.find(name_of(third))->uid, 3);
}

TEST(Peers, DoesNotReuseANumberAtOnce) {
  Peers peers(8, 8);
  ScopedFd first = peers.admit(any_descriptor(), Caller{1, Role::kUser});
  const std::string name = name_of(first);
  first.reset();
  for (int i = 0; i < 7; ++i)
    EXPECT_NE(name_of(peers.admit(any_descriptor(), Caller{2, Role::kAdministrator})), name);
  EXPECT_EQ(peers.find(name)->uid, 1);
}

}  // namespace
}  // namespace ncclscope::agent
