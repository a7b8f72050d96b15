// SPDX-License-Identifier: Apache-2.0
#include "cli/diagnose/nodes.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "cli/text.h"

extern char** environ;

namespace ncclscope::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMostOutput = std::size_t{16} << 20;
constexpr milliseconds kSlurmLimit{20'000};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) out.push_back(line);
  }
  return out;
}

/// A pipe's reading end and the process that writes into it.
class Output {
 public:
  explicit Output(const std::vector<std::string>& arguments) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe can be made");
    read_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const int error = ::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error == 0) return;
    ::close(read_);
    throw std::runtime_error(
        arguments[0] + " cannot be run: " + std::strerror(error));  // NOLINT(concurrency-mt-unsafe)
  }
  ~Output() {
    ::close(read_);
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// False when the time is over.
  bool read_all(std::string& out, milliseconds limit) const {
    const auto end = steady_clock::now() + limit;
    std::array<char, 4096> buffer{};
    for (;;) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - steady_clock::now()).count();
      pollfd waiting{read_, POLLIN, 0};
      if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) == 0) return false;
      const ssize_t got = ::read(read_, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return true;
      out.append(buffer.data(), static_cast<std::size_t>(got));
      if (out.size() > kMostOutput) throw std::runtime_error("its output is too long");
    }
  }
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  int read_ = -1;
  pid_t pid_ = -1;
};

std::size_t collect(char* data, std::size_t size, std::size_t count, void* out) {
  auto& body = *static_cast<std::string*>(out);
  if (body.size() + size * count > kMostOutput) return 0;
  body.append(data, size * count);
  return size * count;
}

struct CurlDeleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};

std::string without_slash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

/// Something is wrong with what a Prometheus answered.
class AnswerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The answer of the HTTP API, if it is a success.
nlohmann::json answer_of(const std::string& body) {
  nlohmann::json answer = nlohmann::json::parse(body, nullptr, false);
  if (!answer.is_object()) throw AnswerError("its answer is no JSON: is this a Prometheus?");
  const auto status = answer.find("status");
  if (status == answer.end()) throw AnswerError("its answer is no vector");
  if (*status != "success") {
    const auto error = answer.find("error");
    const bool told = error != answer.end() && error->is_string();
    throw AnswerError("it refuses: " +
                      (told ? printable(error->get<std::string>()) : "no reason given"));
  }
  return answer;
}

}  // namespace

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) out.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return out;
}

std::string address_of(const std::string& host, int port, const std::string& local_name,
                       const std::string& local_socket) {
  if (host.starts_with('/') || host.starts_with("unix:") || host.find(':') != std::string::npos)
    return host;
  const auto short_name = [](const std::string& name) { return name.substr(0, name.find('.')); };
  struct stat info {};
  if ((host == local_name || short_name(host) == short_name(local_name)) &&
      ::stat(local_socket.c_str(), &info) == 0)
    return "unix:" + local_socket;
  return host + ":" + std::to_string(port);
}

std::string output_of(const std::vector<std::string>& arguments, milliseconds limit) {
  Output output(arguments);
  std::string text;
  if (!output.read_all(text, limit))
    throw std::runtime_error(arguments[0] + " did not end within " +
                             format_duration(static_cast<double>(limit.count()) * 1e-3));
  const int status = output.wait();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error(
        arguments[0] + " failed" +
        (WIFEXITED(status) ? " with status " + std::to_string(WEXITSTATUS(status)) : ""));
  return text;
}

std::vector<std::string> slurm_nodes(const std::string& job_id) {
  // Options are never made of what a user typed.
  if (job_id.empty() || job_id.find_first_not_of("0123456789_+") != std::string::npos)
    throw std::runtime_error("--slurm: '" + printable(job_id) + "' is no job id of SLURM");
  const char* own = std::getenv("SLURM_JOB_ID");         // NOLINT(concurrency-mt-unsafe)
  const char* list = std::getenv("SLURM_JOB_NODELIST");  // NOLINT(concurrency-mt-unsafe)
  std::string nodes;
  if (own != nullptr && list != nullptr && job_id == own) {
    nodes = list;
  } else {
    for (const std::string& line : lines_of(
             output_of({"squeue", "--noheader", "--jobs", job_id, "--format", "%N"}, kSlurmLimit)))
      nodes += (nodes.empty() ? "" : ",") + line;
  }
  if (nodes.empty() || nodes.starts_with('-'))
    throw std::runtime_error("--slurm: SLURM names no nodes of job " + job_id +
                             "; has it begun, and not ended long ago?");
  return lines_of(output_of({"scontrol", "show", "hostnames", nodes}, kSlurmLimit));
}

Prometheus::Prometheus(std::string url, std::string ca, milliseconds limit)
    : url_(without_slash(std::move(url))), ca_(std::move(ca)), limit_(limit) {
  static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (kReady != CURLE_OK) throw std::runtime_error("libcurl cannot be initialised");
}

std::string Prometheus::ask(const std::string& path, const std::string& expression) const {
  const std::unique_ptr<CURL, CurlDeleter> curl(curl_easy_init());
  if (!curl) throw std::runtime_error("libcurl cannot be initialised");
  const std::unique_ptr<char, void (*)(void*)> escaped(
      curl_easy_escape(curl.get(), expression.c_str(), static_cast<int>(expression.size())),
      &curl_free);
  const std::string url = url_ + "/api/v1/" + path + "query=" + escaped.get();
  std::string body;
  std::array<char, CURL_ERROR_SIZE> why{};
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(limit_.count()));
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &collect);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &body);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, why.data());
  if (!ca_.empty()) curl_easy_setopt(curl.get(), CURLOPT_CAINFO, ca_.c_str());
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK)
    throw std::runtime_error("Prometheus at " + printable(url_) + ": " +
                             printable(why[0] != '\0' ? why.data() : curl_easy_strerror(code)));
  return body;
}

std::vector<Prometheus::Sample> Prometheus::query(const std::string& expression) const {
  try {
    return parse_vector(ask("query?", expression));
  } catch (const AnswerError& error) {
    throw std::runtime_error("Prometheus at " + printable(url_) + ": " + error.what());
  }
}

std::vector<Prometheus::Series> Prometheus::query_range(const std::string& expression, double start,
                                                        double end, double step_seconds) const {
  std::array<char, 160> path{};
  (void)std::snprintf(path.data(), path.size(), "query_range?start=%.3f&end=%.3f&step=%.3f&", start,
                      end, step_seconds);
  try {
    return parse_matrix(ask(path.data(), expression));
  } catch (const AnswerError& error) {
    throw std::runtime_error("Prometheus at " + printable(url_) + ": " + error.what());
  }
}

std::vector<std::string> Prometheus::nodes(const std::string& job_id) const {
  // The last ten minutes, so that a node is asked for that is not scraped any more.
  std::set<std::string> hosts;
  for (const Sample& sample : query(
           "count by (instance) (last_over_time(ncclscope_job_info{job_id=" + label_value(job_id) +
           "}[10m]))")) {
    const auto instance = sample.labels.find("instance");
    if (instance != sample.labels.end()) hosts.insert(host_of(instance->second));
  }
  if (hosts.empty())
    throw std::runtime_error("Prometheus at " + printable(url_) + " knows no agent with job " +
                             printable(job_id) + " within the last ten minutes");
  return {hosts.begin(), hosts.end()};
}

std::vector<Prometheus::Sample> parse_vector(const std::string& body) {
  const nlohmann::json answer = answer_of(body);
  std::vector<Prometheus::Sample> out;
  try {
    for (const nlohmann::json& result : answer.at("data").at("result")) {
      Prometheus::Sample sample;
      for (const auto& [name, value] : result.at("metric").items())
        sample.labels[name] = value.get<std::string>();
      sample.value = std::strtod(result.at("value").at(1).get<std::string>().c_str(), nullptr);
      out.push_back(std::move(sample));
    }
  } catch (const nlohmann::json::exception&) {
    throw AnswerError("its answer is no vector");
  }
  return out;
}

std::vector<Prometheus::Series> parse_matrix(const std::string& body) {
  const nlohmann::json answer = answer_of(body);
  std::vector<Prometheus::Series> out;
  try {
    for (const nlohmann::json& result : answer.at("data").at("result")) {
      Prometheus::Series series;
      for (const auto& [name, value] : result.at("metric").items())
        series.labels[name] = value.get<std::string>();
      for (const nlohmann::json& sample : result.at("values"))
        series.samples.emplace_back(sample.at(0).get<double>(),
                                    std::strtod(sample.at(1).get<std::string>().c_str(), nullptr));
      out.push_back(std::move(series));
    }
  } catch (const nlohmann::json::exception&) {
    throw AnswerError("its answer is no matrix");
  }
  return out;
}

std::map<verdict::Shape, verdict::ShapeSample> transfer_baselines(
    const std::vector<Prometheus::Sample>& bandwidths,
    const std::vector<Prometheus::Sample>& bytes_per_operation) {
  const auto shape_of = [](const Prometheus::Sample& sample) -> std::optional<verdict::Shape> {
    const auto label = [&](const char* name) {
      const auto at = sample.labels.find(name);
      return at == sample.labels.end() ? std::string() : at->second;
    };
    const auto number = [&](const char* name) {
      return static_cast<std::uint32_t>(std::strtoul(label(name).c_str(), nullptr, 10));
    };
    const std::optional<verdict::Collective> collective =
        verdict::synchronising(label("collective"));
    if (!collective || !(sample.value > 0)) return {};
    return verdict::Shape{*collective,        label("size"),    label("algorithm"),
                          label("dimension"), number("nranks"), number("nnodes")};
  };
  std::map<verdict::Shape, double> bytes;
  for (const Prometheus::Sample& sample : bytes_per_operation) {
    if (const auto shape = shape_of(sample)) bytes[*shape] = sample.value;
  }
  std::map<verdict::Shape, verdict::ShapeSample> out;
  for (const Prometheus::Sample& sample : bandwidths) {
    const auto shape = shape_of(sample);
    if (!shape || !bytes.contains(*shape)) continue;
    out[*shape] = {sample.value, bytes[*shape]};
  }
  return out;
}

std::string label_value(std::string_view value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + "\"";
}

std::string host_of(const std::string& instance) {
  if (instance.starts_with('[')) return instance.substr(1, instance.find(']') - 1);
  return instance.substr(0, instance.find(':'));
}

}  // namespace ncclscope::cli
