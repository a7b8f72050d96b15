// SPDX-License-Identifier: Apache-2.0
#include "cli/inspector_log/line_parser.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace ncclscope::cli::inspector_log {
namespace {

using Json = nlohmann::json;

// Eight characters at a time: of a word, the first is the lowest byte.
static_assert(std::endian::native == std::endian::little);
constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::uint64_t kHighBits = 0x8080808080808080;

constexpr std::uint64_t word_of(char character) {
  return 0x0101010101010101 * static_cast<unsigned char>(character);
}

std::uint64_t load_word(const char* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, kWord);
  return word;
}

/// How many bytes come before the first whose high bit is set in `marks`.
std::size_t bytes_before(std::uint64_t marks) {
  return static_cast<std::size_t>(std::countr_zero(marks)) / 8;
}

/// Marks the first byte that is `character`; bytes after that may be marked too.
std::uint64_t mark(std::uint64_t word, char character) {
  const std::uint64_t zero_there = word ^ word_of(character);
  return (zero_there - word_of(1)) & ~zero_there & kHighBits;
}

/// Marks the bytes that are more than 9.
std::uint64_t mark_no_digits(std::uint64_t values) {
  return (((values & ~kHighBits) + word_of(0x80 - 10)) | values) & kHighBits;
}

/// Of eight digits, each the value of a byte: neighbours become pairs, and pairs the number.
std::uint64_t number_of(std::uint64_t values) {
  constexpr std::uint64_t kEverySecondPair = 0x000000FF000000FF;
  const std::uint64_t pairs = values * 10 + (values >> 8U);
  const std::uint64_t first_and_third = (pairs & kEverySecondPair) * (100 + (1000000ULL << 32U));
  const std::uint64_t second_and_fourth =
      (pairs >> 16U & kEverySecondPair) * (1 + (10000ULL << 32U));
  return (first_and_third + second_and_fourth) >> 32U;
}

/// Walks text that is expected to have a certain form. Once something differs, everything fails.
/// Inline as a whole, so that it lives in registers.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return at_ == end_; }

  /// Goes past `literal` if it comes next. Inline, so that constants are compared as words.
  [[gnu::always_inline]] bool skip(std::string_view literal) {
    if (static_cast<std::size_t>(end_ - at_) < literal.size() ||
        std::memcmp(at_, literal.data(), literal.size()) != 0)
      return false;
    at_ += literal.size();
    return true;
  }
  [[gnu::always_inline]] void expect(std::string_view literal) { ok_ = ok_ && skip(literal); }

  /// A string without escapes, up to and with its closing quote.
  [[gnu::always_inline]] std::string_view text() {
    const char* begin = at_;
    while (words_left()) {
      const std::uint64_t word = load_word(at_);
      const std::uint64_t marks = mark(word, '"') | mark(word, '\\');
      if (marks != 0) {
        at_ += bytes_before(marks);
        break;
      }
      at_ += kWord;
    }
    while (at_ < end_ && *at_ != '"' && *at_ != '\\') ++at_;
    if (at_ == end_ || *at_ != '"') {
      ok_ = false;
      return {};
    }
    return {begin, static_cast<std::size_t>(at_++ - begin)};
  }

  [[gnu::always_inline]] std::int64_t integer() {
    // Up to 18 digits fit in any case; what is more, or has a sign, is for the library.
    constexpr std::size_t kSafeDigits = 18;
    const char* begin = at_;
    std::uint64_t digits = 0;
    const std::size_t count = take_digits(digits);
    if (count - 1 < kSafeDigits) return static_cast<std::int64_t>(digits);
    return take(any_number<std::int64_t>(begin, end_));
  }

  /// A decimal number, correctly rounded.
  [[gnu::always_inline]] double decimal() {
    // Up to 15 digits with up to 6 after the point, as Inspector writes them, are exact integers in
    // a double, and so is the power of ten: one division rounds once, as a general parser would.
    static constexpr std::array kPowers{1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6};
    constexpr std::size_t kExactDigits = 15;
    const char* begin = at_;
    std::uint64_t digits = 0;
    const std::size_t whole = take_digits(digits);
    std::size_t fraction = 0;
    if (at_ < end_ && *at_ == '.' && whole > 0) {
      ++at_;
      fraction = take_digits(digits);
    }
    const bool plain = whole > 0 && whole + fraction <= kExactDigits && fraction < kPowers.size() &&
                       (at_ == end_ || (*at_ != 'e' && *at_ != 'E'));
    if (plain) return static_cast<double>(digits) / kPowers[fraction];
    return take(any_number<double>(begin, end_));
  }

  /// A number, or the string "nan" that Inspector writes for none.
  [[gnu::always_inline]] double number_or_nan() {
    return skip("\"nan\"") ? Performance::kNone : decimal();
  }

  /// Past the object or array that begins here; it holds no braces in strings (numbers only, in
  /// traces).
  void skip_nested() {
    int depth = 0;
    for (; at_ < end_; ++at_) {
      if (*at_ == '{' || *at_ == '[') ++depth;
      if ((*at_ == '}' || *at_ == ']') && --depth == 0) {
        ++at_;
        return;
      }
    }
    ok_ = false;
  }

 private:
  [[nodiscard]] bool words_left() const { return static_cast<std::size_t>(end_ - at_) >= kWord; }

  template <typename T>
  struct Number {
    T value{};
    const char* rest = nullptr;
    bool ok = false;
  };

  /// Not inline: it would keep the cursor out of registers, and hardly any line needs it.
  template <typename T>
  [[gnu::noinline]] static Number<T> any_number(const char* begin, const char* end) {
    T value{};
    const auto [rest, error] = std::from_chars(begin, end, value);
    return {value, rest, error == std::errc() && rest != begin};
  }

  template <typename T>
  T take(const Number<T>& number) {
    ok_ = ok_ && number.ok;
    at_ = number.rest;
    return number.value;
  }

  /// Goes past the digits that come next, appends them to `number` (which holds the lowest bits if
  /// they are too many), and says how many there were.
  [[gnu::always_inline]] std::size_t take_digits(std::uint64_t& number) {
    static constexpr std::array<std::uint64_t, kWord + 1> kPowers{
        1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    const char* begin = at_;
    while (words_left()) {
      const std::uint64_t values = load_word(at_) ^ word_of('0');
      const std::uint64_t marks = mark_no_digits(values);
      const std::size_t count = marks == 0 ? kWord : bytes_before(marks);
      if (count == 0) break;
      // The digits move up, and zeros come before them.
      number = number * kPowers[count] + number_of(values << (kWord - count) * 8);
      at_ += count;
      if (count < kWord) return static_cast<std::size_t>(at_ - begin);
    }
    for (; at_ < end_ && *at_ >= '0' && *at_ <= '9'; ++at_)
      number = number * 10 + static_cast<std::uint64_t>(*at_ - '0');
    return static_cast<std::size_t>(at_ - begin);
  }

  const char* at_;
  const char* end_;
  bool ok_ = true;
};

/// The keys of coll_perf and p2p_perf, as they are written.
struct Keys {
  std::string_view begin, algorithm, protocol, sequence, peer, bytes, time, source, algbw, busbw,
      order, stamps, stop;
};
constexpr Keys kCollectiveKeys{.begin = "coll_perf\":{\"coll\":\"",
                               .algorithm = ",\"coll_algo\":\"",
                               .protocol = ",\"coll_proto\":\"",
                               .sequence = ",\"coll_sn\":",
                               .peer = {},
                               .bytes = ",\"coll_msg_size_bytes\":",
                               .time = ",\"coll_exec_time_us\":",
                               .source = ",\"coll_timing_source\":\"",
                               .algbw = ",\"coll_algobw_gbs\":",
                               .busbw = ",\"coll_busbw_gbs\":",
                               .order = ",\"event_trace_sn\":",
                               .stamps = ",\"event_trace_ts\":{\"coll_start_ts\":",
                               .stop = ",\"coll_stop_ts\":"};
constexpr Keys kP2pKeys{.begin = "p2p_perf\":{\"p2p\":\"",
                        .algorithm = {},
                        .protocol = {},
                        .sequence = ",\"p2p_sn\":",
                        .peer = ",\"p2p_peer\":",
                        .bytes = ",\"p2p_msg_size_bytes\":",
                        .time = ",\"p2p_exec_time_us\":",
                        .source = ",\"p2p_timing_source\":\"",
                        .algbw = ",\"p2p_algobw_gbs\":",
                        .busbw = ",\"p2p_busbw_gbs\":",
                        .order = ",\"event_trace_sn\":",
                        .stamps = ",\"event_trace_ts\":{\"p2p_start_ts\":",
                        .stop = ",\"p2p_stop_ts\":"};

/// What follows the key `event_trace_sn`, and `event_trace_ts`, of verbose lines; the cursor
/// behind.
template <const Keys& keys>
Cursor parse_traces(Cursor cursor, Performance& out) {
  cursor.skip_nested();
  cursor.expect(keys.stamps);
  out.enqueued_us = cursor.integer();
  cursor.expect(keys.stop);
  cursor.integer();
  cursor.expect(",\"kernel_events\":[");
  std::int32_t channels = 0;
  std::int64_t first = 0, last = 0;
  while (cursor.ok() && cursor.skip("{\"channel_id\":")) {
    cursor.integer();
    cursor.expect(",\"kernel_start_ts\":");
    const std::int64_t start = cursor.integer();
    cursor.expect(",\"kernel_stop_ts\":");
    last = std::max(last, cursor.integer());
    cursor.expect(",\"kernel_record_ts\":");
    cursor.integer();
    cursor.expect("}");
    first = first == 0 || (start != 0 && start < first) ? start : first;
    ++channels;
    if (!cursor.skip(",")) break;
  }
  cursor.expect("]}");
  out.channels = channels;
  out.kernel_start_us = first;
  out.kernel_stop_us = last;
  return cursor;
}

/// From after `keys.begin` to the end of the line.
template <const Keys& keys>
[[gnu::always_inline]] inline bool parse_payload(Cursor& cursor, Performance& out) {
  constexpr bool kPointToPoint = !keys.peer.empty();
  out.point_to_point = kPointToPoint;
  out.operation = cursor.text();
  out.algorithm = out.protocol = {};
  if (!kPointToPoint && cursor.skip(keys.algorithm)) {
    out.algorithm = cursor.text();
    cursor.expect(keys.protocol);
    out.protocol = cursor.text();
  }
  cursor.expect(keys.sequence);
  out.sequence = cursor.integer();
  out.peer = -1;
  if (kPointToPoint) {
    cursor.expect(keys.peer);
    out.peer = static_cast<std::int32_t>(cursor.integer());
  }
  cursor.expect(keys.bytes);
  out.message_bytes = cursor.integer();
  cursor.expect(keys.time);
  out.exec_time_us = cursor.integer();
  out.timing_source = {};
  if (cursor.skip(keys.source)) out.timing_source = cursor.text();  // not before 2.30
  cursor.expect(keys.algbw);
  out.algbw_gbs = cursor.number_or_nan();
  cursor.expect(keys.busbw);
  out.busbw_gbs = cursor.number_or_nan();
  out.channels = -1;
  out.enqueued_us = out.kernel_start_us = out.kernel_stop_us = 0;
  if (cursor.ok() && cursor.skip(keys.order)) cursor = parse_traces<keys>(cursor, out);
  cursor.expect("}}");
  return cursor.ok() && cursor.at_end();
}

/// From after the quote that opens "coll_perf" or "p2p_perf" to the end of the line.
[[gnu::always_inline]] inline bool parse_performance(Cursor& cursor, Performance& out) {
  if (cursor.skip(kCollectiveKeys.begin)) return parse_payload<kCollectiveKeys>(cursor, out);
  return cursor.skip(kP2pKeys.begin) && parse_payload<kP2pKeys>(cursor, out);
}

// The general parser: values of whatever order and company. Wrong types are errors, missing keys
// stay at their default.

class Object {
 public:
  Object(const Json& json, std::string& error) : json_(json), error_(error) {}

  void read(const char* key, std::string& value) const {
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    if (found->is_string())
      value = found->get<std::string>();
    else
      wrong(key, "text");
  }
  template <typename Integer>
  void read(const char* key, Integer& value) const {
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    if (!found->is_number_integer()) return wrong(key, "an integer");
    const auto wide = found->get<std::int64_t>();
    if (!std::in_range<Integer>(wide)) return wrong(key, "a smaller number");
    value = static_cast<Integer>(wide);
  }
  void read(const char* key, double& value) const {
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    if (found->is_number())
      value = found->get<double>();
    else if (!found->is_string() || found->get_ref<const std::string&>() != "nan")
      wrong(key, "a number");
  }

 private:
  void wrong(const char* key, const char* wanted) const {
    if (error_.empty())
      error_ = "\"" + std::string(key) + "\" is not " + wanted + ": " +
               json_.at(key).dump().substr(0, 60);
  }

  const Json& json_;
  std::string& error_;
};

const Json* object_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_object() ? &*found : nullptr;
}

void read_traces(const Json& payload, const std::string& prefix, Performance& out,
                 std::string& error) {
  const Json* stamps = object_of(payload, "event_trace_ts");
  if (stamps == nullptr) return;
  Object(*stamps, error).read((prefix + "_start_ts").c_str(), out.enqueued_us);
  const auto events = stamps->find("kernel_events");
  if (events == stamps->end() || !events->is_array()) return;
  out.channels = static_cast<std::int32_t>(events->size());
  for (const Json& event : *events) {
    if (!event.is_object()) continue;
    std::int64_t start = 0, stop = 0;
    Object(event, error).read("kernel_start_ts", start);
    Object(event, error).read("kernel_stop_ts", stop);
    if (out.kernel_start_us == 0 || (start != 0 && start < out.kernel_start_us))
      out.kernel_start_us = start;
    out.kernel_stop_us = std::max(out.kernel_stop_us, stop);
  }
}

bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

bool same(const Performance& a, const Performance& b) {
  return a.dump_timestamp_us == b.dump_timestamp_us && a.point_to_point == b.point_to_point &&
         a.operation == b.operation && a.algorithm == b.algorithm && a.protocol == b.protocol &&
         a.timing_source == b.timing_source && a.sequence == b.sequence && a.peer == b.peer &&
         a.message_bytes == b.message_bytes && a.exec_time_us == b.exec_time_us &&
         same(a.algbw_gbs, b.algbw_gbs) && same(a.busbw_gbs, b.busbw_gbs) &&
         a.channels == b.channels && a.enqueued_us == b.enqueued_us &&
         a.kernel_start_us == b.kernel_start_us && a.kernel_stop_us == b.kernel_stop_us;
}

/// Formats before v4.3 repeat header and metadata on every line.
bool is_stream_format(std::string_view version) {
  int major = 0, minor = 0;
  if (!version.starts_with('v')) return false;
  const char* end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data() + 1, end, major);
  if (error != std::errc() || dot == end || *dot != '.') return false;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc()) return false;
  return major > 4 || (major == 4 && minor >= 3);
}

constexpr std::size_t kMostContexts = 1'024;  // some 100 KB; a process has a few communicators
constexpr std::string_view kTimeKey = "\"dump_timestamp_us\":";

}  // namespace

/// What is the same on all full lines of one communicator: the bytes before the time, and those
/// after it.
struct LineParser::Shape {
  Shape(std::string text_before, std::string text_after, const Context* of)
      : before(std::move(text_before)), after(std::move(text_after)), context(of) {}

  std::string before, after;
  const Context* context;
  Shape* next = nullptr;  // the one that came after this one, when last another one did
};

LineParser::LineParser() = default;
LineParser::~LineParser() = default;

LineParser::Kind LineParser::bad(std::string reason) {
  error_ = std::move(reason);
  return Kind::kBad;
}

LineParser::Kind LineParser::parse_fast(std::string_view line, const Shape& shape,
                                        Performance& out) const {
  Cursor cursor(line);
  if (!cursor.skip(shape.before)) return Kind::kBad;
  out.dump_timestamp_us = cursor.integer();
  cursor.expect(shape.after);
  if (!cursor.ok() || !parse_performance(cursor, out)) return Kind::kBad;
  out.context = shape.context;
  return Kind::kPerformance;
}

LineParser::Kind LineParser::parse(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty()) return Kind::kOther;
  if (streaming_ && line.starts_with("{\"") && !line.starts_with("{\"header")) {
    Cursor cursor(line.substr(2));
    Performance payload;
    // Behind the payload a full line closes as a payload line does: with two braces.
    if (parse_performance(cursor, payload)) {
      performance_ = payload;
      return take_payload(payload.point_to_point);
    }
    return parse_any(line);
  }
  if (!streaming_) {
    // Several lines of a communicator follow each other, and communicators as in the last step,
    // usually.
    if (last_ != nullptr && parse_fast(line, *last_, performance_) == Kind::kPerformance)
      return Kind::kPerformance;
    Shape* const expected = last_ == nullptr ? nullptr : last_->next;
    if (expected != nullptr && parse_fast(line, *expected, performance_) == Kind::kPerformance) {
      last_ = expected;
      return Kind::kPerformance;
    }
    Shape* const known = known_shape(line);
    if (known != nullptr && parse_fast(line, *known, performance_) == Kind::kPerformance) {
      follow(*known);
      return Kind::kPerformance;
    }
  }
  const Kind kind = parse_any(line);
  if (kind == Kind::kPerformance && !streaming_) learn(line);
  return kind;
}

/// Makes a shape of a line that the general parser understood, if the fast one then reads the same
/// from it.
void LineParser::learn(std::string_view line) {
  const std::size_t key = line.find(kTimeKey);
  if (key == std::string_view::npos) return;
  const std::size_t time = key + kTimeKey.size();
  const std::size_t rest = line.find_first_not_of("0123456789", time);
  std::size_t payload = line.find("\"coll_perf\":{", time);
  if (payload == std::string_view::npos) payload = line.find("\"p2p_perf\":{", time);
  if (rest == std::string_view::npos || payload == std::string_view::npos || payload < rest) return;
  auto shape = std::make_unique<Shape>(std::string(line.substr(0, time)),
                                       std::string(line.substr(rest, payload + 1 - rest)),
                                       performance_.context);
  Performance again;
  if (parse_fast(line, *shape, again) != Kind::kPerformance || !same(again, performance_)) return;
  const std::string_view before = shape->before;
  const auto [known, is_new] = shapes_.try_emplace(before, std::move(shape));
  if (is_new) follow(*known->second);
}

LineParser::Shape* LineParser::known_shape(std::string_view line) {
  const std::size_t key = line.find(kTimeKey);
  if (key == std::string_view::npos) return nullptr;
  const auto known = shapes_.find(line.substr(0, key + kTimeKey.size()));
  return known == shapes_.end() ? nullptr : known->second.get();
}

void LineParser::follow(Shape& shape) {
  if (last_ != nullptr) last_->next = &shape;
  last_ = &shape;
}

std::size_t LineParser::ContextHash::operator()(const Context& context) const {
  return std::hash<std::string>()(context.id) ^ static_cast<std::size_t>(context.rank);
}

const Context* LineParser::known_context(Context&& context) {
  const auto known = contexts_.find(context);
  if (known != contexts_.end()) return &*known;
  if (contexts_.size() >= kMostContexts) forget_contexts();
  return &*contexts_.insert(std::move(context)).first;
}

void LineParser::forget_contexts() {
  shapes_.clear();
  last_ = nullptr;
  std::unordered_set<Context, ContextHash> kept;
  if (stream_context_ != nullptr) stream_context_ = &*kept.insert(*stream_context_).first;
  contexts_ = std::move(kept);
  ++forgotten_;
}

LineParser::Kind LineParser::take_payload(bool point_to_point) {
  std::int64_t& left = point_to_point ? p2p_left_ : collectives_left_;
  if (left == 0)
    return bad(std::string("more ") + (point_to_point ? "p2p_perf" : "coll_perf") +
               " lines than the dump_stats line before them announced");
  --left;
  performance_.context = stream_context_;
  performance_.dump_timestamp_us = stream_timestamp_us_;
  return Kind::kPerformance;
}

LineParser::Kind LineParser::take_marker(std::int64_t collectives, std::int64_t p2p,
                                         std::int64_t proxy) {
  const std::int64_t missing = announced_left();
  if (collectives < 0 || p2p < 0 || proxy < 0)
    return bad("dump_stats announces a negative number of lines");
  collectives_left_ = collectives;
  p2p_left_ = p2p;
  proxy_left_ = proxy;
  if (missing > 0)
    return bad(std::to_string(missing) +
               " lines that the dump_stats line before announced are missing");
  return Kind::kOther;
}

LineParser::Kind LineParser::parse_any(std::string_view text) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (line.is_discarded()) return bad("not JSON: " + std::string(text.substr(0, 80)));
  if (!line.is_object()) return bad("not a JSON object: " + std::string(text.substr(0, 80)));

  error_.clear();
  const Json* header = object_of(line, "header");
  const Json* metadata = object_of(line, "metadata");
  const Json* collective = object_of(line, "coll_perf");
  const Json* p2p = object_of(line, "p2p_perf");
  const Json* stats = object_of(line, "dump_stats");
  const bool proxy = line.contains("proxy_trace");

  Context context;
  std::int64_t timestamp_us = 0;
  if (header != nullptr && metadata != nullptr) {
    const Object head(*header, error_), meta(*metadata, error_);
    head.read("id", context.id);
    head.read("comm_name", context.comm_name);
    head.read("rank", context.rank);
    head.read("n_ranks", context.n_ranks);
    head.read("nnodes", context.nnodes);
    meta.read("inspector_output_format_version", context.version);
    meta.read("git_rev", context.git_rev);
    meta.read("hostname", context.hostname);
    meta.read("pid", context.pid);
    meta.read("dump_timestamp_us", timestamp_us);
    if (!error_.empty()) return Kind::kBad;
    if (context.id.empty()) return bad("header.id is missing");
    if (context.comm_name == "unknown") context.comm_name.clear();
  } else if (!streaming_ || header != nullptr || metadata != nullptr) {
    return bad(
        header == nullptr
            ? "no \"header\": neither a line of NCCL Inspector up to v4.2 nor announced by a marker"
            : "no \"metadata\"");
  }
  const bool full = header != nullptr;

  if (stats != nullptr) {
    std::int64_t collectives = 0, sends = 0, traces = 0, lost = 0, p2p_lost = 0;
    const Object object(*stats, error_);
    object.read("coll_records", collectives);
    object.read("p2p_records", sends);
    object.read("proxy_records", traces);
    object.read("coll_dropped_since_last_dump", lost);
    object.read("p2p_dropped_since_last_dump", p2p_lost);
    if (!error_.empty()) return Kind::kBad;
    dropped_by_writer_ += std::max<std::int64_t>(lost, 0) + std::max<std::int64_t>(p2p_lost, 0);
    if (!full) return bad("a dump_stats line without header and metadata");
    streaming_ = is_stream_format(context.version);
    if (!streaming_) return Kind::kOther;
    stream_context_ = known_context(std::move(context));
    stream_timestamp_us_ = timestamp_us;
    return take_marker(collectives, sends, traces);
  }
  if (proxy) {
    if (full || proxy_left_ == 0)
      return full ? Kind::kOther : bad("more proxy_trace lines than announced");
    --proxy_left_;
    return Kind::kOther;
  }
  if (collective == nullptr && p2p == nullptr)
    return bad("none of coll_perf, p2p_perf, dump_stats, proxy_trace: " +
               std::string(text.substr(0, 80)));

  const Json& payload = collective != nullptr ? *collective : *p2p;
  const std::string prefix = collective != nullptr ? "coll" : "p2p";
  Performance out;
  out.point_to_point = collective == nullptr;
  operation_.clear(), algorithm_.clear(), protocol_.clear(), timing_source_.clear();
  const Object object(payload, error_);
  object.read(prefix.c_str(), operation_);
  object.read("coll_algo", algorithm_);
  object.read("coll_proto", protocol_);
  object.read((prefix + "_sn").c_str(), out.sequence);
  object.read("p2p_peer", out.peer);
  object.read((prefix + "_msg_size_bytes").c_str(), out.message_bytes);
  object.read((prefix + "_exec_time_us").c_str(), out.exec_time_us);
  object.read((prefix + "_timing_source").c_str(), timing_source_);
  object.read((prefix + "_algobw_gbs").c_str(), out.algbw_gbs);
  object.read((prefix + "_busbw_gbs").c_str(), out.busbw_gbs);
  read_traces(payload, prefix, out, error_);
  if (!error_.empty()) return Kind::kBad;
  if (operation_.empty()) return bad("\"" + prefix + "\" (the kind of operation) is missing");
  out.operation = operation_;
  out.algorithm = algorithm_;
  out.protocol = protocol_;
  out.timing_source = timing_source_;
  performance_ = out;
  if (!full) return take_payload(out.point_to_point);
  performance_.context = known_context(std::move(context));
  performance_.dump_timestamp_us = timestamp_us;
  return Kind::kPerformance;
}

}  // namespace ncclscope::cli::inspector_log
