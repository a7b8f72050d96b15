// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "cli/probe/protocol.h"
#include "cli/text.h"

namespace ncclscope::cli::probe {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kGreeting = "ncclscope-probe-1";
constexpr std::size_t kMostGuests = 1024;
constexpr milliseconds kGuestLimit{5000};    // to say who it is
constexpr milliseconds kConnectLimit{2000};  // for one attempt
constexpr milliseconds kPause{200};          // between rounds of attempts

std::string error_text() {
  return std::strerror(errno);  // NOLINT(concurrency-mt-unsafe): of this thread in glibc
}

bool bind_to(int socket, bool v6, bool loopback, std::uint16_t port) {
  const int on = 1, off = 0;
  (void)::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (v6) {
    (void)::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

/// IPv6 and IPv4 at once where there is IPv6.
Descriptor listen_at(bool loopback, std::uint16_t port) {
  for (const bool v6 : {true, false}) {
    if (v6 && loopback) continue;
    Descriptor socket(
        ::socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() >= 0 && bind_to(socket.get(), v6, loopback, port) &&
        ::listen(socket.get(), SOMAXCONN) == 0)
      return socket;
  }
  return {};
}

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string random_secret() {
  std::array<char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error("no random bytes can be had");
  return to_hex({bytes.data(), bytes.size()});
}

/// Addresses of this machine's interfaces that are up; loopback last, for processes of this node.
std::vector<std::string> own_addresses() {
  std::vector<std::string> out;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
      const bool usable = at->ifa_addr != nullptr && (at->ifa_flags & IFF_UP) != 0 &&
                          (at->ifa_flags & IFF_LOOPBACK) == 0;
      if (!usable || at->ifa_addr->sa_family != AF_INET) continue;
      std::array<char, INET_ADDRSTRLEN> text{};
      const auto* address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
      if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr)
        out.emplace_back(text.data());
    }
    ::freeifaddrs(all);
  }
  out.push_back(own_host());
  out.emplace_back("127.0.0.1");
  return out;
}

std::filesystem::path file_of(const std::string& folder, const std::string& digest) {
  return std::filesystem::path(folder) / ("ncclscope-probe-" + digest);
}

void write_file(const std::filesystem::path& file, const Meeting& meeting) {
  std::string text = meeting.secret + " " + std::to_string(meeting.ports.front());
  for (const std::string& host : meeting.hosts) text += " " + host;
  text += "\n";
  const std::string partial = file.string() + "." + meeting.secret;
  const Descriptor out(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = out.get() >= 0 && ::write(out.get(), text.data(), text.size()) ==
                                             static_cast<ssize_t>(text.size());
  if (!written || ::rename(partial.c_str(), file.c_str()) != 0)
    throw std::runtime_error("--rendezvous: " + file.string() +
                             " cannot be written: " + error_text());
}

/// What is in the file now.
std::optional<Meeting> read_file(const std::filesystem::path& file, const std::string& digest) {
  std::ifstream in(file);
  Meeting meeting;
  meeting.digest = digest;
  std::uint16_t port = 0;
  if (!(in >> meeting.secret >> port)) return {};
  meeting.ports.push_back(port);
  for (std::string host; in >> host;) meeting.hosts.push_back(host);
  return meeting;
}

/// Waits for one event on a descriptor.
bool wait_for(int fd, short events, steady_clock::time_point until) {
  const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now()).count();
  pollfd waiting{fd, events, 0};
  return left > 0 && ::poll(&waiting, 1, static_cast<int>(left)) > 0;
}

Descriptor connect_to(const std::string& host, std::uint16_t port, steady_clock::time_point until,
                      std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    why = host + ": " + ::gai_strerror(error);
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Descriptor socket(
        ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    if (socket.get() < 0) continue;
    int result = ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (result == EINPROGRESS) {
      socklen_t size = sizeof result;
      if (!wait_for(socket.get(), POLLOUT, until))
        result = ETIMEDOUT;
      else
        (void)::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &result, &size);
    }
    if (result == 0) return socket;
    errno = result;
    why = host + ":" + std::to_string(port) + ": " + error_text();
  }
  return {};
}

/// One attempt at one port. A refusal by the right run is thrown.
std::optional<Channel> try_port(const Meeting& meeting, const std::string& host, std::uint16_t port,
                                const std::string& greeting, steady_clock::time_point until,
                                std::string& why) {
  Descriptor socket = connect_to(host, port, until, why);
  if (socket.get() < 0) return {};
  const int fd = socket.get();
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  Channel channel(std::move(socket));
  channel.write_line(greeting);
  while (channel.open() && wait_for(fd, POLLIN, until)) {
    std::vector<std::string> lines = channel.read_lines();
    if (lines.empty()) continue;
    const Words words = split_word(lines.front());
    if (words.first == "welcome") {
      lines.erase(lines.begin());
      channel.put_back(std::move(lines));
      return channel;
    }
    if (words.first == "refused" && words.rest.starts_with(meeting.digest))
      throw std::runtime_error("process 0 at " + host + ":" + std::to_string(port) +
                               " refuses: " + printable(split_word(words.rest).rest));
    why = host + ":" + std::to_string(port) + ": somebody else listens there";
    return {};
  }
  why = host + ":" + std::to_string(port) + ": no answer";
  return {};
}

}  // namespace

std::string own_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

Listener::Listener(const Place& place, const std::string& folder)
    : processes_(place.processes), here_(place.processes) {
  meeting_.digest = digest(place.key);
  std::vector<std::uint16_t> ports = candidate_ports(place.key);
  if (place.root_port != 0) ports = {place.root_port};
  if (!folder.empty()) {
    ports = {0};
    meeting_.secret = random_secret();
  }
  for (const std::uint16_t port : ports) {
    socket_ = listen_at(place.one_node && folder.empty(), port);
    if (socket_.get() >= 0) break;
  }
  if (socket_.get() < 0)
    throw std::runtime_error("process 0 can listen at none of " + std::to_string(ports.size()) +
                             " ports from " + std::to_string(ports.front()) +
                             " on: " + error_text());
  meeting_.ports = {port_of(socket_.get())};
  if (folder.empty()) return;
  meeting_.hosts = own_addresses();
  file_ = file_of(folder, meeting_.digest);
  write_file(file_, meeting_);
}

Listener::~Listener() {
  if (file_.empty()) return;
  // Another run may have written its own meanwhile.
  const std::optional<Meeting> now = read_file(file_, meeting_.digest);
  std::error_code error;
  if (now && now->secret == meeting_.secret) std::filesystem::remove(file_, error);
}

std::vector<int> Listener::descriptors() const {
  std::vector<int> out{socket_.get()};
  for (const Guest& guest : guests_) out.push_back(guest.channel.fd());
  return out;
}

void Listener::accept_guests() {
  while (guests_.size() < kMostGuests) {
    Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) return;
    const int on = 1;
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    guests_.push_back({Channel(std::move(socket)), steady_clock::now() + kGuestLimit});
  }
}

std::string Listener::answer(const std::string& line, std::uint32_t& process,
                             std::string& host) const {
  std::istringstream in(line);
  std::string greeting, key, secret;
  std::uint32_t processes = 0;
  const bool read =
      static_cast<bool>(in >> greeting >> key >> secret >> process >> processes >> host);
  if (!read || greeting != kGreeting) return "refused 0 this is ncclscope probe";
  if (key != meeting_.digest || (!meeting_.secret.empty() && secret != meeting_.secret))
    return "refused 0 this is another run";
  const std::string refused = "refused " + meeting_.digest + " ";
  if (processes != processes_)
    return refused + "it counts " + std::to_string(processes_) + " processes, not " +
           std::to_string(processes);
  if (process == 0 || process >= processes_ || here_[process])
    return refused + "process " + std::to_string(process) + " is there already";
  return "welcome";
}

std::vector<Arrival> Listener::arrivals() {
  accept_guests();
  std::vector<Arrival> out;
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const std::vector<std::string> lines = guest->channel.read_lines();
    if (!lines.empty()) {
      std::uint32_t process = 0;
      std::string host;
      const std::string said = answer(lines.front(), process, host);
      guest->channel.write_line(said);
      if (said == "welcome") {
        here_[process] = true;
        out.push_back({process, printable(host), std::move(guest->channel)});
      }
    }
    const bool over =
        !lines.empty() || !guest->channel.open() || steady_clock::now() > guest->until;
    guest = over ? guests_.erase(guest) : std::next(guest);
  }
  return out;
}

Channel join(const Place& place, const std::string& folder, const std::string& host,
             steady_clock::time_point until) {
  Meeting meeting;
  meeting.digest = digest(place.key);
  meeting.secret = "-";
  meeting.hosts = {place.root_host};
  meeting.ports = candidate_ports(place.key);
  if (place.root_port != 0) meeting.ports = {place.root_port};
  std::string why;
  while (steady_clock::now() < until) {
    if (!folder.empty()) {
      const std::filesystem::path file = file_of(folder, meeting.digest);
      meeting = read_file(file, meeting.digest).value_or(Meeting{meeting.digest, "", {}, {}});
      if (meeting.ports.empty()) why = file.string() + " is not there";
    }
    const std::string greeting = std::string(kGreeting) + " " + meeting.digest + " " +
                                 meeting.secret + " " + std::to_string(place.process) + " " +
                                 std::to_string(place.processes) + " " + host;
    for (const std::string& root : meeting.hosts) {
      for (const std::uint16_t port : meeting.ports) {
        const auto attempt = std::min(until, steady_clock::now() + kConnectLimit);
        if (std::optional<Channel> channel = try_port(meeting, root, port, greeting, attempt, why))
          return std::move(*channel);
      }
    }
    std::this_thread::sleep_for(kPause);
  }
  throw std::runtime_error("process " + std::to_string(place.process) +
                           " did not find process 0: " + why);
}

}  // namespace ncclscope::cli::probe
