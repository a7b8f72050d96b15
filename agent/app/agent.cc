// SPDX-License-Identifier: Apache-2.0
//
// Wiring. The order of members is the order of construction; destruction undoes it, servers first.
#include "agent/app/agent.h"

#include <malloc.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "agent/aggregate/aggregator.h"
#include "agent/aggregate/node_inspector.h"
#include "agent/aggregate/settings_judge.h"
#include "agent/aggregate/throughput.h"
#include "agent/api/api_server.h"
#include "agent/api/network_server.h"
#include "agent/app/limits.h"
#include "agent/archive/job_archive.h"
#include "agent/base/log.h"
#include "agent/base/reactor.h"
#include "agent/base/signals.h"
#include "agent/export/inspector_endpoint.h"
#include "agent/export/metrics_endpoint.h"
#include "agent/export/web_server.h"
#include "agent/identity/gpu_table.h"
#include "agent/identity/job_reports.h"
#include "agent/identity/job_resolver.h"
#include "agent/identity/job_table.h"
#include "agent/identity/peer_prover.h"
#include "agent/identity/rdma_ports.h"
#include "agent/identity/squeue.h"
#include "agent/ingest/listener.h"
#include "agent/ingest/reactor_gateway.h"
#include "agent/ingest/session.h"
#include "agent/page/bandwidth_history.h"
#include "agent/page/node_page.h"

namespace ncclscope::agent {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kTrimPeriodNs = kSecond;
constexpr std::uint64_t kTrimGrowthBytes = 1024 * 1024;
constexpr std::chrono::seconds kDrainLimit{1};
constexpr std::chrono::milliseconds kApiStopLimit{500};
constexpr std::chrono::milliseconds kArchiveStopLimit{3'000};
constexpr std::chrono::seconds kFilesCheck{5};  // certificates and who may pass
constexpr std::size_t kMaxChannels = 256;       // gRPC ingest streams
constexpr const char* kDoorName = "plugins";    // FileDescriptorName= of the socket unit

std::uint64_t random_instance() {
  std::uint64_t value = 0;
  while (value == 0) {
    if (::getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
      value = static_cast<std::uint64_t>(SystemClock().realtime_ns()) ^
              static_cast<std::uint64_t>(::getpid()) << 48;
    }
  }
  return value;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "localhost";
}

Ingest::Options ingest_options(const Config& config, std::uint64_t instance) {
  Ingest::Options options;
  options.agent_instance = instance;
  options.max_sessions = config.max_sessions;
  options.sessions_per_principal = config.quota_sessions;
  options.grace_ns = config.grace_seconds * kSecond;
  return options;
}

Aggregator::Options aggregator_options(const Config& config, std::uint64_t instance) {
  Aggregator::Options options;
  options.node = config.node.empty() ? host_name() : config.node;
  options.agent_version = agent_version();
  options.agent_instance = instance;
  options.grace_ns = config.grace_seconds * kSecond;
  options.stalled_ns = config.stalled_seconds * kSecond;
  options.max_jobs = config.max_jobs;
  options.max_communicators = config.max_communicators;
  options.jobs_per_principal = config.quota_jobs;
  options.communicators_per_principal = config.quota_communicators;
  options.series = {config.series_per_job, config.series_per_principal, config.series_limit};
  options.inspector_window_ns = config.inspector_window_seconds * kSecond;
  options.inspector_min_bytes = config.inspector_min_bytes;
  return options;
}

SqueuePoller::Options squeue_options(const Config& config) {
  const std::string node = config.node.empty() ? host_name() : config.node;
  SqueuePoller::Options options;
  options.command = command_words(config.squeue_command, node.substr(0, node.find('.')));
  options.interval =
      std::chrono::seconds(static_cast<std::int64_t>(config.squeue_interval_seconds));
  options.minimum_pause = options.interval / 4;
  options.timeout = std::chrono::seconds(static_cast<std::int64_t>(config.squeue_timeout_seconds));
  return options;
}

/// Null where nothing is to be kept.
Result<std::unique_ptr<JobArchive>> make_archive(const Config& config, Aggregator& aggregator,
                                                 const Clock& clock, std::uint64_t instance) {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  if (config.archive_directory.empty()) return std::unique_ptr<JobArchive>();
  JobArchive::Options options;
  options.store.directory = config.archive_directory;
  options.store.node = config.node.empty() ? host_name() : config.node;
  options.store.group_readable = config.archive_group_readable != 0;
  options.store.job_bytes = config.archive_job_mb * kMiB;
  options.store.total_bytes = config.archive_total_mb * kMiB;
  options.store.age_ns = static_cast<std::int64_t>(config.archive_age_hours * 3600 * kSecond);
  options.store.instance = instance;
  options.writer.flush_ns = config.archive_flush_seconds * kSecond;
  options.writer.segment_ns = config.archive_segment_seconds * kSecond;
  // Whole segments are deleted: none should be much of what there may be.
  options.writer.segment_bytes = std::min(
      {options.writer.segment_bytes, options.store.job_bytes / 8, options.store.total_bytes / 16});
  options.writer.zstd_level = static_cast<int>(config.archive_zstd_level);
  options.writer.instance = instance;
  options.sink.node = options.store.node;
  options.sink.producer = concat("ncclscope-agent ", agent_version());
  options.sink.state_ns = options.writer.flush_ns;
  return JobArchive::create(aggregator, clock, options);
}

/// "127.0.0.1:9464", "[::]:9464".
std::string address_text(const std::string& host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return concat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

}  // namespace

const char* agent_version() {
  return NCCLSCOPE_VERSION;
}

struct Agent::Parts {
  Parts(const Config& c, const Clock& k, std::uint64_t own_instance)
      : config(c),
        clock(k),
        tail(c.tail_records),
        gpus(c.sysfs_root),
        slurm_jobs(k, {c.max_slurm_jobs, c.grace_seconds * kSecond}),
        prover({.proc_root = c.proc_root, .pods_log_root = c.pods_log_root}, slurm_jobs, k),
        resolver(c.cluster, slurm_jobs),
        instance(own_instance),
        aggregator(k, resolver, gpus, tail, aggregator_options(c, instance)) {}

  /// The way in: with the archive in front of the aggregator, if there is one.
  Status open_ingest() {
    Result<std::unique_ptr<JobArchive>> made = make_archive(config, aggregator, clock, instance);
    if (!made.ok()) return made.status();
    archive = std::move(made).value();
    RecordSink& sink = archive ? archive->sink() : static_cast<RecordSink&>(aggregator);
    ingest.emplace(sink, clock, ingest_options(config, instance));
    return {};
  }

  void tick() {
    notify_if_due();
    if (listener) listener->note_empty_queue();
    give_back_memory();
    watch_memory();
    ingest->tick();
    aggregator.tick();
    if (archive) archive->tick();
    refresh_jobs();
  }
  void notify_if_due();
  void refresh_jobs();
  void watch_memory();
  void publish() {
    if (squeue) aggregator.set_squeue_failures(squeue->failures());
    constexpr std::uint64_t kLookAgainNs = 60 * kSecond;  // ports go up and down
    if (const std::uint64_t now = clock.monotonic_ns(); now >= rdma_look_ns) {
      rdma_look_ns = now + kLookAgainNs;
      aggregator.set_rdma_ports(active_rdma_ports(config.sysfs_root));
    }
    if (archive) aggregator.set_archive(archive->counts());
    SnapshotPtr snapshot = aggregator.build(ingest->stats(), ingest->quotas().counts());
    history.observe(*snapshot);
    store.publish(std::move(snapshot));
    give_back_memory();
  }
  void give_back_memory();
  void shut_down();
  void apply(const Config& next);
  void reload_access();
  Status start_http();
  Status start_api();
  Status write_ready_file() const;

  Config config;
  const Clock& clock;
  SnapshotStore store;
  BandwidthHistory history;
  OperationTail tail;
  GpuTable gpus;
  JobTable slurm_jobs;
  PeerProver prover;
  ProofResolver resolver;
  std::uint64_t instance;
  Aggregator aggregator;
  std::unique_ptr<JobArchive> archive;
  std::optional<Ingest> ingest;  // always there, once open_ingest() was called
  std::unique_ptr<Reactor> reactor;
  std::unique_ptr<Signals> signals;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<ReactorGateway> gateway;
  std::unique_ptr<JobReports> job_reports;
  std::unique_ptr<ThroughputReports> throughput;
  std::unique_ptr<SqueuePoller> squeue;
  SettingsJudge judge;
  std::unique_ptr<NodeInspector> node_inspector;
  std::uint64_t rdma_look_ns = 0;     // when to look at the ports again
  std::uint64_t jobs_generation = 0;  // of slurm_jobs, as of the last refresh
  std::uint64_t trimmed_ns = 0;
  std::uint64_t trimmed_resident = 0;  // bytes, just after
  std::string http_address;
  HttpRouter router;
  std::unique_ptr<MetricsEndpoint> metrics;
  std::unique_ptr<InspectorEndpoint> inspector;
  std::unique_ptr<NodePage> page;
  std::unique_ptr<WebServer> http;
  std::unique_ptr<ApiServer> api;
  std::string api_address;
  std::unique_ptr<NetworkServer> network_api;
  std::function<Result<Config>()> reload_config;
  MemoryGuard memory;
  const std::chrono::microseconds watchdog = watchdog_period();
  std::uint64_t alive_ns = 0;  // when the service manager was told last
  bool stopping = false;
};

/// That the reactor still turns is the sign of life.
void Agent::Parts::notify_if_due() {
  const std::uint64_t now_ns = clock.monotonic_ns();
  if (watchdog.count() == 0 ||
      now_ns - alive_ns < static_cast<std::uint64_t>(watchdog.count()) * 1000 / 3)
    return;
  alive_ns = now_ns;
  notify_service_manager("WATCHDOG=1");
}

void Agent::Parts::watch_memory() {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  const std::uint64_t resident = resident_bytes();
  const bool before = memory.full();
  const bool full = memory.update(resident, config.memory_limit_mb * kMiB);
  if (full != before) {
    const std::string state =
        concat(resident / kMiB, " MiB are resident, memory_limit_mb is ", config.memory_limit_mb);
    if (full) {
      log_warning(concat("no new sessions and communicators for now: ", state));
    } else {
      log_info(concat("new sessions and communicators are taken again: ", state));
    }
  }
  ingest->set_memory_full(full);
  aggregator.set_memory_full(full);
}

/// Jobs that come and go, and series that are folded, leave holes in the heap: their pages go back
/// to the kernel. Once a second, and sooner while the agent grows.
void Agent::Parts::give_back_memory() {
  const std::uint64_t now_ns = clock.monotonic_ns();
  if (now_ns - trimmed_ns < kTrimPeriodNs && resident_bytes() < trimmed_resident + kTrimGrowthBytes)
    return;
  malloc_trim(0);
  trimmed_ns = now_ns;
  trimmed_resident = resident_bytes();
}

/// What SLURM has told since the last tick reaches jobs that are shown already.
void Agent::Parts::refresh_jobs() {
  slurm_jobs.tick();
  if (slurm_jobs.take_missed() && squeue) squeue->ask();
  if (std::exchange(jobs_generation, slurm_jobs.generation()) == slurm_jobs.generation()) return;
  aggregator.refresh_jobs();
  (void)slurm_jobs.take_missed();  // that was us
}

/// On the reactor: nothing new comes in, what is queued is taken, and senders learn what was
/// counted.
void Agent::Parts::shut_down() {
  if (std::exchange(stopping, true)) return;
  notify_service_manager("STOPPING=1");
  log_info("stopping");
  listener->stop_accepting();
  const auto deadline = std::chrono::steady_clock::now() + kDrainLimit;
  while (listener->drain() && std::chrono::steady_clock::now() < deadline) {
  }
  ingest->acknowledge_all();
  aggregator.flush_all();
  if (archive) archive->stop(kArchiveStopLimit);
  publish();
  gateway->close();
  tail.close();
  reactor->stop();
}

void Agent::Parts::apply(const Config& next) {
  for (const ConfigKey* key : differences(config, next)) {
    if (!key->reloadable) {
      log_warning(concat("the new value of ", key->name, " needs a restart"));
      continue;
    }
    std::visit([&](auto member) { config.*member = next.*member; }, key->member);
    log_info(concat("the new value of ", key->name, " is in force"));
  }
  if (const Result<LogLevel> level = parse_log_level(config.log_level); level.ok()) {
    set_log_level(level.value());
  }
  ingest->set_grace_ns(config.grace_seconds * kSecond);
  aggregator.set_grace_ns(config.grace_seconds * kSecond);
  aggregator.set_stalled_ns(config.stalled_seconds * kSecond);
  slurm_jobs.set_grace_ns(config.grace_seconds * kSecond);
}

/// At once, and whether or not a file's time says that it has changed.
void Agent::Parts::reload_access() {
  if (http) {
    if (const Status s = http->reload(); !s.ok())
      log_error(concat("SIGHUP: /metrics goes on as it was: ", s.message()));
  }
  if (network_api) {
    if (const Status s = network_api->reload(); !s.ok())
      log_error(concat("SIGHUP: the API over TCP goes on as it was: ", s.message()));
  }
}

Status Agent::Parts::write_ready_file() const {
  if (config.ready_file.empty()) return {};
  const std::string temporary = config.ready_file + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << "pid=" << ::getpid() << "\nsocket=" << config.socket << "\nhttp=" << http_address
         << "\napi_socket=" << config.api_socket << "\napi=" << api_address << "\n";
    if (!file.flush()) {
      return Status(ErrorCode::kSystem, concat("cannot write ready_file ", temporary));
    }
  }
  // Renamed into place, so that whoever waits for the file finds it whole.
  if (std::rename(temporary.c_str(), config.ready_file.c_str()) != 0) {
    return Status::system(concat("cannot rename to ready_file ", config.ready_file));
  }
  return {};
}

Agent::Agent(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Agent::~Agent() {
  Parts& p = *parts_;
  p.node_inspector.reset();
  p.squeue.reset();
  p.gateway->close();
  p.tail.close();
  if (p.api) p.api->stop(kApiStopLimit);
  if (p.network_api) p.network_api->stop(kApiStopLimit);
  if (p.http) p.http->stop();
}

Result<std::unique_ptr<Agent>> Agent::create(const Config& config, const Clock& clock,
                                             std::vector<PassedDescriptor> passed) {
  auto parts = std::make_unique<Parts>(config, clock, random_instance());
  Parts& p = *parts;
  if (Status s = p.open_ingest(); !s.ok()) return s;
  Result<std::unique_ptr<Reactor>> reactor = Reactor::create();
  if (!reactor.ok()) return reactor.status();
  p.reactor = std::move(reactor).value();
  p.gateway = std::make_unique<ReactorGateway>(
      *p.reactor, *p.ingest, ReactorGateway::Options{kMaxChannels, config.quota_bytes_per_second});
  p.job_reports = std::make_unique<ReactorJobReports>(*p.reactor, p.slurm_jobs);
  p.throughput = std::make_unique<ReactorThroughputReports<Aggregator>>(*p.reactor, p.aggregator);

  Listener::Options options;
  options.path = config.socket;
  const std::size_t descriptors = raise_descriptor_limit();
  options.max_connections = connections_within(config.max_connections, descriptors);
  if (options.max_connections < config.max_connections) {
    log_warning(concat("max_connections = ", config.max_connections, " is lowered to ",
                       options.max_connections, ": the limit on open files is ", descriptors));
  }
  options.connections_per_principal = config.quota_connections;
  options.bytes_per_second_per_principal = config.quota_bytes_per_second;
  options.keep_over_restart = is_managed();
  const auto door = std::find_if(passed.begin(), passed.end(),
                                 [](const PassedDescriptor& d) { return d.name == kDoorName; });
  Result<std::unique_ptr<Listener>> listener = Listener::create(
      *p.reactor, *p.ingest, options,
      [&p](int fd, std::uint64_t queue_empty_ns) { return p.prover.identify(fd, queue_empty_ns); },
      door == passed.end() ? ScopedFd() : std::move(door->fd));
  if (!listener.ok()) return listener.status();
  p.listener = std::move(listener).value();
  for (PassedDescriptor& descriptor : passed) {
    if (descriptor.fd.valid()) p.listener->adopt(std::move(descriptor.fd), descriptor.name);
  }

  if (Status s = p.reactor->add_timer(std::chrono::milliseconds(250), [&p] { p.tick(); });
      !s.ok()) {
    return s;
  }
  if (Status s = p.reactor->add_timer(
          std::chrono::milliseconds(static_cast<std::int64_t>(config.snapshot_interval_ms)),
          [&p] { p.publish(); });
      !s.ok()) {
    return s;
  }
  p.publish();
  return std::unique_ptr<Agent>(new Agent(std::move(parts)));
}

Status Agent::handle_signals(std::function<Result<Config>()> reload_config) {
  Parts& p = *parts_;
  p.reload_config = std::move(reload_config);
  Result<std::unique_ptr<Signals>> signals =
      Signals::create(*p.reactor, {SIGTERM, SIGINT, SIGHUP}, [&p](int signal) {
        if (signal != SIGHUP) {
          p.shut_down();
          return;
        }
        const Result<Config> next = p.reload_config();
        if (next.ok()) {
          p.apply(next.value());
        } else {
          log_error(concat("SIGHUP: the settings are left as they are: ", next.status().message()));
        }
        p.reload_access();
      });
  if (!signals.ok()) return signals.status();
  p.signals = std::move(signals).value();
  return {};
}

Status Agent::Parts::start_http() {
  const Result<HostPort> listen = parse_host_port(config.listen);
  if (!listen.ok()) return listen.status();
  metrics = std::make_unique<MetricsEndpoint>(store);
  metrics->add_to(router);
  if (config.inspector_window_seconds != 0) {
    inspector = std::make_unique<InspectorEndpoint>(store);
    inspector->add_to(router);
  }
  page = std::make_unique<NodePage>(store, history);
  page->add_to(router);
  HttpServerOptions options;
  options.address = listen.value().host;
  options.port = listen.value().port;
  Result<std::unique_ptr<WebServer>> started =
      WebServer::start(options, config.web_config, clock,
                       [this](const HttpRequest& request) { return router.handle(request); });
  if (!started.ok()) return started.status();
  http = std::move(started).value();
  http_address = address_text(options.address, http->port());
  return reactor->add_timer(kFilesCheck, [this] { http->reload_if_changed(); });
}

Status Agent::Parts::start_api() {
  const ApiServices services{
      &store, &tail, gateway.get(), gateway.get(), job_reports.get(), throughput.get(), &judge};
  if (!config.api_socket.empty()) {
    if (Status s = make_socket_directory(config.api_socket); !s.ok()) return s;
    ApiServerOptions options;
    options.socket = config.api_socket;
    Result<std::unique_ptr<ApiServer>> started = start_api_server(options, services);
    if (!started.ok()) return started.status();
    api = std::move(started).value();
  }
  if (config.api_listen.empty()) return {};
  const Result<HostPort> listen = parse_host_port(config.api_listen);
  if (!listen.ok()) return listen.status();
  NetworkServerOptions options;
  options.address = listen.value().host;
  options.port = listen.value().port;
  options.tls = {config.api_cert_file, config.api_key_file, config.api_client_ca_file};
  options.access_file = config.api_access_file;
  Result<std::unique_ptr<NetworkServer>> started = start_network_server(options, services, clock);
  if (!started.ok()) return started.status();
  network_api = std::move(started).value();
  api_address = address_text(options.address, network_api->port());
  return reactor->add_timer(kFilesCheck, [this] { network_api->reload_if_changed(); });
}

Status Agent::start_servers() {
  Parts& p = *parts_;
  if (!p.config.listen.empty()) {
    if (Status s = p.start_http(); !s.ok()) return s;
  }
  if (Status s = p.start_api(); !s.ok()) return s;
  if (!p.config.squeue_command.empty()) {
    p.squeue = std::make_unique<SqueuePoller>(
        p.clock, squeue_options(p.config), [&p](std::vector<QueuedJob> jobs) {
          p.reactor->post([&p, jobs = std::move(jobs)] { p.slurm_jobs.set_queue(jobs); });
        });
  }
  if (p.config.doctor_interval_seconds > 0) {
    p.node_inspector = std::make_unique<NodeInspector>(
        p.config.sysfs_root, p.config.proc_root,
        std::chrono::seconds(p.config.doctor_interval_seconds), [&p](NodeLook look) {
          p.judge.set_machine(look.machine);
          const NodeFindings of_jobs = p.judge.count(*p.store.get());
          if (of_jobs.any()) look.findings.push_back(of_jobs);
          p.reactor->post([&p, findings = std::move(look.findings)]() mutable {
            p.aggregator.set_node_findings(std::move(findings));
          });
        });
  }
  if (Status s = p.write_ready_file(); !s.ok()) return s;
  log_info(concat("ready: version ", agent_version(), ", socket ", p.config.socket, ", http ",
                  p.http_address.empty() ? std::string("off") : p.http_address, ", api ",
                  p.config.api_socket.empty() ? std::string("off") : p.config.api_socket,
                  p.api_address.empty() ? "" : concat(" and ", p.api_address)));
  notify_service_manager("READY=1");
  return {};
}

void Agent::run() {
  parts_->reactor->run();
}
void Agent::stop() {
  Parts& p = *parts_;
  p.reactor->post([&p] { p.shut_down(); });
}

const std::string& Agent::http_address() const {
  return parts_->http_address;
}
const std::string& Agent::api_address() const {
  return parts_->api_address;
}
const SnapshotStore& Agent::snapshots() const {
  return parts_->store;
}
const OperationTail& Agent::tail() const {
  return parts_->tail;
}
IngestGateway& Agent::gateway() {
  return *parts_->gateway;
}
DetailControl& Agent::detail() {
  return *parts_->gateway;
}
void Agent::publish_now() {
  Parts& p = *parts_;
  p.reactor->call([&p] { p.publish(); });
}

}  // namespace ncclscope::agent
