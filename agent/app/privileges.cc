// SPDX-License-Identifier: Apache-2.0
#include "agent/app/privileges.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <system_error>
#include <vector>

#include "agent/base/scoped_fd.h"
#include "agent/ingest/listener.h"

namespace ncclscope::agent {
namespace {

struct Account {
  std::string name;  // empty: a number that no account has
  uid_t uid = 0;
  gid_t gid = 0;
};

Result<Account> find_account(const std::string& user) {
  std::vector<char> buffer(16 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  uid_t number = 0;
  const auto [end, error] = std::from_chars(user.data(), user.data() + user.size(), number);
  const bool numeric = error == std::errc() && end == user.data() + user.size();
  const int result = numeric
                         ? getpwuid_r(number, &entry, buffer.data(), buffer.size(), &found)
                         : getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return Account{found->pw_name, found->pw_uid, found->pw_gid};
  if (result != 0) return Status::system(concat("cannot look up user '", user, "'"), result);
  if (numeric) return Account{{}, number, number};
  return Status::invalid(concat("user = '", user, "': there is no such account"));
}

Status hand_over_directory(const std::string& socket, const Account& account) {
  const std::string directory = std::filesystem::path(socket).parent_path().string();
  if (directory.empty()) return {};
  struct stat info {};
  const bool existed = ::lstat(directory.c_str(), &info) == 0;
  if (!existed) {
    if (Status s = make_socket_directory(socket); !s.ok()) return s;
  }
  const ScopedFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return Status::system(concat("cannot open the directory ", directory));
  }
  if (info.st_uid == account.uid) return {};
  if (existed) {
    return {ErrorCode::kInvalidArgument,
            concat("the directory ", directory, " belongs to uid ", info.st_uid,
                   ", but must belong to the user of the agent, uid ", account.uid,
                   ": remove it or chown it")};
  }
  if (::fchown(fd.get(), account.uid, account.gid) != 0) {
    return Status::system(concat("cannot give ", directory, " to uid ", account.uid));
  }
  return {};
}

}  // namespace

Status become_user(const std::string& user, std::span<const std::string> sockets) {
  const Result<Account> found = find_account(user);
  if (!found.ok()) return found.status();
  const Account& account = found.value();
  if (account.uid == 0) {
    return Status::invalid(concat("user = '", user, "' is root: leave it empty to stay root"));
  }
  for (const std::string& socket : sockets) {
    if (socket.empty()) continue;
    if (Status s = hand_over_directory(socket, account); !s.ok()) return s;
  }
  const int groups = account.name.empty() ? ::setgroups(0, nullptr)
                                          : ::initgroups(account.name.c_str(), account.gid);
  if (groups != 0) return Status::system(concat("cannot take the groups of user ", user));
  if (::setresgid(account.gid, account.gid, account.gid) != 0) {
    return Status::system(concat("setresgid(", account.gid, ")"));
  }
  // All capabilities go with the last root id.
  if (::setresuid(account.uid, account.uid, account.uid) != 0) {
    return Status::system(concat("setresuid(", account.uid, ")"));
  }
  if (::setuid(0) == 0) {
    return {ErrorCode::kSystem, concat("user ", user, " can become root again")};
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Status::system("PR_SET_NO_NEW_PRIVS");
  return {};
}

}  // namespace ncclscope::agent
