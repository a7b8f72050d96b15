// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/installation.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace ncclscope::cli {
namespace {

using topology::Finding;
using topology::Findings;
using topology::Level;

constexpr unsigned kLoadSeconds = 20;
constexpr const char* kPlugin = "libnccl-profiler-ncclscope.so";

std::string why(int error) {
  return std::strerror(error);  // NOLINT(concurrency-mt-unsafe): one thread
}

std::string mode_text(mode_t mode) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode & 07777));
  return text.data();
}

/// A path within the limits of a socket's address, through the directory if it is too long.
int connect_to(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  std::memcpy(address.sun_path, socket.c_str(), socket.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

Finding socket_finding(Level level, const std::string& subject, std::string reason,
                       std::string evidence, std::string fix) {
  return {"agent-socket", level, subject, std::move(reason), std::move(evidence), std::move(fix)};
}

/// In the child: loads, looks and writes lines "path ...", "symbol ...", "nccl ...", "error ...".
[[noreturn]] void load_and_tell(int out, const std::string& library,
                                const std::vector<std::string>& symbols) {
  ::alarm(kLoadSeconds);
  std::string text;
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = ::dlerror();
    text = std::string("error ") + (error == nullptr ? "unknown" : error) + "\n";
  } else {
    for (const std::string& symbol : symbols) {
      void* address = ::dlsym(handle, symbol.c_str());
      if (address == nullptr) continue;
      Dl_info where{};
      if (::dladdr(address, &where) != 0 && where.dli_fname != nullptr &&
          text.find("path ") == std::string::npos)
        text += std::string("path ") + where.dli_fname + "\n";
      text += "symbol " + symbol + "\n";
    }
    if (void* address = ::dlsym(handle, "ncclGetVersion"); address != nullptr) {
      int version = 0;
      if (reinterpret_cast<int (*)(int*)>(address)(&version) == 0)
        text += "nccl " + std::to_string(version) + "\n";
    }
    text += "loaded\n";
  }
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(out, text.data() + at, text.size() - at);
    if (n <= 0) break;
    at += static_cast<std::size_t>(n);
  }
  ::_exit(0);  // no destructors of a library that may be broken
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (text.size() < 64 * 1024) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return text;
}

}  // namespace

std::string nccl_release(int version) {
  if (version < 10'000)  // before 2.9: 2804
    return std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10) + "." +
           std::to_string(version % 100);
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

int profiler_interface(int version) {
  if (version >= 23'100) return 7;
  if (version >= 22'900) return 6;
  if (version >= 22'800) return 5;
  if (version >= 22'700) return 4;
  if (version >= 22'600) return 3;
  if (version >= 22'400) return 2;
  return version >= 22'300 ? 1 : 0;
}

Findings check_socket(const std::string& socket) {
  const std::size_t slash = socket.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : socket.substr(0, slash);
  struct stat d {};
  if (::stat(directory.c_str(), &d) != 0 || !S_ISDIR(d.st_mode))
    return {socket_finding(
        Level::kProblem, directory, "the socket's directory is missing: plugins find no agent",
        directory + ": " + why(errno),
        "start ncclscope-agent, which makes it; in containers mount the host's " + directory +
            " (the directory, not the socket)")};
  // Whoever can write there could put a socket of his own: the plugin refuses.
  if ((d.st_mode & 0022) != 0)
    return {socket_finding(
        Level::kProblem, directory, "others can write to the socket's directory: plugins refuse it",
        "mode " + mode_text(d.st_mode), "chmod 0755 " + directory + ", and look who made it so")};
  if ((d.st_mode & 0005) != 0005)
    return {socket_finding(Level::kProblem, directory,
                           "jobs of other users cannot reach the socket: the directory is closed",
                           "mode " + mode_text(d.st_mode), "chmod 0755 " + directory)};
  struct stat s {};
  if (::lstat(socket.c_str(), &s) != 0)
    return {socket_finding(Level::kProblem, socket, "there is no socket: the agent is not running",
                           socket + ": " + why(errno),
                           "systemctl status ncclscope-agent, or the agent's log")};
  if (!S_ISSOCK(s.st_mode))
    return {socket_finding(Level::kProblem, socket, "it is no socket",
                           "mode " + mode_text(s.st_mode), "remove it and restart the agent")};
  if ((s.st_mode & 0006) != 0006)
    return {socket_finding(
        Level::kProblem, socket, "jobs of other users cannot write to the socket",
        "mode " + mode_text(s.st_mode), "restart the agent; it makes the socket with mode 0666")};
  const int fd = connect_to(socket);
  if (fd < 0) {
    const int error = errno;
    if (error == EAGAIN)
      return {socket_finding(Level::kWarning, socket, "the agent is too busy to take connections",
                             "connect: " + why(error), "look at the agent's log")};
    return {socket_finding(Level::kProblem, socket,
                           error == ECONNREFUSED
                               ? "nobody listens: the agent has died and left its socket"
                               : "it cannot be connected to",
                           "connect: " + why(error), "restart ncclscope-agent")};
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  ::close(fd);
  if (known && peer.uid != d.st_uid)
    return {socket_finding(Level::kProblem, socket,
                           "who listens is not the directory's owner: plugins refuse it",
                           "directory of uid " + std::to_string(d.st_uid) + ", listener uid " +
                               std::to_string(peer.uid),
                           "let the agent make the directory, or chown it to the agent's user")};
  return {socket_finding(
      Level::kOk, socket, "an agent listens",
      "directory mode " + mode_text(d.st_mode) + ", uid " + std::to_string(d.st_uid), "")};
}

LoadedLibrary load_in_child(const std::string& library, const std::vector<std::string>& symbols) {
  LoadedLibrary result;
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    result.error = "pipe: " + why(errno);
    return result;
  }
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    load_and_tell(pipe[1], library, symbols);
  }
  ::close(pipe[1]);
  if (child < 0) {
    result.error = "fork: " + why(errno);
    ::close(pipe[0]);
    return result;
  }
  const std::string text = read_all(pipe[0]);
  ::close(pipe[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  bool loaded = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t blank = line.find(' ');
    const std::string key = line.substr(0, blank);
    const std::string value = blank == std::string::npos ? "" : line.substr(blank + 1);
    if (key == "error") result.error = value;
    if (key == "path") result.path = value;
    if (key == "symbol") result.symbols.push_back(value);
    if (key == "nccl") result.nccl_version = std::atoi(value.c_str());  // NOLINT(cert-err34-c)
    if (key == "loaded") loaded = true;
  }
  if (!loaded && result.error.empty())
    result.error = WIFSIGNALED(status)
                       ? "loading it ends the process by signal " +
                             std::to_string(WTERMSIG(status)) +
                             (WTERMSIG(status) == SIGALRM ? " (it takes too long)" : "")
                       : "loading it ends the process";
  return result;
}

namespace {

/// Class, byte order and machine of an ELF file; empty if it is none.
std::string architecture(const std::string& path) {
  std::array<char, 20> head{};
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), head.size());
  if (!file || std::memcmp(head.data(),
                           "\x7F"
                           "ELF",
                           4) != 0)
    return "";
  return std::string(head.data() + 4, 2) + std::string(head.data() + 18, 2);
}

/// A file of this name that the loader passes over as if it were not there, because it is of
/// another architecture. Empty if there is none where libraries usually are.
std::string foreign_copy(const std::string& library) {
  const std::string own = architecture("/proc/self/exe");
  std::vector<std::string> folders;
  if (library.find('/') != std::string::npos) {
    folders = {""};
  } else {
    const char* path = std::getenv("LD_LIBRARY_PATH");  // NOLINT(concurrency-mt-unsafe)
    std::istringstream listed(path == nullptr ? "" : path);
    for (std::string folder; std::getline(listed, folder, ':');)
      if (!folder.empty()) folders.push_back(folder + "/");
    for (const char* folder : {"/usr/local/lib/", "/usr/lib64/", "/usr/lib/", "/lib64/", "/lib/",
                               "/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/"})
      folders.emplace_back(folder);
  }
  for (const std::string& folder : folders) {
    const std::string found = architecture(folder + library);
    if (!found.empty() && !own.empty() && found != own) return folder + library;
  }
  return "";
}

std::string this_architecture() {
  utsname system{};
  return ::uname(&system) == 0 ? system.machine : "unknown";
}

/// What is wrong with a plugin that could not be loaded, and what helps.
Finding unloadable(const std::string& library, const std::string& error) {
  const auto says = [&](const char* text) { return error.find(text) != std::string::npos; };
  const std::string foreign = foreign_copy(library);
  if (!foreign.empty())
    return {"plugin",
            Level::kProblem,
            library,
            "the plugin is of another architecture",
            foreign + ": " + error,
            "install the package for " + this_architecture()};
  if (says("No such file"))
    return {"plugin",
            Level::kProblem,
            library,
            "the plugin is not on the loader's path: jobs are not observed",
            error,
            "install the package ncclscope-plugin, or add its folder to LD_LIBRARY_PATH "
            "(containers: mount it); run ldconfig"};
  if (says("GLIBC_"))
    return {"plugin", Level::kProblem,
            library,  "the plugin wants a newer C library than is here",
            error,    "a newer container image, or the plugin built for this one"};
  return {"plugin", Level::kProblem,
          library,  "the plugin cannot be loaded",
          error,    "install it anew: a copy that was cut off ends the job that loads it"};
}

/// NCCL 2.28 and later take "none" for "no profiler"; earlier ones look for a library of that name.
bool switched_off(const std::string& named) {
  return named.size() == 4 && ::strcasecmp(named.c_str(), "none") == 0;
}

}  // namespace

Findings check_plugin(const std::string& named) {
  if (switched_off(named))
    return {{"plugin", Level::kWarning, named,
             "profilers are switched off in this environment: its jobs are not observed",
             "NCCL_PROFILER_PLUGIN=" + named, std::string("NCCL_PROFILER_PLUGIN=") + kPlugin}};
  const std::string library = named.empty() ? kPlugin : named;
  const LoadedLibrary plugin = load_in_child(
      library, {"ncclProfiler_v1", "ncclProfiler_v2", "ncclProfiler_v3", "ncclProfiler_v4",
                "ncclProfiler_v5", "ncclProfiler_v6", "ncclProfiler_v7"});
  if (!plugin.error.empty()) return {unloadable(library, plugin.error)};
  if (plugin.symbols.empty())
    return {{"plugin", Level::kProblem, library, "it is no profiler plugin",
             "it exports none of ncclProfiler_v1 to ncclProfiler_v7",
             std::string("NCCL_PROFILER_PLUGIN=") + kPlugin}};
  Findings findings;
  if (named.empty()) {
    findings.push_back({"plugin", Level::kWarning, library,
                        "the plugin is installed, but this environment does not load it",
                        "NCCL_PROFILER_PLUGIN is not set; found " + plugin.path,
                        std::string("NCCL_PROFILER_PLUGIN=") + kPlugin +
                            " in the job's environment, where the cluster does not do that"});
  } else if (named == "ncclscope" || named.find('/') != std::string::npos) {
    findings.push_back({"plugin", Level::kWarning, named,
                        "not all releases of NCCL take this form of the name",
                        "NCCL_PROFILER_PLUGIN=" + named,
                        std::string("NCCL_PROFILER_PLUGIN=") + kPlugin + " works with each"});
  } else {
    findings.push_back({"plugin", Level::kOk, library, "the plugin can be loaded",
                        plugin.path + ", interfaces " + plugin.symbols.front().substr(13) + " to " +
                            plugin.symbols.back().substr(13),
                        ""});
  }
  return findings;
}

Findings check_nccl(const std::string& library) {
  const LoadedLibrary nccl = load_in_child(library, {"ncclGetVersion"});
  if (!nccl.error.empty())
    return {{"nccl", Level::kUnknown, library,
             "NCCL is not on the loader's path: which release jobs use is not known", nccl.error,
             "frameworks may bring their own: run this inside the job's container or environment, "
             "or give --nccl PATH"}};
  if (nccl.nccl_version == 0)
    return {{"nccl", Level::kProblem, library, "it is no NCCL: it has no ncclGetVersion", nccl.path,
             "correct the path"}};
  const int interface = profiler_interface(nccl.nccl_version);
  if (interface == 0)
    return {{"nccl", Level::kProblem, library,
             "NCCL " + nccl_release(nccl.nccl_version) + " has no interface for profilers",
             nccl.path, "NCCL 2.23 or later"}};
  return {{"nccl", interface < 4 ? Level::kWarning : Level::kOk, library,
           "NCCL " + nccl_release(nccl.nccl_version) + " speaks version " +
               std::to_string(interface) + " of the profiler interface" +
               (interface < 3   ? ": it tells no GPU times"
                : interface < 4 ? ": its GPU times are the host's"
                                : ""),
           nccl.path, interface < 4 ? "NCCL 2.27 or later" : ""}};
}

}  // namespace ncclscope::cli
